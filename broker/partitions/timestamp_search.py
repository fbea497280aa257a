"""Searches of ListOffsets that take long: in batches that decompress to much or hold many records, or over very many batches.

One row after the other: what a thread has to look into is read and searched in the batch lane, anything else continues in the event loop,
where other requests run in between. Each time a row continues it is looked up again, so leadership, truncation and deletes that came
meanwhile count.

Does not decide what a row is answered with (`handlers/list_offsets`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from lowtide.broker.pending import Pending
from lowtide.protocol.types import NO_LEADER_EPOCH, Offset
from lowtide.storage.log.timestamps import (
    DECOMPRESSED_BYTES_MAX,
    NO_RECORD,
    LongSearch,
    SearchOn,
    TimestampedOffset,
    find_in_batch,
)

if TYPE_CHECKING:
    from lowtide.broker.partitions.batch_lane import BatchLane
    from lowtide.broker.turns import Turns
    from lowtide.replication.partition import Partition
    from lowtide.storage.log.segments.segment_file import FileSlice
    from lowtide.storage.log.validation.decompression_room import DecompressionRoom

RowT = TypeVar("RowT")
AnswerT_co = TypeVar("AnswerT_co", covariant=True)

STEPS_MAX: Final = 10_000
"""How often one row may continue: each time past one batch of at most a million records, or past thousands of batches."""


class Unfinished(NamedTuple):
    """A row that cannot be answered yet, and the continuation of its search."""

    partition: Partition
    step: LongSearch | SearchOn


class Progress(NamedTuple):
    """How far the search for a row is. The log may have changed since."""

    start_offset: Offset = 0
    """Where it continues."""
    found: TimestampedOffset | None = None
    """What was found, which ends the search if it is still there."""
    largest: TimestampedOffset | None = None
    """As in `SearchOn`."""


class LookUp(Protocol[AnswerT_co]):
    """Looks a row up."""

    def __call__(self, progress: Progress) -> AnswerT_co | Unfinished: ...


class LongRow(NamedTuple, Generic[RowT]):
    """A row that takes long: `put` gets its answer, `fail` makes that of a row whose batch can't be read."""

    unfinished: Unfinished
    look_up: LookUp[RowT]
    put: Callable[[RowT], None]
    fail: Callable[[Exception], RowT]
    steps_left: int = STEPS_MAX


class TimestampSearches(Generic[RowT]):
    """The rows of one request that take long."""

    def __init__(self, turns: Turns, lane: BatchLane, log: Any) -> None:
        self._turns = turns
        self._lane = lane
        self._log = log
        self._rows: deque[LongRow[RowT]] = deque()
        self._pending: Pending[Any] = Pending()
        self._response: Any = None

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, row: LongRow[RowT]) -> None:
        """Search on for a row."""
        self._rows.append(row)

    def start(self, response: Any) -> Pending[Any]:
        """Answer with `response` when all rows are in their places."""
        self._response = response
        self._go_on()
        return self._pending

    def _go_on(self) -> None:
        if not self._rows:
            self._pending.complete(self._response)
            return
        partition, step = self._rows[0].unfinished
        if isinstance(step, LongSearch) and self._read(partition, step):
            return
        # A batch that has gone: from the beginning.
        progress = Progress(step.start_offset, largest=step.largest) if isinstance(step, SearchOn) else Progress()
        self._turns.call_later(0, partial(self._guarded, self._look_up_again, progress))

    def _read(self, partition: Partition, step: LongSearch) -> bool:
        """Have the batch searched; False if it was deleted or truncated meanwhile."""
        log = partition.log
        read = log.read(max(step.base_offset, log.log_start_offset), step.size_bytes, end_offset=log.log_end_offset)
        if read.slice is None or step.next_offset <= log.log_start_offset:
            return False
        work = partial(_search, read.slice, step)
        self._lane.begin(DECOMPRESSED_BYTES_MAX).submit(
            work, partial(self._guarded, self._on_searched, step, read.slice)
        )
        return True

    def _on_searched(
        self, step: LongSearch, read: FileSlice, outcome: TimestampedOffset | BaseException | None
    ) -> None:
        if not read.token.valid:
            self._look_up_again(Progress())
        elif isinstance(outcome, Exception):
            row = self._rows.popleft()
            row.put(row.fail(outcome))
            self._go_on()
        elif step.timestamp_ms is None:
            assert not isinstance(outcome, BaseException)
            largest = outcome or TimestampedOffset(step.next_offset, NO_RECORD, NO_LEADER_EPOCH)
            self._look_up_again(Progress(step.next_offset, largest=largest))
        elif isinstance(outcome, TimestampedOffset):
            self._look_up_again(Progress(step.start_offset, outcome))
        else:
            self._look_up_again(Progress(step.next_offset))

    def _look_up_again(self, progress: Progress) -> None:
        row = self._rows.popleft()
        again = row.look_up(progress)
        if not isinstance(again, Unfinished):
            row.put(again)
        elif row.steps_left:
            self._rows.appendleft(row._replace(unfinished=again, steps_left=row.steps_left - 1))
        else:
            row.put(row.fail(TimeoutError(f"the search has taken {STEPS_MAX} steps")))
        self._go_on()

    def _guarded(self, step: Callable[..., None], *arguments: Any) -> None:
        """A bug of ours costs one connection."""
        if self._pending.abandoned:
            return
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001  it is logged with its traceback
            self._log.error("request failed", request="ListOffsets", exc_info=error)
            self._pending.fail()


def _search(read: FileSlice, step: LongSearch, room: DecompressionRoom) -> TimestampedOffset | None:
    """In the worker."""
    content = read.file.pread(min(read.size, step.size_bytes), read.position)
    return find_in_batch(content, step.timestamp_ms, step.start_offset, room)
