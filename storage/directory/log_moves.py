"""Moves logs between the log directories of a broker: copies them and replaces them by the copies (KIP-113).

Whenever the process or the machine ends, the disk decides which of two folders is the partition's log:

| on the disk | the partition's log |
|---|---|
| the folder, and a `-future` folder elsewhere | the folder; copying continues |
| the folder with the intent to move, and the `-future` folder | the folder; it starts where either journal says |
| the folder with the intent, and one of the partition's name there | the latter; the former is removed |
| the folder with the intent, and the other directory doesn't work | unknown: offline until that directory works |

Guards: the copy replaces its source in one turn of the loop, when it has all records of its source, its log start, and
the producers that no batch names; the intent is on the disk before. Later records are acknowledged only after the new
name is durable, because the directory's committer keeps the order. The new log doesn't serve records below its source's
log start. Compacted records don't return: a source is compacted only as far as its copy is on the disk.

Source: KIP-113; Kafka's ReplicaManager.alterReplicaLogDirs and LogManager.replaceCurrentWithFutureLog; KAFKA-15082.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from lowtide.storage.directory.allowance import Allowance
from lowtide.storage.directory.directory_erasures import MOVED, EraseChangedError, EraseFailedError
from lowtide.storage.directory.log_move import LogMove, remove_intent
from lowtide.storage.directory.log_starts import LogStartIncrement
from lowtide.storage.directory.move_place import MoveCounts, MovePlace
from lowtide.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping

    from lowtide.protocol.erasure_record import EraseGoal
    from lowtide.protocol.types import Offset, TopicPartition
    from lowtide.storage.directory.directory_erasures import OnErased
    from lowtide.storage.directory.directory_logs import DirectoryLogs
    from lowtide.storage.directory.log_settings import DirectoryPorts
    from lowtide.storage.log.log import Log

MOVES_AT_ONCE: Final = 4
"""Logs that are copied at a time; the others wait."""


class LogMoves:
    """The moves of one broker. Used from the event loop only."""

    def __init__(
        self,
        directories: Mapping[str, DirectoryLogs],
        ports: Mapping[str, DirectoryPorts],
        logs: MutableMapping[TopicPartition, Log],
    ) -> None:
        """`directories` and `ports` are by path.

        `logs` are the partitions' logs, in which a copy replaces its source.
        """
        self._directories = directories
        self._ports = ports
        self._logs = logs
        self._moves: dict[TopicPartition, LogMove] = {}
        self._listeners: list[Callable[[Log, Log], None]] = []
        self._allowance = Allowance()
        self.counts = {path: MoveCounts() for path in directories}
        """By the path of the target directory."""

    def listen(self, on_moved: Callable[[Log, Log], None]) -> None:
        """Calls the listener with the source and the log that replaces it, in the same turn of the loop."""
        self._listeners.append(on_moved)

    def limit(self, bytes_per_second: Callable[[], float]) -> None:
        """Sets the limit of copied bytes per second, over all moves."""
        self._allowance.limit(bytes_per_second)

    def __len__(self) -> int:
        return len(self._moves)

    @property
    def done(self) -> int:
        """The number of copies that have replaced their source since the start."""
        return sum(counts.done for counts in self.counts.values())

    def under_way(self) -> list[LogMove]:
        """Returns the moves that have begun, including those that wait."""
        return list(self._moves.values())

    def alter(self, log: Log, path: str) -> None:
        """Moves a log into a working directory. Ends another move of it, and does no more if the log is already there.

        Errors: StorageError if its copy can't be begun.
        """
        move = self._moves.get(log.topic_partition)
        if move is not None and move.target.path == path:
            return
        if move is not None:
            self._give_up(move)
        if path != log.parent_directory:
            move = self._move(log, self._directories[path])
            try:
                move.begin()
            except StorageError:
                self.counts[path].on_failed()
                raise
            self._moves[log.topic_partition] = move

    def _move(self, log: Log, target: DirectoryLogs, future: Log | None = None) -> LogMove:
        place = MovePlace(
            source=self._ports[log.parent_directory],
            target=self._ports[target.path],
            allowance=self._allowance,
            counts=self.counts[target.path],
            is_current=self._is_current,
            on_failure=self._on_failure,
            on_moved=self._on_moved,
            on_named=self._on_named,
        )
        return LogMove(log, target, place, future=future)

    def resume(self, moving: Iterable[TopicPartition]) -> None:
        """Continues with the copies that a start has found, and removes copies whose logs aren't here.

        The moves of the partitions in `moving` were interrupted. A copy stays if its source may be in a directory that
        can't be used.
        """
        for key in moving:
            log = self._logs.get(key)
            if log is not None and not log.offline:
                # Only after the journal has the log start.
                starts = self._directories[log.parent_directory].parts.log_starts
                starts.request_log_starts(
                    [LogStartIncrement(log, log.log_start_offset)], partial(self._on_start_durable, log)
                )
        everything_works = all(directory.is_online for directory in self._directories.values())
        for directory in self._directories.values():
            for key in list(directory.partitions.futures) if directory.is_online else ():
                source, future = self._logs.get(key), directory.logs[key]
                if source is not None and source.topic_id == future.topic_id and key not in self._moves:
                    self._moves[key] = self._move(source, directory, future)
                elif source is not None or everything_works:
                    directory.delete([key], lambda _error: None, at_once=True)

    def _on_start_durable(self, log: Log, error: OSError | None) -> None:
        move = self._moves.get(log.topic_partition)
        if error is None and not (move is not None and move.has_begun_intent):
            remove_intent(self._ports[log.parent_directory].filesystem, log)

    def move_of(self, log: Log) -> LogMove | None:
        """Returns the move of a log, or of the log that this one is the copy of; None if there is none."""
        move = self._moves.get(log.topic_partition)
        return move if move is not None and log in (move.source, move.future) else None

    def compactable_to(self, log: Log) -> Offset | None:
        """Returns the exclusive end up to which a log may be compacted while it moves; None if there is no limit.

        A copy that has a record, but not yet the tombstone that deleted it, must still receive that tombstone.
        """
        move = self._moves.get(log.topic_partition)
        return None if move is None or move.source is not log else move.durable_to

    def on_truncated(self, log: Log) -> None:
        """Reports that a log was cut or is about to restart."""
        move = self._moves.get(log.topic_partition)
        if move is not None and move.source is log:
            move.on_truncated()

    def erase(self, log: Log, goal: EraseGoal, on_done: OnErased) -> OnErased:
        """Returns the function to call once the records of a goal are erased from a log; it erases its copy too.

        That includes a copy begun meanwhile, which may have read them from the file that is rewritten.
        """
        before = self._moves.get(log.topic_partition)

        def erased(error: EraseFailedError | None) -> None:
            move = self._moves.get(log.topic_partition)
            if error is not None:
                on_done(error)
            elif move is not None and move.source is log and self._is_current(move):
                move.erase(goal, on_done)
            elif before is None and move is None:
                on_done(None)
            else:
                on_done(EraseChangedError(MOVED))

        return erased

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """Ends the moves of logs that have left; their copies are deleted with them."""
        for key in keys:
            move = self._moves.pop(key, None)
            if move is not None:
                move.end()

    def on_directory_failed(self, path: str) -> None:
        """Ends moves from and to a directory that fails. The next start that can use it continues."""
        ended = [key for key, move in self._moves.items() if path in (move.source.parent_directory, move.target.path)]
        for key in ended:
            self.counts[self._moves[key].target.path].on_failed()
        self.forget(ended)

    def _give_up(self, move: LogMove) -> None:
        key = move.source.topic_partition
        self.forget([key])
        if move.has_begun_intent:
            remove_intent(self._ports[move.source.parent_directory].filesystem, move.source)
        if move.future is not None and move.target.logs.get(key) is move.future:
            move.target.delete([key], lambda _error: None, at_once=True)

    def round(self) -> Iterator[None]:
        """Takes the next step of each move that can. Called some twenty times a second."""
        if not self._moves:
            return
        self._allowance.grow(next(iter(self._ports.values())).clock.monotonic_ms())
        for move in list(self._moves.values())[:MOVES_AT_ONCE]:
            if self._is_current(move):
                move.step()
            else:
                self.forget([move.source.topic_partition])
            yield

    def _is_current(self, move: LogMove) -> bool:
        key, source = move.source.topic_partition, move.source
        return (
            self._moves.get(key) is move
            and self._logs.get(key) is source
            and not source.offline
            and move.target.is_online
        )

    def _on_failure(self, path: str, error: StorageError) -> None:
        self._directories[path].fail(error)

    def _on_moved(self, move: LogMove, future: Log) -> None:
        source = move.source
        self.counts[move.target.path].on_done()
        self.forget([source.topic_partition])
        self._logs[source.topic_partition] = future
        for log in (source, future):
            # A caller that still has the source finds the new log when it asks again.
            log.is_future, log.offline = False, log is source
        for listener in self._listeners:
            listener(source, future)

    def _on_named(self, move: LogMove, error: OSError | None) -> None:
        """Removes the source once the copy's name is durable."""
        source, key = move.source, move.source.topic_partition
        directory = self._directories[source.parent_directory]
        if error is not None:
            move.target.fail(error)
        elif directory.logs.get(key) is source and not directory.state.is_stopped:
            directory.delete([key], lambda _error: None, at_once=True)
