"""Histories of a log that is compacted, restarted, trimmed and truncated, beside the rules applied to a list."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lowtide.protocol.control_records import ControlRecordType
from lowtide.protocol.records import iterate_records, read_batch_header
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.directory.log_starts import make_log_start_visible
from lowtide.storage.log.durability import LogDurability
from lowtide.storage.log.truncation import LogTruncation

from .compacting import CONFIG, LIMIT, CompactedLog, end, produce

pytestmark = pytest.mark.usefixtures("walk_form")

operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"), st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), min_size=1, max_size=4)
        ),
        st.tuples(st.just("produce"), st.integers(1, 3), st.lists(st.sampled_from("abcde"), min_size=1, max_size=3)),
        st.tuples(st.just("end"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("roll")),
        st.tuples(st.just("clean"), st.integers(1, 6), st.sampled_from([0, 600, 2000])),
        st.tuples(st.just("restart"), st.booleans()),
        st.tuples(st.just("delete"), st.integers(0, 100)),
        st.tuples(st.just("truncate"), st.integers(0, 100)),
    ),
    max_size=40,
)


class History:
    """The expected contents beside the log: the rules applied to a list of records."""

    def __init__(self) -> None:
        self.log = CompactedLog(MemoryFileSystem(Random(3)), replace(CONFIG, segment_bytes=600))
        self.written: dict[int, tuple[bytes | None, bytes | None, int]] = {}
        """By offset: key, value, and the producer of a transaction, or 0."""
        self.open: dict[int, list[int]] = {}
        self.sequences: dict[int, int] = {}
        self.aborted: set[int] = set()
        self.agreed_end = 0
        """Committed when the log was compacted: a marker below may belong to a removed aborted record, so it stays."""

    def apply(self, operation: tuple[object, ...]) -> None:
        getattr(self, "do_" + str(operation[0]))(*operation[1:])

    def do_append(self, records: list[tuple[str, bool]]) -> None:
        rows = [
            (key.encode(), b"v%d" % self.log.log.log_end_offset if has_value else None) for key, has_value in records
        ]
        base = self.log.append(*rows)
        self.written |= {base + number: (*row, 0) for number, row in enumerate(rows)}

    def do_produce(self, producer: int, keys: list[str]) -> None:
        sequence = self.sequences.get(producer, 0)
        base = produce(self.log, producer, sequence, *[key.encode() for key in keys])
        self.sequences[producer] = sequence + len(keys)
        for number, key in enumerate(keys):
            self.written[base + number] = (key.encode(), b"by %d" % producer, producer)
            self.open.setdefault(producer, []).append(base + number)

    def do_end(self, producer: int, commits: bool) -> None:
        offsets = self.open.pop(producer, None)
        if offsets is not None:
            end(self.log, producer, ControlRecordType.COMMIT if commits else ControlRecordType.ABORT)
            if not commits:
                self.aborted.update(offsets)

    def do_roll(self) -> None:
        self.log.roll()

    def do_clean(self, entries: int, later_ms: int) -> None:
        self.log.now_ms += later_ms
        self.log.flush()
        report = self.log.clean(entries)
        if report is not None:
            assert report.done is not None
            self.agreed_end = self.log.log.high_watermark

    def do_restart(self, clean: bool) -> None:
        self.log.flush()
        if clean:
            barrier = LogDurability(self.log.log).close()
            if barrier is not None:
                self.log.committer.submit(barrier, lambda _error: None)
                self.log.committer.step()
        self.log.filesystem.crash_process() if clean else self.log.filesystem.power_cut(Random(5))
        self.log.reopen(clean=clean)
        self.log.log.transactions.settle(self.log.log.high_watermark)

    def do_delete(self, percent: int) -> None:
        log = self.log.log
        offset = log.log_start_offset + (log.high_watermark - log.log_start_offset) * percent // 100
        log.request_log_start(offset)
        for removed in make_log_start_visible(log, offset):
            removed.mark_deleted(self.log.filesystem)

    def do_truncate(self, percent: int) -> None:
        """Truncates only where no compacted record is needed again: replicas agree on what is committed."""
        log = self.log.log
        low = max(log.log_start_offset, log.swaps.cleaned_to or 0, self.agreed_end)
        if self.open or percent > 50 or low > log.log_end_offset:
            return
        truncation = LogTruncation(log).truncate_to(
            low + (log.log_end_offset - low) * percent // 50, now_ms=self.log.now_ms
        )
        if truncation.barrier is not None:
            self.log.committer.submit(truncation.barrier, lambda _error: None)
            self.log.committer.step()
        self.written = {offset: row for offset, row in self.written.items() if offset < log.log_end_offset}
        self.aborted = {offset for offset in self.aborted if offset < log.log_end_offset}
        self.flush_and_forget()

    def flush_and_forget(self) -> None:
        self.log.flush()
        entries = self.log.log.producer_state.producers
        self.sequences = {producer: entry.last_sequence + 1 for producer, entry in entries.items()}
        # A truncation may cut between a transaction and its marker.
        open_now = {header for header in entries if entries[header].transaction_first_offset >= 0}
        for producer in open_now:
            first = entries[producer].transaction_first_offset
            self.open[producer] = [at for at, row in self.written.items() if row[2] == producer and at >= first]
            self.aborted.difference_update(self.open[producer])

    def check(self) -> None:
        log = self.log.log
        records = self.log.records()
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))
        for record in records:
            if record.offset >= log.log_start_offset:
                assert (record.key, record.value) == self.written[record.offset][:2]
        undecided = {offset for each in self.open.values() for offset in each}
        last = {
            key: (offset, value)
            for offset, (key, value, _producer) in sorted(self.written.items())
            if offset not in self.aborted and offset not in undecided
        }
        for offset, value in last.values():
            if value is not None and offset >= log.log_start_offset:
                assert offset in offsets, f"the last record of a key, at {offset}, is missing"
        assert not undecided - {at for at in undecided if at < log.log_start_offset} - set(offsets), (
            "a record of an open transaction is missing"
        )
        self.check_compacted(offsets)
        self.check_readers()

    def check_compacted(self, offsets: list[int]) -> None:
        """The compacted part has each key once and no aborted record."""
        log = self.log.log
        cleaned_to = log.swaps.cleaned_to or 0
        if not log.log_start_offset <= cleaned_to <= log.log_end_offset:
            return
        keys = [self.written[offset][0] for offset in offsets if log.log_start_offset <= offset < cleaned_to]
        assert len(keys) == len(set(keys))
        assert not {offset for offset in offsets if offset < cleaned_to} & self.aborted

    def check_readers(self) -> None:
        """A reader of committed records that skips what the index lists skips every aborted record, and no other."""
        log = self.log.log
        aborted = log.files.aborted.collect(log.segments[0].base_offset, log.log_start_offset, log.log_end_offset)
        for batch in self.log.batches():
            header = read_batch_header(batch)
            if header.is_control or header.last_offset < log.log_start_offset:
                continue
            told = header.is_transactional and any(
                each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
                for each in aborted
            )
            for record in iterate_records(batch, max_bytes=LIMIT):
                assert told == (record.offset in self.aborted), record


@settings(deadline=None)
@given(operations)
@example([("append", [("a", False)]), ("clean", 1, 0), ("truncate", 0), ("restart", False)])
def test_histories(drawn: list[tuple[object, ...]]) -> None:
    history = History()
    for operation in drawn:
        history.apply(operation)
        history.check()
    for producer in list(history.open):
        history.apply(("end", producer, True))
    history.apply(("roll",))
    for _ in range(60):
        history.apply(("clean", 2, 0))
        history.check()
        if history.log.cleanable().dirty_bytes == 0:
            break
    else:
        pytest.fail("the log never becomes clean")
