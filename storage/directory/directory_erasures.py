"""Erases records in one log directory: those below the log start, and those that erasures name.

Logs of topics with `lowtide.delete.erase` are erased about a second after their start has risen, and logs with an
erasure when it is committed and on the disk. Requests to erase are answered when the files durably hold none of the
named records. `log_erasure.py` chooses the next step and rewrites segments, `directory_holes.py` makes holes, and
removed segments are unlinked at once.

Guards: a request succeeds only when no file in the log's folder has a record that it means, and this is on the disk.
No request is answered while a segment is rewritten or compacted, because the folder then has files that aren't the
log's. A log start that rises meanwhile doesn't delay older requests. A step that lacks room or a descriptor is
repeated.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from lowtide.runtime.committer import Barrier
from lowtide.storage.directory.directory_reports import ErasureTotals, PendingErasures
from lowtide.storage.directory.erasure_waits import ErasureWaits
from lowtide.storage.directory.log_erasure import (
    ErasureStep,
    LogErasure,
    RewritingPasses,
    bytes_to_write,
    has_segments_below_start,
    next_step,
    segment_to_erase,
)
from lowtide.storage.errors import DamagedSegmentError, StorageError, is_passing, storage_error
from lowtide.storage.log.log_holes import LogHoles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lowtide.protocol.erasure_record import EraseGoal
    from lowtide.protocol.types import TopicPartition
    from lowtide.storage.directory.directory_holes import DirectoryHoles
    from lowtide.storage.directory.directory_state import DirectoryState
    from lowtide.storage.directory.file_removal import FileRemoval
    from lowtide.storage.directory.log_settings import DirectoryPorts, LogListeners
    from lowtide.storage.log.log import Log
    from lowtide.storage.log.segments.segment import Segment
    from lowtide.storage.log.segments.segment_files import RemovedSegment

ERASURES_AT_ONCE: Final = 2
"""Segments rewritten at a time: as many as the worker has threads."""

QUIET_MS: Final = 1000
"""The time between two erasures of a log, however often its start rises."""

HELD_MS: Final = 2000
"""A hole that waits this long for a reader is given up and the segment copied: the reader keeps the old, unlinked file.
"""

LOGS_PER_ROUND: Final = 256
"""Logs looked at in one round; the others come next."""

LOGS_PER_STEP: Final = 4
"""Each needs a search for its start: some tenths of a millisecond."""

REQUESTS_MAX: Final = 10_000
"""Requests that wait at a time."""


class EraseFailedError(Exception):
    """The log isn't erased; the message is one sentence."""


class EraseChangedError(EraseFailedError):
    """The replica was moved or truncated meanwhile: the request may be repeated at the same broker."""


MOVED: Final = "the replica was moved meanwhile; ask again"


OnErased: TypeAlias = "Callable[[EraseFailedError | None], None]"


class _EraseRequest(msgspec.Struct, eq=False):
    goal: EraseGoal
    on_done: OnErased
    is_syncing: bool = False
    """Whether nothing is left, and a sync is under way."""


class DirectoryErasures:
    """Erases the logs of one directory. Used from the event loop only."""

    def __init__(
        self,
        state: DirectoryState,
        ports: DirectoryPorts,
        logs: Mapping[TopicPartition, Log],
        removal: FileRemoval,
        holes: DirectoryHoles,
        listeners: LogListeners,
    ) -> None:
        self.wanted: dict[Log, None] = {}
        """Logs that may be due because of their topic's configuration."""
        self.erased = ErasureTotals(0, 0)
        self._ports = ports
        self._logs = logs
        self._removal = removal
        self._holes = holes
        self._state = state
        self._listeners = listeners
        self._erasing: dict[Log, None] = {}
        """Logs with records that an erasure names."""
        self._requests: dict[Log, list[_EraseRequest]] = {}
        self._waiting = 0
        self._running: dict[Log, LogErasure] = {}
        self._next: dict[Log, None] = {}
        """Logs to look at again when one under way is done."""
        self._begun_ms: dict[Log, int] = {}
        self._passes: dict[Log, RewritingPasses] = {}
        """Of logs that were rewritten for erasures."""
        self.waits = ErasureWaits(ports.filesystem, listeners)
        self._held_ms: dict[Log, int] = {}
        """Since when a hole has waited for its readers."""
        self._turn = 0
        """Where the next round begins, if there are more logs than one round looks at."""
        self._is_stopped = False

    @property
    def to_erase(self) -> PendingErasures:
        due, now_ms = self._due(), self._ports.clock.monotonic_ms()
        oldest_ms = max((self.waits.waited_ms(log, now_ms) for log in due), default=0)
        return PendingErasures(len(due), self._waiting, oldest_ms, len(self.waits.without_room & due))

    def __len__(self) -> int:
        """How many logs are due."""
        return len(self._due())

    def _due(self) -> set[Log]:
        return self.wanted.keys() | self._erasing.keys() | self._requests.keys() | self._running.keys()

    def _note_waiting(self, log: Log) -> None:
        """Notes since when a log waits, before it becomes due."""
        if not any(log in logs for logs in (self.wanted, self._erasing, self._requests, self._running)):
            self.waits.begin(log, self._ports.clock.monotonic_ms())

    def want(self, log: Log) -> None:
        """Schedules a log that was loaded or configured, that got an erasure, or whose log start has risen."""
        self._note_waiting(log)
        if log.config.lowtide_delete_erase:
            self.wanted[log] = None
        if log.erasures.pending:
            self._erasing[log] = None

    def request(self, log: Log, goal: EraseGoal, on_done: OnErased) -> Callable[[], object]:
        """Erases the records of a goal that the log has reached, then calls `on_done`.

        `on_done` is never called from within this call. Returns a function that cancels the request; `on_done` is then
        not called.
        """
        assert goal.offset <= log.log_start_offset, (goal, log.describe())
        request = _EraseRequest(goal, on_done)
        if self._waiting >= REQUESTS_MAX:
            refused = EraseFailedError(f"{REQUESTS_MAX} requests to erase records are waiting already")
            self._ports.committer.submit(Barrier(), lambda _error: on_done(refused))
            return lambda: None
        self._note_waiting(log)
        self._requests.setdefault(log, []).append(request)
        self._waiting += 1
        return lambda: self._take_out(log, request)

    def _take_out(self, log: Log, request: _EraseRequest) -> bool:
        requests = self._requests.get(log, [])
        if request not in requests:
            return False
        self._waiting -= 1
        requests.remove(request)
        if not requests:
            del self._requests[log]
        return True

    def forget(self, log: Log) -> None:
        self.wanted.pop(log, None)
        self._erasing.pop(log, None)
        self._begun_ms.pop(log, None)
        self._passes.pop(log, None)
        self.waits.forget(log)
        self._held_ms.pop(log, None)
        self._next.pop(log, None)
        self._refuse(log, "the replica is no longer here")

    def stop(self) -> None:
        """Begins nothing more and refuses requests."""
        self._is_stopped = True
        self.wanted.clear()
        self._erasing.clear()
        for log in list(self._requests):
            self._refuse(log, "the broker stops, or its log directory failed")

    def _refuse(self, log: Log, reason: str) -> None:
        for request in list(self._requests.get(log, ())):
            self._answer(log, request, EraseFailedError(reason))

    def _answer(self, log: Log, request: _EraseRequest, error: EraseFailedError | None) -> None:
        if self._take_out(log, request):
            request.on_done(error)

    def round(self) -> Iterator[None]:
        """Takes the next step of the logs in which one is due.

        Called some twenty times a second, and always iterated to the end.
        """
        self._ports.erasing.grow(self._ports.clock.monotonic_ms())
        for erasure in list(self._running.values()):
            erasure.resume()
            if erasure.needs_room:
                self.waits.on_shortage(erasure.log, erasure.needs_room, 0, self._ports.clock.monotonic_ms())
                erasure.name_files()
        if not self.wanted and not self._requests and not self._erasing:
            return
        now_ms = self._ports.clock.monotonic_ms()
        by_themselves = self.wanted | self._erasing
        due = [
            *self._requests,
            *(log for log in by_themselves if log not in self._requests and self._is_due(log, now_ms)),
        ]
        first = self._turn % len(due) if len(due) > LOGS_PER_ROUND else 0
        self._turn = first + LOGS_PER_ROUND
        looked_at = list(islice((*due[first:], *due[:first]), LOGS_PER_ROUND))
        for number, log in enumerate(looked_at, 1):
            if self._is_stopped:
                return
            self._look_at(log, now_ms)
            if not number % LOGS_PER_STEP or number == len(looked_at):
                yield

    def _is_due(self, log: Log, now_ms: int) -> bool:
        begun_ms = self._begun_ms.get(log)
        return begun_ms is None or now_ms - begun_ms >= QUIET_MS

    def _is_here(self, log: Log) -> bool:
        return self._state.is_active() and self._logs.get(log.topic_partition) is log and not log.offline

    def _look_at(self, log: Log, now_ms: int) -> None:
        if not self._is_here(log):
            self.forget(log)
            return
        if log.swaps.is_taken:
            return
        try:
            log.files.make()
            self._answer_requests(log)
            if not log.truncating:
                self._take_next(log, now_ms)
        except (OSError, StorageError) as error:
            self._on_error(log, error)

    def _take_next(self, log: Log, now_ms: int) -> None:
        """Takes the next step for what erasures name, then for what lies below the log start."""
        segment = segment_to_erase(log)
        if segment is not None and log not in self._passes:
            self._passes[log] = RewritingPasses()
        if log in self._passes and self._passes[log].may_rewrite(segment, now_ms):
            assert segment is not None
            self._rewrite(log, segment, now_ms)
            return
        if not log.erasures.pending:
            self._erasing.pop(log, None)
        elif segment is None:
            self.waits.look_for_room(log, now_ms)
        if log in self.wanted or any(each.goal.offset for each in self._requests.get(log, ())):
            self._take(next_step(log, makes_holes=self._holes.makes_holes), log, now_ms)

    def _take(self, step: ErasureStep, log: Log, now_ms: int) -> None:
        if step is not ErasureStep.PUNCH:
            self._held_ms.pop(log, None)
        elif self._is_held(log, now_ms):
            step = ErasureStep.REMOVE_SEGMENTS if log.log_start_offset == log.log_end_offset else ErasureStep.REWRITE
        if step is ErasureStep.NOTHING:
            LogHoles(log).on_erased(log.log_start_offset)
            if not self._removal.remove_now(log.directory, log.log_start_offset):
                self.wanted.pop(log, None)
        elif step is ErasureStep.REMOVE_SEGMENTS:
            if log.log_start_offset == log.log_end_offset:
                log.roll(self._ports.clock.wall_ms())
            self._remove(log, log.files.remove_below(log.log_start_offset, log.config))
        elif step is ErasureStep.PUNCH:
            self._holes.schedule(log, 1)
        else:
            self._rewrite(log, log.segments[0], now_ms)

    def _rewrite(self, log: Log, segment: Segment, now_ms: int) -> None:
        if len(self._running) >= ERASURES_AT_ONCE:
            self._next[log] = None
            return
        if not self.waits.has_room(log, bytes_to_write(log, segment), now_ms):
            return
        self._begun_ms[log] = now_ms
        erasure = LogErasure(
            log, segment, self._ports, self._is_here, self._remove_replaced, lambda error: self._on_end(log, error)
        )
        erasure.begin()
        self._running[log] = erasure

    def _is_held(self, log: Log, now_ms: int) -> bool:
        hole = log.segments[0].hole
        return hole is not None and hole.is_read() and now_ms - self._held_ms.setdefault(log, now_ms) >= HELD_MS

    def _remove(self, log: Log, removed: list[RemovedSegment]) -> None:
        self._removal.remove_segments(removed, self._ports.clock.monotonic_ms() + log.config.file_delete_delay_ms)
        self._listeners.on_removed(log, removed)

    def _remove_replaced(self, log: Log, removed: list[RemovedSegment]) -> None:
        self.erased = ErasureTotals(
            self.erased.segments + 1, self.erased.written_bytes + self._running[log].written_bytes
        )
        self._removal.remove_segments(removed, self._ports.clock.monotonic_ms() + log.config.file_delete_delay_ms)
        self._removal.remove_now(log.directory, max(each.base_offset for each in removed) + 1)

    def _on_end(self, log: Log, error: OSError | StorageError | None) -> None:
        ended = self._running.pop(log, None)
        if ended is not None and log in self._passes:
            self._passes[log].on_rewritten(ended.segment, self._begun_ms.get(log, 0), self._ports.clock.monotonic_ms())
        if error is None:
            self.waits.on_room(log)
        if error is not None:
            self._on_error(log, error, 0 if ended is None else ended.needed_bytes)
        elif not self._is_stopped and self._is_here(log) and log in self._requests:
            self._answer_requests(log)
        while self._next and len(self._running) < ERASURES_AT_ONCE and not self._is_stopped:
            following = next(iter(self._next))
            del self._next[following]
            self._look_at(following, self._ports.clock.monotonic_ms())

    def _on_error(self, log: Log, error: OSError | StorageError, needed_bytes: int = 0) -> None:
        """Notes errors that may pass, reports damage, and takes the directory offline if the disk fails."""
        if is_passing(error):
            self.waits.on_shortage(log, error, needed_bytes, self._ports.clock.monotonic_ms())
            return
        self.wanted.pop(log, None)
        failed = error if isinstance(error, StorageError) else storage_error(log.directory, error)
        self._refuse(log, str(failed))
        if isinstance(error, DamagedSegmentError):
            for listener in self._listeners.erasing:
                listener.on_not_erased(log, str(failed))
        else:
            self._state.fail(error)

    def _answer_requests(self, log: Log) -> None:
        """Answers the requests whose records are in no file any more, once this is on the disk."""
        gone_offset = min(log.segments[0].gone_offset, log.log_start_offset)
        waiting = [each for each in self._requests.get(log, ()) if not each.is_syncing]
        for request in waiting:
            if request.goal.offset > log.log_start_offset:
                self._answer(
                    log, request, EraseFailedError(f"a truncation has lowered the log start to {log.log_start_offset}")
                )
        done = [each for each in waiting if each.goal.offset <= gone_offset and _has_erased(log, each.goal)]
        if not done or (any(each.goal.offset for each in done) and has_segments_below_start(log)):
            return
        if self._removal.remove_now(log.directory, max(each.goal.files_end for each in done)):
            return
        for request in done:
            request.is_syncing = True
        first = log.segments[0]
        barrier = Barrier(files=(first.to_sync(),), directories=(log.directory,))
        self._ports.committer.submit(barrier, lambda error: self._on_synced(log, first, done, error))

    def _on_synced(self, log: Log, first: Segment, done: list[_EraseRequest], error: OSError | None) -> None:
        """Answers requests after a sync, unless the first segment has left the log and may have been renamed before."""
        for request in done:
            request.is_syncing = False
            if error is None and log.segments[0] is first:
                log.erasures.note_deleted(request.goal.offset)
                self._answer(log, request, None)
        if error is not None and self._is_here(log):
            self._on_error(log, error)


def _has_erased(log: Log, goal: EraseGoal) -> bool:
    """Returns whether the log has the goal's erasures, in effect and on the disk, and nothing of them is left.

    Records above the last of them need not be on the disk.
    """
    end_offset = goal.erasures_end
    last = max((each.end_offset for each in log.erasures.known if each.end_offset <= end_offset), default=0)
    return log.high_watermark >= end_offset and log.recovery_point >= last and log.erasures.is_done(end_offset)
