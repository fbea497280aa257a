"""A log under any sequence of operations, stops, crashes and power cuts, beside a model that is a plain list.

Protected: D5-D7, D9-D12, R1-R3, S1, S3 and S5 of docs/invariants.md. The simulated disk loses, keeps and tears changes.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import Record, iterate_batches, iterate_records
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem.memory import MemoryFileSystem, SimulatedCrashError
from lowtide.storage import checkpoint
from lowtide.storage.directory.log_starts import make_log_start_visible
from lowtide.storage.log.durability import LogDurability
from lowtide.storage.log.log import AppendedBatch, FileSlice, LogConfig, RemovedSegment, SegmentCache
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.log_holes import LogHoles
from lowtide.storage.log.opening.known_log import KnownLog
from lowtide.storage.log.opening.loader import create_log, load_log
from lowtide.storage.log.segments.hole import Hole, PendingHole
from lowtide.storage.log.truncation import LogTruncation
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce
from tests.examples import examples

DIRECTORY = "/disk/flights-0"
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)
TOPIC_PARTITION = TopicPartition("flights", 0)
TOPIC_ID = bytes(range(16))
PRODUCER_ID = 4711
RULES = ValidationRules()


class Row(NamedTuple):
    """A record of the model."""

    value: bytes
    leader_epoch: int
    batch_base: int
    batch_last: int
    last_sequence: int


def batch_of(values: list[bytes], now_ms: int, base_sequence: int) -> ValidatedBatch:
    producer: dict[str, Any] = (
        {"producer_id": PRODUCER_ID, "producer_epoch": 0, "base_sequence": base_sequence} if base_sequence >= 0 else {}
    )
    content = build_batch([(now_ms, None, value, ()) for value in values], **producer)
    validated = validate_produce(memoryview(content), RULES, now_ms)
    assert isinstance(validated, ValidatedBatch)
    return validated


def carry_out(filesystem: MemoryFileSystem, barrier: Barrier | None) -> None:
    if barrier is not None:
        checkpoint.carry_out(filesystem, barrier)


def records_of(content: bytes) -> list[Record]:
    """All records of the whole batches in an answer to a fetch; checksums are checked."""
    found: list[Record] = []
    for position, header in iterate_batches(content):
        found.extend(iterate_records(content[position : position + header.size_bytes], max_bytes=1 << 20))
    return found


class LogMachine(RuleBasedStateMachine):
    """`rows[i]` is the record with offset i; those below `log_start` are deleted, perhaps in a straddling batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.log_start = 0
        self.synced_end = 0
        self.high_watermark = 0
        self.leader_epoch = 0
        self.next_sequence = 0
        self.now_ms = 1_700_000_000_000
        self.slices: list[tuple[FileSlice, bytes]] = []
        self.unsent: list[RemovedSegment] = []
        self.in_flight: list[Row] = []
        self.cutting_to: int | None = None
        self.pending: PendingHole | None = None
        self.noted: Hole | None = None

    @initialize(seed=st.integers(0, 2**32), sync_first=st.booleans())
    def create(self, seed: int, sync_first: bool) -> None:
        self.random = Random(seed)
        self.filesystem = MemoryFileSystem(self.random)
        self.filesystem.make_directories("/disk")
        self.filesystem.sync_directory("/")
        self.log = create_log(
            LogPlace(
                filesystem=self.filesystem,
                directory=DIRECTORY,
                config=CONFIG,
                topic_partition=TOPIC_PARTITION,
                topic_id=TOPIC_ID,
            ),
            now_ms=self.now_ms,
        )
        if sync_first:
            self.flush()

    # Operations on a log

    def _append(self, sizes: list[int], idempotent: bool) -> None:
        base_sequence = self.next_sequence if idempotent else -1
        values = [self.random.randbytes(size) for size in sizes]
        batch = batch_of(values, self.now_ms, base_sequence)
        base_offset = len(self.rows)
        last_offset = base_offset + len(values) - 1
        last_sequence = base_sequence + len(values) - 1 if idempotent else -1
        rows = [Row(value, self.leader_epoch, base_offset, last_offset, last_sequence) for value in values]
        self.in_flight = rows
        appended = self.log.append_as_leader(batch, leader_epoch=self.leader_epoch, now_ms=self.now_ms)
        self.in_flight = []
        assert appended == AppendedBatch(base_offset, last_offset, -1)
        self.rows += rows
        if idempotent:
            self.next_sequence += len(values)
            again = self.log.append_as_leader(batch, leader_epoch=self.leader_epoch, now_ms=self.now_ms)
            assert isinstance(again, AppendedBatch)
            assert (again.base_offset, again.last_offset, again.duplicate) == (base_offset, last_offset, True)

    sizes = st.lists(st.integers(0, 120), min_size=1, max_size=4)

    @rule(sizes=sizes, idempotent=st.booleans())
    def append(self, sizes: list[int], idempotent: bool) -> None:
        self.now_ms += 1
        self._append(sizes, idempotent)

    @rule()
    def new_leader(self) -> None:
        self.leader_epoch += 1

    @rule()
    def commit(self) -> None:
        self.log.advance_high_watermark(len(self.rows))
        self.high_watermark = len(self.rows)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    @rule(share=st.floats(0, 1), send_away=st.booleans())
    def delete_prefix(self, share: float, send_away: bool) -> None:
        offset = self.log_start + round((self.high_watermark - self.log_start) * share)
        self.log.request_log_start(offset)
        assert self.log.log_start_offset == self.log_start, "visible before it was durable"
        self.log_start = max(self.log_start, offset)  # from here on the journal is durable
        self._advance(offset, send_away)

    def _advance(self, offset: int, send_away: bool) -> None:
        removed = make_log_start_visible(self.log, offset)
        assert all(segment.base_offset < self.log_start for segment in removed)
        if send_away:
            for segment in [*self.unsent, *removed]:
                segment.mark_deleted(self.filesystem)
                segment.unlink(self.filesystem)
            self.unsent = []
        else:
            self.unsent += removed

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = self.log_start + round((len(self.rows) - self.log_start) * share)
        self._truncate(offset)

    def _truncate(self, offset: int) -> None:
        self.cutting_to = self._end_after_cut(offset)
        truncation = LogTruncation(self.log).truncate_to(offset, now_ms=self.now_ms)
        carry_out(self.filesystem, truncation.barrier)
        for segment in truncation.removed:
            segment.unlink(self.filesystem)
        self._forget_from(self.cutting_to)
        self.cutting_to = None

    def _end_after_cut(self, offset: int) -> int:
        return max(self.rows[offset].batch_base, self.log_start) if offset < len(self.rows) else len(self.rows)

    def _forget_from(self, end: int) -> None:
        del self.rows[end:]
        self.synced_end = min(self.synced_end, end)
        self.high_watermark = min(self.high_watermark, end)
        # If the log start lies inside the batch that was cut, only offsets are left below it.
        if end > 0 and self.rows[-1].batch_last >= end:
            for offset in range(self.rows[-1].batch_base, end):
                self.rows[offset] = Row(b"", -1, offset, offset, -1)
        sequences = [row.last_sequence for row in self.rows if row.last_sequence >= 0]
        self.next_sequence = sequences[-1] + 1 if sequences else 0

    @rule()
    def flush(self) -> None:
        end = self.log.log_end_offset
        barrier = LogDurability(self.log).flush_barrier()
        carry_out(self.filesystem, barrier)
        if barrier is not None:
            LogDurability(self.log).on_flushed(end)
        self.synced_end = max(self.synced_end, self.log.recovery_point)
        assert self.log.recovery_point == len(self.rows)

    @rule(share=st.floats(0, 1), sizes=sizes)
    def truncate_while_flushing(self, share: float, sizes: list[int]) -> None:
        """A barrier from before a truncation proves nothing about later writes."""
        end = self.log.log_end_offset
        barrier = LogDurability(self.log).flush_barrier()
        before = self.log.recovery_point
        carry_out(self.filesystem, barrier)
        cut = self.log_start + round((len(self.rows) - self.log_start) * share)
        self._truncate(cut)
        kept = len(self.rows)
        self._append(sizes, idempotent=False)
        if barrier is not None:
            LogDurability(self.log).on_flushed(end)
        assert self.log.recovery_point <= max(before, kept)
        self.synced_end = max(self.synced_end, min(self.log.recovery_point, kept))

    @rule(size=st.integers(1, 2000), share=st.floats(0, 1))
    def hold_slice(self, size: int, share: float) -> None:
        offset = self.log_start + round((len(self.rows) - self.log_start) * share)
        read = self.log.read(offset, size, end_offset=len(self.rows))
        if read.slice is not None:
            self.slices = [*self.slices[-5:], (read.slice, read.slice.file.pread(read.slice.size, read.slice.position))]

    # Holes

    @rule()
    def begin_hole(self) -> None:
        """As a round of a directory does: the notes are durable before anything is made."""
        if LogHoles(self.log).pending is not None:
            return
        for path in LogHoles(self.log).take_snapshot():
            self.filesystem.open(path).sync()
            self.filesystem.sync_directory(DIRECTORY)
        self.pending = LogHoles(self.log).begin()
        if self.pending is not None:
            self.noted = self.pending.hole

    @rule()
    def make_hole(self) -> None:
        pending = self.pending
        if pending is not None and not pending.is_read():
            pending.make(self.filesystem)
            LogHoles(self.log).on_made(pending)
            self.pending = None

    @rule()
    def read_no_more(self) -> None:
        self.slices = []

    @rule(share=st.floats(0, 1), holds=st.booleans(), makes=st.booleans())
    def delete_into_a_hole(self, share: float, holds: bool, makes: bool) -> None:
        """As a consumer that deletes what it has read, maybe while another one reads it."""
        if holds:
            self.hold_slice(2000, 0.0)
        self.commit()
        self.delete_prefix(share, send_away=True)
        self.begin_hole()
        if makes:
            self.make_hole()

    @rule(share=st.floats(0, 1), power=st.booleans())
    def die_behind_a_hole(self, share: float, power: bool) -> None:
        """All is synced but the hole."""
        self.flush()
        self.slices = []
        self.make_hole()
        self.delete_into_a_hole(share, holds=False, makes=True)
        if power:
            self.cut_power()
        else:
            self.kill()

    @rule(share=st.one_of(st.just(0.0), st.floats(0, 1)), sizes=sizes, times=st.integers(1, 4))
    def truncate_below_the_log_start(self, share: float, sizes: list[int], times: int) -> None:
        """What comes then begins where the hole is, or was to be: its worker comes late."""
        if not self.log_start:
            return
        first = self.log.segments[0].base_offset
        offset = first + int((self.log_start - first) * share)
        self.cutting_to = offset
        truncation = LogTruncation(self.log).truncate_to(offset, now_ms=self.now_ms)
        carry_out(self.filesystem, truncation.barrier)
        for segment in truncation.removed:
            segment.unlink(self.filesystem)
        self.log_start = self.log.log_start_offset
        assert self.log_start == offset
        self._forget_from(offset)
        self.cutting_to = None
        for _ in range(times):
            self._append(sizes, idempotent=False)
        self.slices = []
        self.make_hole()

    # Stops, crashes and power cuts

    @rule()
    def stop_cleanly(self) -> None:
        self.log.segments.abandon_holes()
        end = self.log.log_end_offset
        barrier = LogDurability(self.log).close()
        carry_out(self.filesystem, barrier)
        if barrier is not None:
            LogDurability(self.log).on_flushed(end)
        for file in LogDurability(self.log).files_to_close():
            file.close()
        self.filesystem.crash_process()
        self._load(clean=True, lowest=len(self.rows))
        self.synced_end = len(self.rows)

    @rule()
    def kill(self) -> None:
        self.filesystem.crash_process()
        self._load(clean=False, lowest=len(self.rows))

    @rule()
    def cut_power(self) -> None:
        self.filesystem.power_cut()
        self._load(clean=False, lowest=self.synced_end)

    @rule(
        after=st.integers(1, 12),
        operation=st.sampled_from(["append", "roll", "truncate", "flush", "delete", "load", "hole"]),
        power=st.booleans(),
        share=st.floats(0, 1),
        sizes=sizes,
    )
    def die_in_the_middle(self, after: int, operation: str, power: bool, share: float, sizes: list[int]) -> None:
        """Crashes before the n-th change to the disk of an operation, or right after it if it has fewer changes."""
        lowest = min(self.synced_end if power else len(self.rows), len(self.rows))
        self.filesystem.crash_at = self.filesystem.operation_count + after
        self.in_flight = []
        self.cutting_to = None
        try:
            self._attempt(operation, share, sizes)
        except SimulatedCrashError:
            if self.cutting_to is not None:
                lowest = min(lowest, self.cutting_to)
                self.synced_end = min(self.synced_end, self.cutting_to)
            self.rows += self.in_flight
        else:
            lowest = min(self.synced_end, len(self.rows)) if power else len(self.rows)
        if power:
            self.filesystem.power_cut()
        else:
            self.filesystem.crash_process()
        self._load(clean=False, lowest=lowest)

    def _attempt(self, operation: str, share: float, sizes: list[int]) -> None:
        if operation == "append":
            self._append(sizes, idempotent=True)
        elif operation == "roll":
            self.log.roll(self.now_ms)
        elif operation == "truncate":
            self._truncate(self.log_start + round((len(self.rows) - self.log_start) * share))
        elif operation == "flush":
            self.flush()
        elif operation == "hole":
            self.begin_hole()
            self.slices = []
            self.make_hole()
        elif operation == "delete":
            self.log.advance_high_watermark(len(self.rows))
            self.high_watermark = len(self.rows)
            self.delete_prefix(share, send_away=True)
        else:
            self.filesystem.lives_count += 1
            load_log(
                LogPlace(
                    filesystem=self.filesystem,
                    directory=DIRECTORY,
                    config=CONFIG,
                    topic_partition=TOPIC_PARTITION,
                    topic_id=TOPIC_ID,
                ),
                KnownLog(**self._known_on_disk(), clean=False),
                now_ms=self.now_ms,
            )

    def _known_on_disk(self) -> dict[str, Any]:
        return {"recovery_point": self.synced_end, "log_start_offset": self.log_start, "hole": self.noted}

    def _load(self, *, clean: bool, lowest: int) -> None:
        self.slices, self.unsent, self.pending = [], [], None
        if not self.filesystem.is_directory(DIRECTORY):
            # The folder itself was never synced: no record in it that isn't deleted was acknowledged as durable.
            assert lowest <= self.log_start
            self.filesystem.make_directories(DIRECTORY)
        cache = SegmentCache(open_max=2)
        self.log = load_log(
            LogPlace(
                filesystem=self.filesystem,
                directory=DIRECTORY,
                config=CONFIG,
                topic_partition=TOPIC_PARTITION,
                topic_id=TOPIC_ID,
                cache=cache,
            ),
            KnownLog(**self._known_on_disk(), clean=clean),
            now_ms=self.now_ms,
        )
        end = self.log.log_end_offset
        assert max(lowest, self.log_start) <= end <= len(self.rows), (
            "a promised record is lost, or the log has more than was written"
        )
        assert end == self.log_start or end == len(self.rows) or self.rows[end].batch_base == end, (
            "half a batch was kept"
        )
        self._forget_from(end)
        self.high_watermark = self.log.high_watermark
        if not clean:
            assert self.log.flush_wanted
            self.flush()
        leftovers = [
            name for name in self.filesystem.listdir(DIRECTORY) if name.endswith((".deleted", ".tmp", ".swap"))
        ]
        assert not leftovers, leftovers

    # What must hold after each step

    @invariant()
    def offsets_are_the_models(self) -> None:
        log = self.log
        log.check_order()
        assert log.log_start_offset == self.log_start
        assert log.log_end_offset == len(self.rows)
        assert log.high_watermark >= self.high_watermark

    @invariant()
    def every_record_is_read_from_every_offset(self) -> None:
        log, end = self.log, len(self.rows)
        for offset in range(self.log_start, end):
            limit = self.random.choice((0, 150, 1000))
            read = log.read(offset, limit, end_offset=end)
            assert read.slice is not None, f"nothing at {offset} of {log}"
            content = read.slice.file.pread(read.slice.size, read.slice.position)
            assert len(content) == len(read.slice)
            found = records_of(content)
            assert found, "the first batch isn't whole"
            assert found[0].offset <= offset <= found[-1].offset
            for record in found:
                if record.offset >= self.log_start:
                    assert record.value == self.rows[record.offset].value
        assert log.read(end, 1000, end_offset=end).slice is None
        for outside in (self.log_start - 1, end + 1):
            assert log.read(outside, 1000, end_offset=end).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    @invariant()
    def nothing_at_or_above_the_end_that_was_given_is_read(self) -> None:
        if self.log_start < len(self.rows):
            offset = self.random.randrange(self.log_start, len(self.rows))
            end = self.random.randrange(offset, len(self.rows) + 1)
            read = self.log.read(offset, 10_000, end_offset=end)
            content = b"" if read.slice is None else read.slice.file.pread(read.slice.size, read.slice.position)
            assert all(record.offset < end for record in records_of(content))
            in_sight = self.log.bytes_between(offset, end, 1 << 30)
            assert in_sight >= len(content)
            assert (in_sight > 0) == (offset < end and self.rows[offset].batch_last < end)

    @invariant()
    def leader_epochs_are_those_of_the_records(self) -> None:
        epochs = self.log.leader_epochs
        for offset in range(self.log_start, len(self.rows)):
            assert epochs.epoch_at(offset) == self.rows[offset].leader_epoch
        entries = epochs.entries()
        assert entries == sorted(set(entries))
        if entries:
            assert entries[0][1] >= self.log_start
            assert entries[-1][1] <= len(self.rows)

    @invariant()
    def slices_hold_what_they_promised(self) -> None:
        for part, content in self.slices:
            if part.token.valid:
                assert part.file.pread(part.size, part.position) == content

    @invariant()
    def the_producer_is_where_its_last_batch_left_it(self) -> None:
        last = [row for row in self.rows[self.log_start :] if row.last_sequence >= 0]
        if last:
            entry = self.log.producer_state.producers[PRODUCER_ID]
            assert entry.last_sequence == last[-1].last_sequence


LogMachine.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
test_any_history_of_a_log = LogMachine.TestCase
