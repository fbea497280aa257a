"""Long searches of ListOffsets: in batches that decompress to much or have many records, or over very many batches.

Rows are searched one after the other. Large batches are searched in the batch lane; everything else continues in the
event loop, and other requests run in between. A row is looked up again each time it continues, so changes of
leadership, truncations and deletes in the meantime take effect.
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
"""The most steps of a row: each passes one batch of at most a million records, or thousands of batches."""


class Unfinished(NamedTuple):
    """A row that cannot be answered yet, and the continuation of its search."""

    partition: Partition
    step: LongSearch | SearchOn


class Progress(NamedTuple):
    """The progress of a search. The log may have changed since."""

    start_offset: Offset = 0
    """Where the search continues."""
    found: TimestampedOffset | None = None
    """The result, if it is still in the log."""
    largest: TimestampedOffset | None = None
    """As in `SearchOn`."""


class LookUp(Protocol[AnswerT_co]):
    """Looks a row up."""

    def __call__(self, progress: Progress) -> AnswerT_co | Unfinished: ...


class LongRow(NamedTuple, Generic[RowT]):
    """A long row: `put` gets its answer, and `fail` makes the answer if a batch can't be read."""

    unfinished: Unfinished
    look_up: LookUp[RowT]
    put: Callable[[RowT], None]
    fail: Callable[[Exception], RowT]
    steps_left: int = STEPS_MAX


class TimestampSearches(Generic[RowT]):
    """The long rows of one request."""

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
        self._rows.append(row)

    def start(self, response: Any) -> Pending[Any]:
        """Answers with `response` when all rows have their answers."""
        self._response = response
        self._continue()
        return self._pending

    def _continue(self) -> None:
        if not self._rows:
            self._pending.complete(self._response)
            return
        partition, step = self._rows[0].unfinished
        if isinstance(step, LongSearch) and self._read(partition, step):
            return
        # If the batch is gone, the search starts again.
        progress = Progress(step.start_offset, largest=step.largest) if isinstance(step, SearchOn) else Progress()
        self._turns.call_later(0, partial(self._guarded, self._look_up_again, progress))

    def _read(self, partition: Partition, step: LongSearch) -> bool:
        """Submits the search of a batch. Returns False if the batch was deleted or truncated."""
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
            self._continue()
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
        self._continue()

    def _guarded(self, step: Callable[..., None], *arguments: Any) -> None:
        """Runs a step. An unexpected error closes one connection."""
        if self._pending.abandoned:
            return
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001  it is logged with its traceback
            self._log.error("request failed", request="ListOffsets", exc_info=error)
            self._pending.fail()


def _search(read: FileSlice, step: LongSearch, room: DecompressionRoom) -> TimestampedOffset | None:
    """Runs in the worker."""
    content = read.file.pread(read.size, read.position)
    return find_in_batch(content, step.timestamp_ms, step.start_offset, room)
