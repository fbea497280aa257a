"""All log directories of a broker: their paths, their state, their contents, and how they are closed.

Their logs, and the choice of a directory for a new one, are in `log_manager`; the inside of one directory is in
`directory_logs`.

Source: Kafka's LogManager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.storage.checkpoint import META_PROPERTIES, decode_meta_properties
from lowtide.storage.directory.directory_reports import DirectoryUsage, JournalSize, Recovery
from lowtide.storage.directory.known_directories import KNOWN_DIRECTORIES, encode_known, read_known
from lowtide.storage.directory.registration_notes import RegistrationNotes
from lowtide.storage.errors import StorageError, is_passing, storage_error
from lowtide.storage.log.log_holes import LogHoles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from lowtide.protocol.types import Offset, TopicId, TopicPartition
    from lowtide.runtime.committer import Barrier, MeasuredCommitter
    from lowtide.runtime.filesystem import FileSystem
    from lowtide.storage.directory.directory_logs import DirectoryLogs
    from lowtide.storage.directory.erasure_waits import ErasureWaits
    from lowtide.storage.directory.held_answers import HeldAnswers
    from lowtide.storage.directory.log_moves import LogMoves
    from lowtide.storage.directory.set_aside_folders import SetAsideFolders
    from lowtide.storage.log.log import Log
    from lowtide.storage.log.opening.known_log import LogRepairs
    from lowtide.storage.log.segments.unfreed import PlannedRoom, UnfreedRoom


class LogDirectorySet:
    """The directories of a broker, by their paths."""

    def __init__(  # noqa: PLR0913  parts, each by its name
        self,
        filesystem: FileSystem,
        directories: Mapping[str, DirectoryLogs],
        committers: Mapping[str, MeasuredCommitter],
        given: Mapping[str, str],
        answers: HeldAnswers,
        moves: LogMoves,
        beside: SetAsideFolders,
    ) -> None:
        """`given` maps the paths of `directories` to those of `committers`, which are closed with the directories."""
        self.without_room: set[str] = set()
        """Directories to which writes were refused for lack of room: they report no usable bytes
        (`broker/lifecycle/disk_space.py`).
        """
        self.cordoned: frozenset[str] = frozenset()
        """Directories that receive no new logs (KIP-1066), except if no other one is online."""
        self._filesystem = filesystem
        self._given = given
        self._directories = directories
        self._moves = moves
        self._beside = beside
        self.answers = answers
        """Answers to large deletes, which wait until the room is free."""
        self.committers: Mapping[str, MeasuredCommitter] = {path: committers[given[path]] for path in directories}
        """By the paths of the directories."""
        self.notes = RegistrationNotes(directories)

    # At the start

    def known_cluster_id(self) -> str | None:
        """Returns the id of the cluster that the directories belong to; None if all are new. Takes no lock.

        Errors: StorageError for a `meta.properties` that can't be read, if no other one has the id.
        """
        failure: StorageError | None = None
        for path in self._directories:
            place = f"{path}/{META_PROPERTIES}"
            try:
                properties = (
                    decode_meta_properties(self._filesystem.read_bytes(place), place)
                    if self._filesystem.exists(place)
                    else None
                )
            except OSError as error:
                failure = failure or storage_error(place, error)
            except StorageError as error:
                failure = failure or error
            else:
                if properties is not None:
                    return properties.cluster_id
        if failure is not None:
            raise failure
        return None

    def note_known_directories(self, lost: Mapping[TopicId, str]) -> None:
        """Writes the names of all directories, even missing ones, to each, for the next start. It syncs."""
        known = dict(lost)
        for path, directory in self._directories.items():
            if directory.state.directory_id is not None:
                known[directory.state.directory_id] = self._filesystem.absolute_path(path)
        for path, directory in self._directories.items():
            if directory.is_online and read_known(self._filesystem, path) != known:
                try:
                    self._filesystem.replace_file(f"{path}/{KNOWN_DIRECTORIES}", encode_known(known))
                except OSError as error:
                    if not is_passing(error):
                        directory.fail(error)

    # What they are

    @property
    def paths(self) -> tuple[str, ...]:
        """All log directories, as they were configured."""
        return tuple(self._directories)

    def directory_id(self, path: str) -> TopicId:
        """Returns the id of a log directory; zero if it couldn't be opened."""
        return self._directories[path].state.directory_id or ZERO_TOPIC_ID

    def absolute_path(self, path: str) -> str:
        return self._filesystem.absolute_path(path)

    def usage(self, path: str) -> DirectoryUsage:
        """Returns the contents of a log directory, and its room.

        Errors: StorageError if it is offline or can't be asked.
        """
        directory = self._directories[path]
        if not directory.is_online:
            raise StorageError(path, f"the log directory is offline: {directory.state.offline_reason}")
        try:
            total_bytes, usable_bytes = self._filesystem.total_bytes(path), self._filesystem.free_bytes(path)
        except OSError as error:
            raise storage_error(path, error) from error
        return DirectoryUsage(
            absolute_path=self.absolute_path(path),
            logs=tuple(directory.logs.values()),
            total_bytes=total_bytes,
            usable_bytes=0 if path in self.without_room else usable_bytes,
            unfreed=directory.parts.removal.unfreed(),
            journal=JournalSize(directory.parts.journal.end, len(directory.parts.journal.entries)),
            erased=directory.parts.erasures.erased,
            to_erase=directory.parts.erasures.to_erase,
        )

    def free_bytes(self, path: str) -> int:
        """Returns how many bytes this process may still write to a directory's volume. Errors: StorageError."""
        try:
            return self._filesystem.free_bytes(path)
        except OSError as error:
            raise storage_error(path, error) from error

    def unfreed(self, path: str, log: Log) -> UnfreedRoom | None:
        """Returns the bytes below the start of a log that its first segment still holds; None if there are none."""
        return self._directories[path].parts.holes.unfreed(log)

    def planned(self, log: Log, offset: Offset) -> PlannedRoom:
        """Returns the bytes that a delete up to `offset` (exclusive) will free. Errors: StorageError."""
        holes = self._directories[log.parent_directory].parts.holes
        return LogHoles(log).planned(offset, holes.makes_none(log), holes.least_bytes)

    def erasure_waits(self, log: Log) -> ErasureWaits:
        """Returns why logs of a log's directory are not erased yet."""
        return self._directories[log.parent_directory].parts.erasures.waits

    def logs_in(self, path: str) -> Collection[Log]:
        """Returns a live view of the logs of a directory."""
        return self._directories[path].logs.values()

    def take_refused(self, path: str) -> bool:
        """Returns whether a write to the directory was refused for lack of room since the last call."""
        directory = self._directories[path]
        refused = [log for log in directory.logs.values() if log.disk_full]
        for log in refused:
            log.disk_full = False
        return bool(refused) or directory.parts.journal.is_stalled

    @property
    def without_holes(self) -> list[str]:
        """Directories whose file system can't make holes in files."""
        return [path for path, each in self._directories.items() if each.is_online and not each.parts.holes.can_punch]

    @property
    def recoveries(self) -> list[Recovery]:
        """The results of loading, for the directories that are online and held any logs."""
        return [
            Recovery(path, each.state.directory.stopped_cleanly, *each.checked)
            for path, each in self._directories.items()
            if each.checked.logs
        ]

    @property
    def strays(self) -> tuple[str, ...]:
        """Paths of folders in the log directories that aren't partitions; they are left alone."""
        return tuple(stray for directory in self._directories.values() for stray in directory.strays)

    @property
    def load_reports(self) -> dict[TopicPartition, LogRepairs]:
        """The repairs that loading made, by partition."""
        return {key: report for directory in self._directories.values() for key, report in directory.reports.items()}

    def cordon(self, given: Collection[str]) -> None:
        """Cordons exactly these directories, by the paths that they were configured with."""
        self.cordoned = frozenset(path for path in self._directories if self._given[path] in given)

    @property
    def all_cordoned(self) -> bool:
        """Whether all directories that are online are cordoned. False if none is online."""
        online = [path for path, each in self._directories.items() if each.is_online]
        return bool(online) and self.cordoned.issuperset(online)

    @property
    def any_is_online(self) -> bool:
        return any(directory.is_online for directory in self._directories.values())

    @property
    def offline(self) -> dict[str, str]:
        """The directories that are offline, with the reason."""
        return {
            path: directory.state.offline_reason or ""
            for path, directory in self._directories.items()
            if not directory.is_online
        }

    def commit(self, path: str, barrier: Barrier, on_done: Callable[[OSError | None], None]) -> None:
        """Makes other files in a log directory durable, after the writes in progress there."""
        self.committers[path].submit(barrier, on_done)

    def fail(self, path: str, error: OSError) -> None:
        """Takes a directory offline, because another file in it has failed."""
        self._directories[path].fail(error)

    # Due work

    def due_work(self, wall_ms: int) -> Iterator[None]:
        """Does the due work, one step at a time: flushes, checkpoints, removal of files, expiry of producers.

        Called about once a second, and always iterated to the end. A step takes well below a millisecond.
        """
        for directory in self._directories.values():
            yield from directory.due_work(wall_ms)

    def free_deleted(self) -> Iterator[None]:
        """Frees the room of deleted records, erases them, moves logs, and creates files of new ones, step by step.

        Called some twenty times a second.
        """
        for directory in self._directories.values():
            if directory.is_online:
                yield from directory.parts.holes.round()
                yield from directory.parts.erasures.round()
                yield from directory.loading.make_files()
        self.answers.release()
        yield from self._moves.round()
        yield from self._beside.round()

    def write_cleaner_checkpoints(self) -> Iterator[None]:
        """Writes how far logs are compacted, one step at a time, where that has changed."""
        for directory in self._directories.values():
            if directory.is_online:
                yield from directory.parts.cleanings.write()

    # Stopping

    def close(self, broker_epoch: int = -1) -> None:
        """Stops cleanly: all logs, checkpoints and journals durable, then the marker of each directory, then its lock.

        Blocks for the disk. Callers that wait for a log start are answered. The logs must not be used any more. Errors:
        the first StorageError, when all directories are done; a directory that failed has no marker.
        """
        failure: StorageError | None = None
        self._drain()
        for directory in self._directories.values():
            if directory.is_online:
                try:
                    directory.finish(broker_epoch)
                except StorageError as error:
                    failure = failure or error
            directory.release()
        if failure is not None:
            raise failure

    def release(self) -> None:
        """Ends without a clean stop: answers waiting requests and releases the locks. The next start recovers."""
        self._drain()
        for directory in self._directories.values():
            directory.release()

    def _drain(self) -> None:
        for directory in self._directories.values():
            directory.stop()
        self._beside.stop()
        self.answers.release()
        for committer in self.committers.values():
            committer.close()
