"""Chooses the steps until no file of a log has an erased record, and rewrites segments without these.

Erased are the records below the log start (`next_step`), and those that erasures name (`segment_to_erase`).

| step (`next_step`) | |
|---|---|
| `REMOVE_SEGMENTS` | segments wholly below the log start leave the log; the active one is rolled first |
| `PUNCH` | the deleted records end with a batch: a hole is enough (`directory_holes.py`) |
| `REWRITE` | a batch straddles the log start, or there are no holes: `LogErasure` |

`LogErasure` closes the segment if it is active, rewrites it in a worker (`erasing.py`), and swaps it in.

Guards: the log start is durable and visible before anything begins (rule DR1); an erasure is committed, and on the
disk; a swap is used only while the log is unchanged (`segment_swap.py`); compaction and erasing of a log exclude each
other (`SegmentSwaps.is_taken`); the state of the producers is durable before their batches go; once a segment is
rewritten, slices of the old file that weren't sent yet are invalid.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from lowtide.protocol.offset_ranges import NO_OFFSETS, OffsetRanges
from lowtide.protocol.types import Offset
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem import FileToSync
from lowtide.storage.checkpoint import joined
from lowtide.storage.compaction.erasing import ErasureOrder, ErasureProgress, SegmentErasure
from lowtide.storage.errors import DamagedSegmentError, StorageError, is_passing
from lowtide.storage.log.log_holes import LogHoles
from lowtide.storage.log.segment_swap import CleanedGroup, SegmentVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.protocol.types import ProducerId
    from lowtide.storage.directory.log_settings import DirectoryPorts
    from lowtide.storage.log.log import Log
    from lowtide.storage.log.producers.open_transactions import CompletedTransaction
    from lowtide.storage.log.segments.segment import Segment
    from lowtide.storage.log.segments.segment_files import RemovedSegment


RESTS_PER_PASS: Final = 3
"""A log rests for so many times as long as a pass has rewritten: at most a quarter of the time goes into it."""

REST_MAX_MS: Final = 15_000
"""The longest rest: a request waits for it and for two passes, by default at most one minute."""


class ErasureStep(Enum):
    """What comes next."""

    NOTHING = "no record below the log start is in the log's segments"
    REMOVE_SEGMENTS = "segments are wholly below the log start"
    PUNCH = "whole batches are deleted"
    REWRITE = "a batch straddles the log start, or no hole can be made"


def has_segments_below_start(log: Log) -> bool:
    """Returns whether a segment lies wholly below the log start."""
    segments = log.segments
    return len(segments) > 1 and segments[1].base_offset <= log.log_start_offset


def next_step(log: Log, *, makes_holes: bool) -> ErasureStep:
    """Returns what erasing a log needs now. Errors: StorageError."""
    start, segment = log.log_start_offset, log.segments[0]
    if has_segments_below_start(log):
        return ErasureStep.REMOVE_SEGMENTS
    if not segment.size or segment.gone_offset >= start:
        return ErasureStep.NOTHING
    place = segment.find(start)
    if place is not None and place.base_offset < start:
        return ErasureStep.REWRITE
    if (segment.size if place is None else place.position) <= segment.punched:
        return ErasureStep.NOTHING
    # A hole ends where a batch begins, or the log ends; offsets may be missing between its last batch and the next
    # segment.
    if makes_holes and LogHoles(log).are_allowed and (place is not None or start == log.log_end_offset):
        return ErasureStep.PUNCH
    return ErasureStep.REMOVE_SEGMENTS if place is None and segment.is_pinned else ErasureStep.REWRITE


def segment_to_erase(log: Log) -> Segment | None:
    """Returns the first segment with records to be erased that an erasure names. Drops what is in no segment."""
    erasures, segments = log.erasures, log.segments
    if not erasures.pending:
        return None
    gone = max(segments.bases[0], segments[0].gone_offset)
    if gone > erasures.first_offset:
        erasures.on_rewritten(OffsetRanges([(Offset(0), gone - 1)]))
    erasures.begin(min(log.high_watermark, log.recovery_point))
    if erasures.dirty:
        log.flush_wanted = True
        log.upkeep_queue[log] = None
    erasable = erasures.to_erase()
    return segments[max(segments.number_of(erasable.first), 0)] if erasable else None


def bytes_to_write(log: Log, segment: Segment) -> int:
    """Returns the most bytes that a segment has once its erased records are gone. Errors: StorageError."""
    place = segment.find(log.log_start_offset)
    return 0 if place is None else segment.size - place.position


class RewritingPasses:
    """Decides when a log is rewritten for erasures: once through its segments, then it rests.

    Erasures that arrive meanwhile are done together in the next pass. Otherwise an erasure a minute would rewrite a
    large log all the time. A log that has rested begins at once.
    """

    def __init__(self) -> None:
        self._last_offset: Offset = -1
        """The base offset of the segment rewritten last in this pass; -1 between two passes."""
        self._busy_ms = 0
        self._ended_ms = 0
        self._rests_until_ms = 0

    def may_rewrite(self, segment: Segment | None, now_ms: int) -> bool:
        """Returns whether `segment` is rewritten now. It is the first one with something to erase, if there is one."""
        if self._last_offset >= 0 and (segment is None or segment.base_offset <= self._last_offset):
            self._rests_until_ms = self._ended_ms + min(RESTS_PER_PASS * self._busy_ms, REST_MAX_MS)
            self._last_offset, self._busy_ms = -1, 0
        return segment is not None and now_ms >= self._rests_until_ms

    def on_rewritten(self, segment: Segment, begun_ms: int, now_ms: int) -> None:
        """Notes that rewriting a segment has ended, with or without success."""
        self._last_offset = segment.base_offset
        self._busy_ms += max(now_ms - begun_ms, 0)
        self._ended_ms = now_ms


class LogErasure:
    """Rewrites one segment. `begin` is called once; `on_end` is called once, with the error if there was one.

    If the log has changed meanwhile, there is no error; the caller checks the log again.
    """

    def __init__(
        self,
        log: Log,
        segment: Segment,
        ports: DirectoryPorts,
        is_here: Callable[[Log], bool],
        remove: Callable[[Log, list[RemovedSegment]], None],
        on_end: Callable[[OSError | StorageError | None], None],
    ) -> None:
        """`is_here` returns whether the log is still the directory's; `remove` gets the replaced segment."""
        self.log = log
        self.segment = segment
        self.needs_room: OSError | None = None
        """Why a name lacks room: then `name_files` is called again."""
        self.needed_bytes = bytes_to_write(log, segment)
        """The most that the new segment takes."""
        self.written_bytes = 0
        """The size of the new segment, once it is written."""
        self._ports = ports
        self._is_here = is_here
        self._remove = remove
        self._on_end = on_end
        self._log_start_offset = log.log_start_offset
        self._erased = NO_OFFSETS
        """What the new segment is written without, besides the records below the log start."""
        self._seen: list[SegmentVersion] = []
        self._taken_bytes = 0
        self._paused: SegmentErasure | None = None
        self._removed: list[RemovedSegment] = []
        self._state: list[Barrier] = []

    def begin(self) -> None:
        """Begins to rewrite the segment. Errors: StorageError, OSError; then it isn't begun."""
        log, filesystem, segment = self.log, self._ports.filesystem, self.segment
        if segment.is_pinned:
            log.roll(self._ports.clock.wall_ms())
        place = segment.find(self._log_start_offset)
        end_offset = log.segments[log.segments.number_of(segment.base_offset) + 1].base_offset
        self._erased = log.erasures.to_erase().between(segment.base_offset, end_offset - 1)
        order = ErasureOrder(
            directory=log.directory,
            base_offset=segment.base_offset,
            size=segment.size,
            log_start_offset=self._log_start_offset,
            position=segment.size if place is None else place.position,
            erased=self._erased,
            frames=_frames(log, end_offset),
            aborted=_aborted(log, segment.base_offset),
        )
        paths = LogHoles(log).take_snapshot_for_erasure()
        files = tuple(FileToSync(filesystem, path) for path in paths)
        self._state = [Barrier(files=files, directories=(log.directory,) if files else ())]
        self._seen = log.swaps.versions_below(segment.base_offset + 1)[-1:]
        log.swaps.take()
        self._submit(SegmentErasure(filesystem, order))

    def _submit(self, work: SegmentErasure) -> None:
        self._ports.worker.submit(partial(_step, work), partial(self._on_step, work))

    def resume(self) -> None:
        """Continues a paused erasure when the rate limit allows more bytes."""
        work = self._paused
        if work is not None and not self._ports.erasing.is_used_up:
            self._paused = None
            self._submit(work)

    def _on_step(self, work: SegmentErasure, outcome: object) -> None:
        is_unchanged = self._is_unchanged()
        if isinstance(outcome, ErasureProgress):
            if not is_unchanged:
                self._abandon(work, None)
            elif outcome is ErasureProgress.NOTHING:
                self._on_erased()
                self._end(None)
            elif outcome is ErasureProgress.MORE:
                self._ports.erasing.take(work.moved_bytes - self._taken_bytes)
                self._taken_bytes = work.moved_bytes
                self._paused = work
                self.resume()
            else:
                self._swap(work)
        elif isinstance(outcome, OSError | StorageError):
            # An error that a worker found in a file that was cut or removed says nothing.
            self._abandon(work, outcome if is_unchanged or is_passing(outcome) else None)
        elif isinstance(outcome, BaseException):
            raise outcome

    def _is_unchanged(self) -> bool:
        return self._is_here(self.log) and self.log.swaps.are_unchanged(self._seen)

    def _abandon(self, work: SegmentErasure, error: OSError | StorageError | None) -> None:
        """Removes the new files; those of a log that has left are removed with its folder, or at the next start."""
        if not self._is_here(self.log):
            self._end(None)  # The broker may stop, and the worker be closed.
            return

        def abandoned(outcome: object) -> None:
            if isinstance(outcome, BaseException) and not isinstance(outcome, OSError):
                raise outcome
            self._end(error or (outcome if isinstance(outcome, OSError) else None))

        self._ports.worker.submit(work.abandon, abandoned)

    def _swap(self, work: SegmentErasure) -> None:
        self.written_bytes = work.size
        group = CleanedGroup(self._seen, 1, work.size, bool(work.aborted))
        try:
            barrier = self.log.swaps.begin(group)
        except (OSError, StorageError) as error:
            self._end(error)
            return
        if barrier is None:
            self._end(None)
        else:
            self._ports.committer.submit(joined([*self._state, barrier]), self._on_swapped)

    def _on_swapped(self, error: OSError | None) -> None:
        swaps, finished = self.log.swaps, None
        if not self._is_here(self.log):
            self._end(None)
            return
        try:
            if error is None:
                finished = swaps.finish(self._ports.clock.wall_ms())
            else:
                swaps.abandon()
        except (OSError, StorageError) as failed:
            self._end(failed)
            return
        if finished is None:
            self._end(error)
            return
        if self._erased:
            self.segment.invalidate_slices()
        self._on_erased()
        self._removed = finished
        self.name_files()

    def _on_erased(self) -> None:
        """Notes that no segment has the erased records any more; the replaced file still has them."""
        if self._erased:
            self.log.erasures.on_rewritten(self._erased)
            self.log.upkeep_queue[self.log] = None
        if self.log.segments.bases[0] == self.segment.base_offset:
            LogHoles(self.log).on_erased(self._log_start_offset)

    def name_files(self) -> None:
        """Renames the new files, which the log already reads; later, if there is no room for their names."""
        self.needs_room = None
        if not self._is_here(self.log):
            self._end(None)
            return
        try:
            barrier = self.log.swaps.name_files()
        except OSError as error:
            if is_passing(error):
                self.needs_room = error
            else:
                self._end(error)
            return
        self._ports.committer.submit(barrier, self._on_named)

    def _on_named(self, error: OSError | None) -> None:
        if self._is_here(self.log):
            self._remove(self.log, self._removed)
        self._end(error)

    def _end(self, error: OSError | StorageError | None) -> None:
        self.log.swaps.release()
        self._on_end(error if self._is_here(self.log) else None)


def _aborted(log: Log, base_offset: Offset) -> list[CompletedTransaction]:
    try:
        return log.swaps.aborted_in(base_offset)
    except DamagedSegmentError:
        log.files.rebuild_aborted([base_offset], log.log_end_offset)
        return log.swaps.aborted_in(base_offset)


def _frames(log: Log, end_offset: Offset) -> dict[ProducerId, Offset]:
    """Returns the offsets from which batches stay in a segment, at least empty, by producer.

    Producers are included that may repeat a batch below `end_offset`, or complete a transaction.
    """
    frames: dict[ProducerId, Offset] = {}
    for producer_id, entry in log.producer_state.producers.items():
        begun = [batch.base_offset for batch in entry.batches[:1]]
        if entry.transaction_first_offset >= 0:
            begun.append(entry.transaction_first_offset)
        if begun and min(begun) < end_offset:
            frames[producer_id] = min(begun)
    return frames


def _step(work: SegmentErasure) -> ErasureProgress | OSError | StorageError:
    try:
        return work.step()
    except (OSError, StorageError) as error:
        return error
