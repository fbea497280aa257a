"""Frees the room of deleted records in segments that are kept: the part below the log start becomes a hole.

Each round checks the logs whose start has risen and which may have enough to free. A log gets a hole about once a
second, however many deletes there were, or at once if a delete frees much. Less than `HOLE_BLOCKS` are left for the
next hole, unless an erasure needs it:

| step | a crash then leaves |
|---|---|
| `LogHoles.begin` leaves out the bytes; a snapshot of the producers is written | the bytes, which the start reads |
| the ends of the holes are noted (`hole_notes.py`), and the notes synced | the same |
| when no earlier reader is left, a worker makes the hole, then its header | a hole without header; the notes have it |

Guards: only bytes below a durable log start become a hole, once no answer may read them and the end of the hole is
noted durably. No hole is begun while a worker rewrites a segment of the log, because the worker reads the bytes that
were kept when it began. A step that lacks room or a descriptor is repeated. If the file system can't make holes, the
first attempt shows it. Then a segment that is deleted whole is closed, so that it can be removed, and the others stay.
"""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush
from itertools import count, islice
from typing import TYPE_CHECKING, Final

from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem import CannotPunchError, FileToSync
from lowtide.storage.checkpoint import joined
from lowtide.storage.directory.hole_notes import create_notes, read_notes, write_notes
from lowtide.storage.errors import FailureKind, StorageError, failure_kind, is_passing
from lowtide.storage.log.log_holes import LogHoles
from lowtide.storage.log.segments.unfreed import HOLE_BLOCKS, MUCH_BYTES, UnfreedReason, UnfreedRoom, small_room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lowtide.protocol.types import TopicId, TopicPartition
    from lowtide.runtime.filesystem import FileSystem
    from lowtide.storage.directory.log_settings import DirectoryPorts
    from lowtide.storage.log.log import Log
    from lowtide.storage.log.segments.hole import Hole, PendingHole

LOGS_PER_ROUND: Final = 256
"""The next round takes the others."""

LOGS_PER_STEP: Final = 4
"""Each needs a search for its start, perhaps a snapshot: some tenths of a millisecond."""

QUIET_MS: Final = 800
"""The time between two holes of a log, unless `MUCH_BYTES` wait: with the round and the worker that is within a second.
"""

PIECES_AT_ONCE: Final = 2
"""Holes that the worker makes at a time."""

PRODUCERS_PER_MS: Final = 1
"""Spaces the holes of a log with many producers, since each writes a snapshot: every ten seconds with ten thousand."""


class DirectoryHoles:
    """Makes the holes of one directory. Used from the event loop only."""

    def __init__(
        self,
        path: str,
        ports: DirectoryPorts,
        logs: Mapping[TopicPartition, Log],
        on_failure: Callable[[OSError | StorageError], None],
        on_freed: Sequence[Callable[[], None]],
        *,
        frees: bool,
    ) -> None:
        """`on_freed` are called when a hole is made. Unless `frees`, no hole is made."""
        self.can_punch = True
        """Whether the file system makes holes, as far as is known."""
        self.least_bytes = HOLE_BLOCKS * ports.filesystem.block_bytes  # Less makes no hole, unless for an erasure.
        self.noted: dict[tuple[TopicId, int], Hole] = {}
        """The holes in the notes; while the directory is opened, in the notes that were found."""
        self._path = path
        self._ports = ports
        self._logs = logs
        self._on_failure = on_failure
        self._on_freed = on_freed
        self._is_active = frees
        self._sequence = 0
        self._risen: dict[Log, int] = {}
        """Logs whose start has risen, durably and visibly, and the fewest bytes that make a hole of it."""
        self._queue: list[tuple[int, int, Log]] = []
        """A heap of when a log of `_risen` is due at the earliest, with a number for its turn."""
        self._queued: set[Log] = set()
        self._turns = count()
        self.urgent: dict[Log, None] = {}
        """Those of `_risen` with much to free: they don't wait for a round."""
        self._begun_ms: dict[Log, int] = {}
        """When a log's last hole was begun, or found to be too small."""
        self._pending: dict[PendingHole, Log] = {}
        """Holes that are noted durably and not made yet."""
        self._running = 0
        self._is_round = False
        self._is_urgent_scheduled = False

    def __len__(self) -> int:
        """How many logs have room to free."""
        return len(self._risen) + len(self._pending) + self._running

    @property
    def makes_holes(self) -> bool:
        """Whether deleted bytes become holes, as far as is known."""
        return self._is_active and self.can_punch

    def unfreed(self, log: Log) -> UnfreedRoom | None:
        """Returns the deleted bytes that the segment at a log's start still holds; None if there are none."""
        size_bytes = LogHoles(log).unfreed_bytes
        if not size_bytes:
            return None
        reason, pending = self.makes_none(log), LogHoles(log).pending
        if reason is None and (pending is not None or log in self._risen):
            is_read = pending is not None and pending.is_read()
            reason = UnfreedReason.READER if is_read else UnfreedReason.ROUND
        return UnfreedRoom(size_bytes, reason or small_room(size_bytes, self.least_bytes))

    def makes_none(self, log: Log) -> UnfreedReason | None:
        """Returns why the log gets no holes; None if it gets them."""
        if self._is_active and LogHoles(log).are_allowed:
            return None if self.can_punch else UnfreedReason.FILE_SYSTEM
        return UnfreedReason.COMPACTED if self._is_active else UnfreedReason.SWITCHED_OFF

    def read(self) -> None:
        self._sequence, self.noted = read_notes(self._ports.filesystem, self._path)
        if self._is_active:
            try:
                create_notes(self._ports.filesystem, self._path)
            except OSError as error:
                if not is_passing(error):
                    raise

    def on_loaded(self, log: Log) -> None:
        """Schedules a loaded log: deleted records may still take room."""
        if log.log_start_offset > log.segments[0].base_offset and self._is_active:
            self.schedule(log)

    def schedule(self, log: Log, least_bytes: int | None = None) -> None:
        """Schedules a hole of a log whose start has risen, durably and visibly, if it has at least so many bytes."""
        least = self.least_bytes if least_bytes is None else least_bytes
        self._risen[log] = min(least, self._risen.get(log, least))
        if log not in self._queued:
            self._enqueue(log, 0)

    def _enqueue(self, log: Log, earliest_ms: int) -> None:
        self._queued.add(log)
        heappush(self._queue, (max(self._due_ms(log), earliest_ms), next(self._turns), log))

    def mark_urgent(self, log: Log) -> None:
        """Marks a scheduled log with much to free. The caller then calls `begin_urgent`, once for all of them."""
        if LogHoles(log).unfreed_bytes >= MUCH_BYTES:
            self.urgent[log] = None

    def begin_urgent_after_answers(self) -> None:
        """Calls `begin_urgent` once the answers of this and the next pass of the loop are sent.

        Otherwise the search for the start and the notes would delay the answer to a delete of two megabytes by 0.3 ms.
        """
        if self.urgent and self._is_active and not self._is_urgent_scheduled:
            self._is_urgent_scheduled = True
            self._ports.worker.submit(lambda: None, self._on_answers_gone)

    def _on_answers_gone(self, _outcome: object) -> None:
        self._is_urgent_scheduled = False
        self.begin_urgent()
        for listener in self._on_freed:
            listener()  # Of a log that begins with a large batch nothing is freed, and no answer needs to wait for it.

    def begin_urgent(self) -> None:
        """Begins the holes of some logs with much to free; the others follow when these are noted."""
        if self._is_round or not self.urgent:
            return
        some = list(islice(self.urgent, LOGS_PER_STEP))
        for log in some:
            del self.urgent[log]
        if self._frees():
            now_ms = self._ports.clock.monotonic_ms()
            begun: list[tuple[PendingHole, Log]] = []
            barriers: list[Barrier] = []
            if self._begin_some([log for log in some if self._is_due(log, now_ms)], now_ms, begun, barriers) and begun:
                self._note(begun, barriers)

    def forget(self, log: Log) -> None:
        self._risen.pop(log, None)
        self.urgent.pop(log, None)
        self._begun_ms.pop(log, None)
        self.noted.pop((log.topic_id, log.topic_partition.partition), None)

    def stop(self) -> None:
        """Makes no more holes. Bytes that are left out and not punched stay in the files."""
        self._is_active = False
        self._risen.clear()
        self.urgent.clear()
        self._pending.clear()
        for log in self._logs.values():
            log.segments.abandon_holes()

    def round(self) -> Iterator[None]:
        """Makes the holes that have no reader left and begins those that are due, one step at a time.

        Called some twenty times a second, and always iterated to the end.
        """
        self._make()
        if self._is_round or not self._risen:
            return
        if not self._frees():
            self._risen.clear()
            return
        self._is_round = True
        now_ms = self._ports.clock.monotonic_ms()
        due = self._take_due(now_ms)
        begun: list[tuple[PendingHole, Log]] = []
        barriers: list[Barrier] = []
        for first in range(0, len(due), LOGS_PER_STEP):
            if not self._begin_some(due[first : first + LOGS_PER_STEP], now_ms, begun, barriers):
                break
            yield
            if not self._frees():
                break
        self._is_round = False
        for log in due:
            if log in self._risen and log not in self._queued:
                self._enqueue(log, now_ms)
        if begun and self._frees():
            self._note(begun, barriers)

    def _take_due(self, now_ms: int) -> list[Log]:
        due: list[Log] = []
        while self._queue and self._queue[0][0] <= now_ms and len(due) < LOGS_PER_ROUND:
            _, _, log = heappop(self._queue)
            self._queued.discard(log)
            if log in self._risen and not self._is_due(log, now_ms):
                self._enqueue(log, now_ms)  # An urgent hole was begun meanwhile.
            elif log in self._risen:
                due.append(log)
        return due

    def _begin_some(
        self, logs: list[Log], now_ms: int, begun: list[tuple[PendingHole, Log]], barriers: list[Barrier]
    ) -> bool:
        """Adds the holes to `begun`, and the barriers that must be done with their notes to `barriers`.

        Returns False if the disk fails.
        """
        for log in logs:
            try:
                pending = self._begin(log, now_ms, barriers)
            except StorageError as error:
                if not error.is_passing:
                    self._on_failure(error)
                    return False
                continue
            if pending is not None:
                begun.append((pending, log))
        return True

    def _frees(self) -> bool:
        """Returns whether holes are made. Checked after each step: `stop` may have been called meanwhile."""
        return self._is_active

    def is_freeing(self, log: Log) -> bool:
        """Returns whether a hole of the log is in progress, or will be begun as soon as possible."""
        if not self.makes_holes or not self._is_here(log) or log.offline or log.swaps.is_taken:
            return False
        pending = LogHoles(log).pending
        if pending is not None:
            return not pending.is_read()
        return LogHoles(log).are_allowed and log in self._risen and self._is_due(log, self._ports.clock.monotonic_ms())

    def _is_due(self, log: Log, now_ms: int) -> bool:
        return now_ms >= self._due_ms(log)

    def _due_ms(self, log: Log) -> int:
        begun_ms = self._begun_ms.get(log)
        if begun_ms is None:
            return 0
        apart_ms = len(log.producer_state.producers) // PRODUCERS_PER_MS
        return begun_ms + max(apart_ms, 0 if LogHoles(log).unfreed_bytes >= MUCH_BYTES else QUIET_MS)

    def _is_here(self, log: Log) -> bool:
        """Returns whether this log is still the directory's: another one may have its name by now."""
        return self._logs.get(log.topic_partition) is log

    def _begin(self, log: Log, now_ms: int, barriers: list[Barrier]) -> PendingHole | None:
        if not self._is_here(log) or log.offline:
            # Its note stays: it may be that of another log of the same partition.
            self._risen.pop(log, None)
            self._begun_ms.pop(log, None)
            return None
        if LogHoles(log).pending is not None or log.swaps.is_taken:
            return None
        pending = None
        if self.can_punch:
            pending = LogHoles(log).begin(self._risen.get(log, self.least_bytes))
            barriers += self._snapshot(log) if pending is not None else ()
        elif log.log_start_offset == log.log_end_offset and LogHoles(log).are_allowed:
            log.roll(self._ports.clock.wall_ms())  # The upkeep then removes what is below the log start.
        self._risen.pop(log, None)
        self._begun_ms[log] = now_ms
        if pending is not None:
            self.noted[log.topic_id, log.topic_partition.partition] = pending.hole
        return pending

    def _snapshot(self, log: Log) -> list[Barrier]:
        """Writes the state of the log's producers, whose batches may go.

        Without room it is skipped: a step that makes room can't wait for room.
        """
        if not log.producer_state.producers:
            return []
        try:
            paths = LogHoles(log).take_snapshot()
        except OSError as error:
            if not is_passing(error):
                self._on_failure(error)
            return []
        files = tuple(FileToSync(self._ports.filesystem, path) for path in paths)
        return [Barrier(files=files, directories=(log.directory,) if paths else ())]

    def _note(self, begun: list[tuple[PendingHole, Log]], barriers: list[Barrier]) -> None:
        try:
            barrier = write_notes(self._ports.filesystem, self._path, self._sequence + 1, self.noted)
        except OSError as error:
            if is_passing(error):
                self._retry(begun)
            else:
                self._on_failure(error)
            return
        self._sequence += 1
        self._is_round = True
        self._ports.committer.submit(joined([*barriers, barrier]), lambda error: self._on_noted(begun, error))

    def _retry(self, begun: list[tuple[PendingHole, Log]]) -> None:
        """Keeps the bytes of the begun holes left out. Another round notes the holes of logs that are still here."""
        for pending, log in begun:
            if self._is_here(log):
                LogHoles(log).give_up(pending)
                self.schedule(log, 1)

    def _on_noted(self, begun: list[tuple[PendingHole, Log]], error: OSError | None) -> None:
        self._is_round = False
        if error is not None:
            # The folders of all logs with a snapshot are synced: one that has left took its folder along.
            has_left = failure_kind(error.errno) is FailureKind.GONE and not all(self._is_here(log) for _, log in begun)
            if is_passing(error) or has_left:
                self._retry(begun)
            else:
                self._on_failure(error)
            return
        if self._is_active:
            self._pending.update(begun)
            self._make()
            self.begin_urgent()

    def _make(self) -> None:
        for pending, log in list(self._pending.items()):
            if self._running >= PIECES_AT_ONCE:
                return
            if not pending.is_read():
                del self._pending[pending]
                self._running += 1
                work = partial(_make, self._ports.filesystem, pending)
                self._ports.worker.submit(work, partial(self._on_made, pending, log))

    def _on_made(self, pending: PendingHole, log: Log, outcome: object) -> None:
        self._running -= 1
        if outcome is True:
            LogHoles(log).on_made(pending)
            if log in self._risen:
                self.mark_urgent(log)
                self.begin_urgent()
        elif outcome is False:
            self.can_punch = False
            self._pending.clear()
            for each in self._logs.values():
                each.segments.abandon_holes()
                self.on_loaded(each)
        elif isinstance(outcome, OSError):
            if is_passing(outcome) and self._is_active:
                self._pending[pending] = log
                return
            if not is_passing(outcome) and self._is_here(log):
                self._on_failure(outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        self._make()
        for listener in self._on_freed:
            listener()


def _make(filesystem: FileSystem, pending: PendingHole) -> bool:
    try:
        pending.make(filesystem)
    except CannotPunchError:
        return False
    return True
