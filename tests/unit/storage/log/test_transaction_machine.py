"""A log with transactions under any sequence of operations, stops and crashes, beside a list of batches.

Protected: a consumer of committed records, which drops aborted transactions as the Java client does, sees the records
of committed transactions and plain ones, no others, and all of them below the last stable offset; after any delete,
truncation or recovery.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.control_records import read_control_record
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import iterate_batches, iterate_records
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.directory.log_starts import make_log_start_visible
from lowtide.storage.log.durability import LogDurability
from lowtide.storage.log.log import AppendedBatch, FollowerAppend, Log, LogConfig, SegmentCache
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.markers import make_marker
from lowtide.storage.log.opening.known_log import KnownLog
from lowtide.storage.log.opening.loader import create_log, load_log
from lowtide.storage.log.producers.open_transactions import CompletedTransaction
from lowtide.storage.log.producers.producer_state import ProducerStateManager
from lowtide.storage.log.producers.snapshots import ProducerSnapshots
from lowtide.storage.log.truncation import LogTruncation
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce
from tests.examples import examples

from .producing import header_of

DIRECTORY = "/disk/orders-0"
CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=80)
TOPIC_PARTITION = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000
PRODUCERS = 3


class Batch(NamedTuple):
    """A batch of the model. `kind` is plain, data, commit or abort."""

    base: int
    last: int
    producer: int
    kind: str


class Transaction(NamedTuple):
    """The offsets of a transaction in the batches; `marker` is -1 while it is open."""

    producer: int
    first: int
    marker: int
    is_aborted: bool


def transactions_of(batches: list[Batch]) -> list[Transaction]:
    found, first = [], {}
    for batch in batches:
        if batch.kind == "data":
            first.setdefault(batch.producer, batch.base)
        elif batch.kind != "plain" and batch.producer in first:
            found.append(Transaction(batch.producer, first.pop(batch.producer), batch.base, batch.kind == "abort"))
    return found + [Transaction(producer, base, -1, is_aborted=False) for producer, base in first.items()]


def seen_by_a_client(content: bytes, offset: int, aborted: list[CompletedTransaction]) -> tuple[list[int], int]:
    """The records that the Java client returns from an answer, by its algorithm; and the offset where it continues."""
    waiting = sorted(aborted, key=lambda entry: entry.first_offset)
    dropped: set[int] = set()
    seen, position = [], offset
    for place, header in iterate_batches(content):
        batch = content[place : place + header.size_bytes]
        while waiting and waiting[0].first_offset <= header.last_offset:
            dropped.add(waiting.pop(0).producer_id)
        position = max(position, header.next_offset)
        if header.is_control:
            control = read_control_record(batch, max_bytes=1 << 16)
            assert control is not None
            if control.type == 0:
                dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            seen += [record.offset for record in iterate_records(batch, max_bytes=1 << 20) if record.offset >= offset]
    return seen, position


def carry_out(filesystem: MemoryFileSystem, barrier: Barrier | None) -> None:
    if barrier is None:
        return
    for file in barrier.files:
        file.sync()
    for source, target in barrier.renames:
        filesystem.rename(source, target)
    for directory in barrier.directories:
        filesystem.sync_directory(directory)


class TransactionMachine(RuleBasedStateMachine):
    """Runs operations on a log and its model, and compares what a consumer sees."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Batch] = []
        self.high_watermark = self.log_start = self.synced_end = 0

    @initialize(seed=st.integers(0, 2**32))
    def create(self, seed: int) -> None:
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
                topic_id=bytes(16),
            ),
            now_ms=NOW_MS,
        )
        self.filesystem.sync_directory("/disk")
        self.filesystem.sync_directory(DIRECTORY)

    @property
    def end(self) -> int:
        return self.log.log_end_offset

    # Operations on a log

    @rule(producer=st.integers(0, PRODUCERS - 1), count=st.integers(1, 3), is_plain=st.booleans())
    def produce(self, producer: int, count: int, is_plain: bool) -> None:
        entry = self.log.producer_state.producers.get(producer)
        keywords: dict[str, Any] = {}
        if not is_plain:
            sequence = entry.last_sequence + 1 if entry is not None else 0
            keywords = {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": sequence,
                "is_transactional": True,
            }
        content = build_batch([(NOW_MS, None, self.random.randbytes(20), ()) for _ in range(count)], **keywords)
        batch = validate_produce(memoryview(content), ValidationRules(), NOW_MS)
        assert isinstance(batch, ValidatedBatch)
        appended = self.log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
        assert isinstance(appended, AppendedBatch)
        self.batches.append(
            Batch(appended.base_offset, appended.last_offset, producer, "plain" if is_plain else "data")
        )

    @rule(producer=st.integers(0, PRODUCERS - 1), is_commit=st.booleans())
    def end_transaction(self, producer: int, is_commit: bool) -> None:
        marker = make_marker(
            producer, 0, is_commit=is_commit, coordinator_epoch=0, epoch_is_bumped=False, now_ms=NOW_MS
        )
        appended = self.log.append_as_leader(marker, leader_epoch=0, now_ms=NOW_MS)
        assert isinstance(appended, AppendedBatch)
        self.batches.append(
            Batch(appended.base_offset, appended.last_offset, producer, "commit" if is_commit else "abort")
        )

    @rule(count=st.integers(5, 30), commits=st.booleans())
    def work(self, count: int, commits: bool) -> None:
        """Repeats the operations above, so that segments have several ends of transactions."""
        for _ in range(count):
            producer = self.random.randrange(PRODUCERS)
            if self.random.random() < 0.6:
                self.produce(producer, self.random.randint(1, 2), is_plain=self.random.random() < 0.2)
            else:
                self.end_transaction(producer, is_commit=self.random.random() < 0.5)
        if commits:
            self.commit(1)

    @rule(share=st.floats(0, 1))
    def commit(self, share: float) -> None:
        self.log.advance_high_watermark(self.high_watermark + round((self.end - self.high_watermark) * share))
        self.high_watermark = self.log.high_watermark

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @rule(share=st.floats(0, 1))
    def delete_prefix(self, share: float) -> None:
        offset = self.log_start + round((self.high_watermark - self.log_start) * share)
        self.log.request_log_start(offset)
        for segment in make_log_start_visible(self.log, offset):
            segment.mark_deleted(self.filesystem)
            segment.unlink(self.filesystem)
        self.log_start = self.log.log_start_offset

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        truncation = LogTruncation(self.log).truncate_to(
            self.log_start + round((self.end - self.log_start) * share), now_ms=NOW_MS
        )
        carry_out(self.filesystem, truncation.barrier)
        for segment in truncation.removed:
            segment.unlink(self.filesystem)
        self._forget()

    def _forget(self) -> None:
        self.batches = [batch for batch in self.batches if batch.last < self.end]
        self.synced_end = min(self.synced_end, self.end)
        self.high_watermark = self.log.high_watermark

    @rule()
    def flush(self) -> None:
        end = self.end
        barrier = LogDurability(self.log).flush_barrier()
        carry_out(self.filesystem, barrier)
        if barrier is not None:
            LogDurability(self.log).on_flushed(end)
        self.synced_end = self.log.recovery_point

    # Stops, crashes and power cuts

    @rule(harm=st.sampled_from(["", "", "", "cut", "empty", "garbage"]))
    def stop_cleanly(self, harm: str) -> None:
        end = self.end
        barrier = LogDurability(self.log).close()
        carry_out(self.filesystem, barrier)
        if barrier is not None:
            LogDurability(self.log).on_flushed(end)
        self.filesystem.crash_process()
        for name in [name for name in self.filesystem.listdir(DIRECTORY) if harm and name.endswith(".txnindex")]:
            content = self.filesystem.read_bytes(f"{DIRECTORY}/{name}")
            changed = {"cut": content[:-1], "empty": b"", "garbage": bytes(len(content))}[harm]
            self.filesystem.write_bytes(f"{DIRECTORY}/{name}", changed)
        self.high_watermark = self.random.choice((self.high_watermark, self.high_watermark, self.log_start))
        self._load(clean=True)

    @rule(power=st.booleans())
    def kill(self, power: bool) -> None:
        if power:
            self.filesystem.power_cut()
        else:
            self.filesystem.crash_process()
        self._load(clean=False)

    def _load(self, *, clean: bool) -> None:
        self.log = load_log(
            LogPlace(
                filesystem=self.filesystem,
                directory=DIRECTORY,
                config=CONFIG,
                topic_partition=TOPIC_PARTITION,
                topic_id=bytes(16),
                cache=SegmentCache(open_max=2),
            ),
            KnownLog(
                recovery_point=self.synced_end,
                log_start_offset=self.log_start,
                high_watermark=self.high_watermark,
                clean=clean,
            ),
            now_ms=NOW_MS,
        )
        self._forget()
        self.flush()

    # What must hold after each step

    def _unstable(self) -> list[Transaction]:
        return [
            entry for entry in transactions_of(self.batches) if entry.marker < 0 or entry.marker >= self.high_watermark
        ]

    @invariant()
    def the_last_stable_offset_is_right(self) -> None:
        last_stable = self.log.last_stable_offset
        assert self.log_start <= last_stable <= max(self.high_watermark, self.log_start)
        earliest = min((entry.first for entry in self._unstable()), default=self.high_watermark)
        assert last_stable >= max(min(earliest, self.high_watermark), self.log_start), "no transaction holds it back"
        for transaction in self._unstable():
            if transaction.first >= self.log_start:
                assert last_stable <= transaction.first, "an unstable record is reported as stable"
            # A power cut may take a snapshot, and with it the deleted part of a transaction; never the part that can be
            # read.
            for batch in self.batches:
                is_part = (
                    batch.producer == transaction.producer and batch.base >= transaction.first and batch.kind == "data"
                )
                if (
                    is_part
                    and batch.base >= self.log_start
                    and (transaction.marker < 0 or batch.base < transaction.marker)
                ):
                    assert last_stable <= batch.base

    def _expected(self, offset: int, end: int) -> list[int]:
        aborted = [entry for entry in transactions_of(self.batches) if entry.is_aborted]
        offsets = []
        for batch in self.batches:
            is_gone = batch.kind == "data" and any(
                entry.producer == batch.producer and entry.first <= batch.base < entry.marker for entry in aborted
            )
            if batch.kind in ("plain", "data") and not is_gone and batch.last < end:
                offsets += [number for number in range(batch.base, batch.last + 1) if number >= offset]
        return offsets

    @invariant()
    def a_client_sees_what_is_committed(self) -> None:
        last_stable = self.log.last_stable_offset
        if self.log_start >= last_stable:
            return
        offset = start = self.random.randrange(self.log_start, last_stable)
        seen = []
        while offset < last_stable:
            read = self.log.read(offset, self.random.choice((0, 200, 2000)), end_offset=last_stable)
            if read.slice is None:
                break
            content = read.slice.file.pread(read.slice.size, read.slice.position)
            aborted = self.log.aborted_transactions(read.slice, offset, last_stable)
            assert aborted == [
                entry for entry in aborted if entry.last_offset >= offset and entry.first_offset < last_stable
            ]
            part, offset = seen_by_a_client(content, offset, aborted)
            seen += part
        assert seen == self._expected(start, last_stable)

    @rule(power=st.booleans())
    def copy_to_a_follower(self, power: bool) -> None:
        filesystem = MemoryFileSystem(self.random)
        follower = create_log(
            LogPlace(
                filesystem=filesystem,
                directory=DIRECTORY,
                config=CONFIG,
                topic_partition=TOPIC_PARTITION,
                topic_id=bytes(16),
            ),
            now_ms=NOW_MS,
            log_start_offset=self.log_start,
        )
        offset = self.log_start
        while offset < self.end:
            read = self.log.read(offset, 1 << 20, end_offset=self.end)
            assert read.slice is not None
            content = memoryview(read.slice.file.pread(read.slice.size, read.slice.position))
            assert isinstance(follower.append_as_follower(content, now_ms=NOW_MS), FollowerAppend)
            offset = follower.log_end_offset
        follower.advance_high_watermark(self.high_watermark)
        assert follower.last_stable_offset >= self.log.last_stable_offset
        if self.log_start == 0:
            assert follower.last_stable_offset == self.log.last_stable_offset
        self._compare_aborted(follower)

    def _compare_aborted(self, follower: Log) -> None:
        last_stable = self.log.last_stable_offset
        for offset in range(self.log_start, last_stable):
            read = follower.read(offset, 1 << 20, end_offset=last_stable)
            if read.slice is not None:
                seen, position = seen_by_a_client(
                    read.slice.file.pread(read.slice.size, read.slice.position),
                    offset,
                    follower.aborted_transactions(read.slice, offset, last_stable),
                )
                assert seen == self._expected(offset, position)


TransactionMachine.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
test_any_history_of_transactions = TransactionMachine.TestCase


def test_a_snapshot_that_is_newer_than_what_is_committed_does_not_decide() -> None:
    """A marker that another leader may not have leaves its transaction undecided, also after a restart."""
    machine = TransactionMachine()
    machine.create(1)
    machine.produce(0, 1, is_plain=False)
    machine.end_transaction(0, is_commit=True)
    machine.log.roll(NOW_MS)
    assert isinstance(machine.log.files.snapshots, ProducerSnapshots)
    machine.stop_cleanly("")
    machine.commit(0.0)
    assert machine.log.last_stable_offset == 0
    machine.log.advance_high_watermark(1)
    assert machine.log.last_stable_offset == 0
    machine.log.advance_high_watermark(2)
    assert machine.log.last_stable_offset == 2


def test_aborted_transactions_are_found_again_when_a_power_cut_removes_what_a_roll_wrote() -> None:
    """All was flushed, then the segment was closed: the recovery point does not cover the new file."""
    machine = TransactionMachine()
    machine.create(1)
    machine.produce(0, 1, is_plain=False)
    machine.end_transaction(0, is_commit=False)
    machine.produce(1, 1, is_plain=True)
    machine.flush()
    machine.commit(1)
    machine.roll()
    machine.filesystem.unlink(f"{DIRECTORY}/{0:020}.txnindex")
    machine.kill(power=False)
    machine.commit(1)
    machine.a_client_sees_what_is_committed()
    read = machine.log.read(0, 1 << 20, end_offset=machine.end)
    assert read.slice is not None
    assert [entry.producer_id for entry in machine.log.aborted_transactions(read.slice, 0, machine.end)] == [0]


def test_what_was_truncated_ends_nothing() -> None:
    """Protects the index from entries of truncated markers: the next marker may get a lower offset."""
    machine = TransactionMachine()
    machine.create(1)
    machine.produce(0, 3, is_plain=False)
    machine.end_transaction(0, is_commit=False)
    machine.produce(0, 1, is_plain=False)
    machine.end_transaction(0, is_commit=False)
    carry_out(machine.filesystem, LogTruncation(machine.log).truncate_to(3, now_ms=NOW_MS).barrier)
    machine.log.append_as_leader(
        make_marker(0, 0, is_commit=False, coordinator_epoch=0, epoch_is_bumped=False, now_ms=NOW_MS),
        leader_epoch=0,
        now_ms=NOW_MS,
    )
    machine.log.advance_high_watermark(4)
    read = machine.log.read(0, 1000, end_offset=4)
    assert read.slice is not None
    assert machine.log.aborted_transactions(read.slice, 0, 4) == [CompletedTransaction(0, 0, 3, True, 4)]
    LogTruncation(machine.log).truncate_to(0, now_ms=NOW_MS)
    assert machine.log.last_stable_offset == 0
    assert not machine.log.transactions.any


def test_late_and_old_markers_are_refused() -> None:
    """Protects a transaction from the marker of the previous one, and from a coordinator that was replaced."""
    state = ProducerStateManager()
    state.update(header_of(7, 4, 0, is_transactional=True), base_offset=0, now_ms=1)
    assert state.check_marker(7, 3, 9) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert state.check_marker(7, 4, 9, epoch_is_bumped=True) is ErrorCode.INVALID_PRODUCER_EPOCH
    control = make_marker(7, 4, is_commit=True, coordinator_epoch=9, epoch_is_bumped=False, now_ms=1).control
    state.end_transaction(7, 4, control, marker_offset=1, timestamp=1, now_ms=1)
    assert state.check_marker(7, 4, 8) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert (
        state.check_marker(7, 5, 9, epoch_is_bumped=True) == state.check_marker(8, 0, 0) == state.check_marker(7, 4, 9)
    )
