"""The logs of a broker that are on their way into another log directory: copied, kept up, and put in the place of their sources (KIP-113).

Which of two folders is the partition's log is decided by what is on the disk, whenever the process or the machine ends:

| on the disk | the partition's log |
|---|---|
| the folder, and a `-future` folder elsewhere | the folder; the copy goes on |
| the folder, which has the intent (where it is moving to), and a `-future` folder there | the folder; it starts where either journal says |
| the folder with the intent, and one of the partition's name there | the latter; what is left of the former goes |
| the folder with the intent, while a directory can't be used | not known: the partition is offline until that directory works |

Guards: the copy takes its source's place in one turn of the loop, when it has all that its source has, and its log start, and those
producers that no batch tells of; the intent is on the disk before. Nothing that the new directory makes durable from then on is
acknowledged before the new name is durable, for its committer keeps the order. What lies below the source's log start is not served by the
new log either. What was compacted away doesn't come back: a source is compacted only as far as its copy is on the disk.

Source: KIP-113; Kafka's ReplicaManager.alterReplicaLogDirs and LogManager.replaceCurrentWithFutureLog; KAFKA-15082.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from lowtide.storage.directory.directory_erasures import MOVED, EraseChangedError, EraseFailedError
from lowtide.storage.directory.log_move import LogMove, take_intent_back
from lowtide.storage.directory.log_starts import LogStartIncrement
from lowtide.storage.directory.move_place import Allowance, MoveCounts, MovePlace
from lowtide.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping

    from lowtide.protocol.types import Offset, TopicPartition
    from lowtide.storage.directory.directory_erasures import OnErased
    from lowtide.storage.directory.directory_logs import DirectoryLogs
    from lowtide.storage.directory.log_settings import DirectoryPorts
    from lowtide.storage.log.log import Log

MOVES_AT_ONCE: Final = 4
"""Logs that are copied at a time; the others wait for their turn."""


class LogMoves:
    """The moves of one broker. Used from the event loop only."""

    def __init__(
        self,
        directories: Mapping[str, DirectoryLogs],
        ports: Mapping[str, DirectoryPorts],
        logs: MutableMapping[TopicPartition, Log],
    ) -> None:
        """`directories` and their `ports` by their paths; `logs` are those of the partitions, in which a copy replaces its source."""
        self._directories = directories
        self._ports = ports
        self._logs = logs
        self._moves: dict[TopicPartition, LogMove] = {}
        self._listeners: list[Callable[[Log, Log], None]] = []
        self._allowance = Allowance()
        self.counts = {path: MoveCounts() for path in directories}
        """By the path of the directory into which is moved."""

    def listen(self, on_moved: Callable[[Log, Log], None]) -> None:
        """From now on call this with the source and the log that has taken its place, within the turn in which it does."""
        self._listeners.append(on_moved)

    def limit(self, bytes_per_second: Callable[[], float]) -> None:
        """How much may be copied in a second, over all moves, as it is now."""
        self._allowance.limit(bytes_per_second)

    def __len__(self) -> int:
        return len(self._moves)

    @property
    def done(self) -> int:
        """Copies that have taken their source's place since the start, in all directories."""
        return sum(counts.done for counts in self.counts.values())

    def under_way(self) -> list[LogMove]:
        """Moves that have begun, also those that wait for their turn."""
        return list(self._moves.values())

    # ------------------------------------------------------------------ what is asked for
    def alter(self, log: Log, path: str) -> None:
        """Has a log moved into a directory, which works. Another move of it ends; to where it is already, that is all.

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
            is_going_on=self._is_going_on,
            on_failure=self._on_failure,
            on_moved=self._on_moved,
            on_named=self._on_named,
        )
        return LogMove(log, target, place, future=future)

    def resume(self, moving: Iterable[TopicPartition]) -> None:
        """After a start: goes on with the copies that were found, and removes those of logs that aren't here.

        `moving` were about to change their directory, and haven't. A copy whose source may be in a directory that can't be used stays.
        """
        for key in moving:
            log = self._logs.get(key)
            if log is not None and not log.offline:
                # Not before the journal has where it starts.
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
        if error is None and not (move is not None and move.says_so):
            take_intent_back(self._ports[log.parent_directory].filesystem, log)

    def move_of(self, log: Log) -> LogMove | None:
        """The move of a log, or of the log that this one is the copy of; None for none."""
        move = self._moves.get(log.topic_partition)
        return move if move is not None and log in (move.source, move.future) else None

    def compactable_to(self, log: Log) -> Offset | None:
        """Up to where (exclusive) a log may be compacted while it moves; None where there is no limit.

        A copy that has a record, but not yet the tombstone that deleted it, must still find that tombstone.
        """
        move = self._moves.get(log.topic_partition)
        return None if move is None or move.source is not log else move.durable_to

    # ------------------------------------------------------------------ what happens to logs that move
    def on_truncated(self, log: Log) -> None:
        """A log was cut, or is about to start over."""
        move = self._moves.get(log.topic_partition)
        if move is not None and move.source is log:
            move.on_truncated()

    def erase(self, log: Log, offset: Offset, on_done: OnErased) -> OnErased:
        """Called before a log's records below `offset` are erased: returns what is called then, so that its copy has none either.

        Also a copy that is begun meanwhile: it may have taken them from the file that is written again.
        """
        before = self._moves.get(log.topic_partition)

        def erased(error: EraseFailedError | None) -> None:
            move = self._moves.get(log.topic_partition)
            if error is not None:
                on_done(error)
            elif move is not None and move.source is log and self._is_going_on(move):
                move.erase(offset, on_done)
            elif before is None and move is None:
                on_done(None)
            else:
                on_done(EraseChangedError(MOVED))

        return erased

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """Logs that aren't here any more; their copies are deleted with them."""
        for key in keys:
            move = self._moves.pop(key, None)
            if move is not None:
                move.end()

    def on_directory_failed(self, path: str) -> None:
        """Moves from and to a directory that fails end. The next start that can use it goes on with them."""
        ended = [key for key, move in self._moves.items() if path in (move.source.parent_directory, move.target.path)]
        for key in ended:
            self.counts[self._moves[key].target.path].on_failed()
        self.forget(ended)

    def _give_up(self, move: LogMove) -> None:
        """The copy goes, and the log stays where it is."""
        key = move.source.topic_partition
        self.forget([key])
        if move.says_so:
            take_intent_back(self._ports[move.source.parent_directory].filesystem, move.source)
        if move.future is not None and move.target.logs.get(key) is move.future:
            move.target.delete([key], lambda _error: None, at_once=True)

    # ------------------------------------------------------------------ due work
    def round(self) -> Iterator[None]:
        """Takes the next step of moves that can take one. To be begun some twenty times a second."""
        if not self._moves:
            return
        self._allowance.grow(next(iter(self._ports.values())).clock.monotonic_ms())
        for move in list(self._moves.values())[:MOVES_AT_ONCE]:
            if self._is_going_on(move):
                move.step()
            else:
                self.forget([move.source.topic_partition])
            yield

    def _is_going_on(self, move: LogMove) -> bool:
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
            # A caller that has the source yet finds the other one when it asks again.
            log.is_future, log.offline = False, log is source
        for listener in self._listeners:
            listener(source, future)

    def _on_named(self, move: LogMove, error: OSError | None) -> None:
        """The copy has its name durably: what it was made from goes."""
        source, key = move.source, move.source.topic_partition
        directory = self._directories[source.parent_directory]
        if error is not None:
            move.target.fail(error)
        elif directory.logs.get(key) is source and not directory.state.is_stopped:
            directory.delete([key], lambda _error: None, at_once=True)
