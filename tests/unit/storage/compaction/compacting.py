"""A log in memory that is compacted: the test triggers each step of the worker and each barrier of the committer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.control_records import ControlRecord, ControlRecordType
from lowtide.protocol.records import Record, iterate_batches, iterate_records, read_batch_header
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.committer import Barrier, OnDone
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.heavy_work import NO_RATE_LIMIT, Work, WorkListener, WorkStep
from lowtide.storage.compaction.cleanable import Cleanable, LogEnds, find_cleanable
from lowtide.storage.compaction.log_cleaning import CleaningLimits, CleaningPlace, CleaningReport, LogCleaning
from lowtide.storage.compaction.offset_map import ENTRY_BYTES
from lowtide.storage.errors import StorageError, is_passing
from lowtide.storage.log.cleaned_segment import remove_cleaned
from lowtide.storage.log.durability import LogDurability
from lowtide.storage.log.log import FollowerAppend, Log, LogConfig, RemovedSegment
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.opening.known_log import KnownLog
from lowtide.storage.log.opening.loader import create_log, load_log
from lowtide.storage.log.retention.segment_ages import SegmentAges
from tests.markers import build_end_transaction_marker

DIRECTORY = "/disk/t-0"
NOW_MS = 1_700_000_000_000
LIMIT = 1 << 20
CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    index_interval_bytes=100,
    delete_retention_ms=1000,
    min_cleanable_dirty_ratio=0.0,
)


class StepwiseCommitter:
    """Executes barriers one at a time, when the test calls for it."""

    def __init__(self, filesystem: MemoryFileSystem) -> None:
        self._filesystem = filesystem
        self.waiting: deque[tuple[Barrier, OnDone]] = deque()

    def submit(self, barrier: Barrier, on_done: OnDone) -> None:
        self.waiting.append((barrier, on_done))

    def step(self) -> None:
        barrier, on_done = self.waiting.popleft()
        error: OSError | None = None
        try:
            for file in barrier.files:
                file.sync()
            for source, target in barrier.renames:
                self._filesystem.rename(source, target)
            for directory in barrier.directories:
                self._filesystem.sync_directory(directory)
        except OSError as failed:
            error = failed
        on_done(error)

    def close(self) -> None:
        while self.waiting:
            self.step()


class StepwiseWorker:
    """Executes the steps of one piece of work one at a time, when the test calls for it."""

    def __init__(self, filesystem: MemoryFileSystem) -> None:
        self._filesystem = filesystem
        self._steps: Iterator[WorkStep] | None = None
        self._listener: WorkListener | None = None
        self._cancelled = False

    def begin(
        self, work: Work, argument: bytes, listener: WorkListener, bytes_per_second: float = NO_RATE_LIMIT
    ) -> StepwiseWorker:
        assert self._steps is None
        self._steps, self._listener, self._cancelled = work(self._filesystem, argument), listener, False
        return self

    def cancel(self) -> None:
        self._cancelled = True

    def step(self) -> bool:
        """Returns False when there is nothing to do."""
        if self._steps is None or self._listener is None:
            return False
        step = None if self._cancelled else next(self._steps, None)
        if step is None:
            self._steps.close()  # type: ignore[attr-defined]
            self._steps, listener = None, self._listener
            listener.on_end(None)
        elif step.message is not None:
            self._listener.on_message(step.message)
        return True

    def close(self) -> None:
        self._steps = None


class CompactedLog:
    """A log on a memory disk with its compaction. `log` is another object after `reopen`."""

    def __init__(self, filesystem: MemoryFileSystem, config: LogConfig = CONFIG) -> None:
        self.filesystem = filesystem
        self.config = config
        self.now_ms = NOW_MS
        self.committer = StepwiseCommitter(filesystem)
        self.worker = StepwiseWorker(filesystem)
        self.failures: list[OSError | StorageError] = []
        self.stalled: list[Callable[[], None]] = []
        self.removed: list[RemovedSegment] = []
        self.reports: list[CleaningReport] = []
        self.log = create_log(
            LogPlace(
                filesystem=filesystem,
                directory=DIRECTORY,
                config=config,
                topic_partition=TopicPartition("t", 0),
                topic_id=bytes(16),
            ),
            now_ms=self.now_ms,
        )
        self.cleaned_to: int | None = None

    # ------------------------------------------------------------------ the log
    def append(self, *records: tuple[bytes | None, bytes | None], **keywords: object) -> int:
        """A batch of (key, value); it is committed. Returns its base offset."""
        rows = [(self.now_ms, key, value, ()) for key, value in records]
        base_offset = self.log.log_end_offset
        self.append_batch(build_batch(rows, base_offset=base_offset, leader_epoch=0, **keywords))
        return base_offset

    def append_batch(self, batch: bytes) -> None:
        appended = self.log.append_as_follower(memoryview(batch), now_ms=self.now_ms)
        assert isinstance(appended, FollowerAppend), appended
        self.log.advance_high_watermark(self.log.log_end_offset)
        self.log.transactions.settle(self.log.high_watermark)

    def roll(self) -> None:
        self.log.roll(self.now_ms)

    def flush(self) -> None:
        end = self.log.log_end_offset
        barrier = LogDurability(self.log).flush_barrier()
        if barrier is not None:
            self.committer.submit(barrier, lambda _error: None)
            while self.committer.waiting:
                self.committer.step()
            LogDurability(self.log).on_flushed(end)

    def reopen(self, *, clean: bool = False, high_watermark: int | None = None) -> None:
        """After a stop or a crash."""
        before = self.log
        self.cleaned_to = before.swaps.cleaned_to
        self.worker.close()
        self.committer.waiting.clear()
        self.log = load_log(
            LogPlace(
                filesystem=self.filesystem,
                directory=DIRECTORY,
                config=self.config,
                topic_partition=TopicPartition("t", 0),
                topic_id=bytes(16),
            ),
            KnownLog(
                recovery_point=before.recovery_point,
                log_start_offset=before.log_start_offset,
                clean=clean,
                high_watermark=before.high_watermark if high_watermark is None else high_watermark,
            ),
            now_ms=self.now_ms,
        )
        self.log.swaps.cleaned_to = self.cleaned_to

    # ------------------------------------------------------------------ compaction
    def cleanable(self) -> Cleanable:
        log = self.log
        ends = LogEnds(log.log_start_offset, log.last_stable_offset, log.recovery_point, log.log_end_offset)
        return find_cleanable(
            log.segments, ends, log.swaps.cleaned_to, self.config, _Times(self.filesystem), self.now_ms
        )

    def begin_cleaning(self, entries: int = 10_000) -> LogCleaning | None:
        """Starts a compaction, if anything may be compacted."""
        cleanable = self.cleanable()
        if not cleanable.dirty_bytes:
            return None
        place = CleaningPlace(
            clock=_StandingClock(),
            committer=self.committer,
            worker=self.worker,
            is_here=lambda log: log is self.log,
            remove_later=lambda _log, removed: self.removed.extend(removed),
            retry_later=self.stalled.append,
            remove_cleaned=self.remove_cleaned,
            on_failure=self.failures.append,
        )
        cleaning = LogCleaning(self.log, place, self.reports.append)
        limits = CleaningLimits(
            map_bytes=entries * ENTRY_BYTES, decompressed_bytes_max=LIMIT, bytes_per_second=NO_RATE_LIMIT
        )
        cleaning.begin(cleanable, limits, self.now_ms)
        return cleaning

    def remove_cleaned(self, log: Log, then: Callable[[], None]) -> None:
        """Calls back once they are removed; a file without room for its removal is retried when the test repeats
        stalled steps.
        """
        try:
            remove_cleaned(self.filesystem, log.directory)
        except OSError as error:
            if is_passing(error):
                self.stalled.append(lambda: self.remove_cleaned(log, then))
                return
            self.failures.append(error)
        then()

    def step(self) -> bool:
        """One step of the committer if it has a barrier, else one of the worker.

        Returns False when neither has anything to do.
        """
        if self.committer.waiting:
            self.committer.step()
            return True
        return self.worker.step()

    def clean(self, entries: int = 10_000, between: Callable[[], None] = lambda: None) -> CleaningReport | None:
        """Runs a whole compaction; `between` is called between two steps."""
        if self.begin_cleaning(entries) is None:
            return None
        count = len(self.reports)
        while self.step():
            between()
        assert len(self.reports) == count + 1
        return self.reports[-1]

    # ------------------------------------------------------------------ what is in it
    def batches(self) -> list[bytes]:
        """All of the log, read segment by segment."""
        found = []
        for segment in self.log.segments:
            content = self.filesystem.read_bytes(segment.path)
            found += [content[at : at + header.size_bytes] for at, header in iterate_batches(content)]
        return found

    def records(self) -> list[Record]:
        """All records except markers; those of aborted transactions are included."""
        return [
            record
            for batch in self.batches()
            if not read_batch_header(batch).is_control
            for record in iterate_records(batch, max_bytes=LIMIT)
        ]

    def rows(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(record.offset, record.key, record.value) for record in self.records()]

    def contents(self) -> list[bytes]:
        """All of the log, as a follower receives it."""
        return [
            self.filesystem.read_bytes(segment.path)[position : position + header.size_bytes]
            for segment in self.log.segments
            for position, header in segment.batches(0)
        ]

    def gaps(self) -> list[tuple[int, int]]:
        """The end of a segment and the base offset of the next one, wherever the two differ."""
        ends = [
            max((header.next_offset for _, header in segment.batches(0)), default=segment.base_offset)
            for segment in self.log.segments
        ]
        return [
            (end, after.base_offset)
            for end, after in zip(ends, self.log.segments[1:], strict=False)
            if end != after.base_offset
        ]

    def names(self) -> list[str]:
        return [name for name in self.filesystem.listdir(DIRECTORY) if not name.endswith((".snapshot", "-checkpoint"))]


def abort(log: CompactedLog, producer_id: int) -> None:
    end(log, producer_id, ControlRecordType.ABORT)


def end(log: CompactedLog, producer_id: int, kind: ControlRecordType) -> None:
    log.append_batch(
        build_end_transaction_marker(
            ControlRecord(kind, 0),
            timestamp_ms=log.now_ms,
            producer_id=producer_id,
            producer_epoch=0,
            base_offset=log.log.log_end_offset,
        )
    )


def produce(log: CompactedLog, producer_id: int, sequence: int, *keys: bytes) -> int:
    rows = [(key, b"by %d" % producer_id) for key in keys]
    return log.append(*rows, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True)


class _StandingClock:
    @staticmethod
    def monotonic_ms() -> int:
        return 0

    @staticmethod
    def wall_ms() -> int:
        return NOW_MS


class _Times:
    def __init__(self, filesystem: MemoryFileSystem) -> None:
        self._ages = SegmentAges(filesystem)

    def first_timestamp(self, segment: object) -> int:
        return -1

    def modified_ms(self, segment: object) -> int:
        return -1

    def largest_timestamp(self, segment: object) -> int:
        return self._ages.largest_timestamp(segment)
