"""Opens all log directories of a broker at its start, and finds out which of them and their partitions can't be served.

Guards: a refused start has changed no log and no mark of a clean stop; a partition is in one directory only. A
partition that may be in a failed directory counts as offline and isn't created again, empty, in another one.

A directory that can't be created, read or written, or whose journal is damaged, goes offline if another one is left, as
in Kafka. So does a directory that was in use and is now empty, because its volume may not be mounted. The start is
refused in any case for a directory of another broker, one in use, a copy, one within another, or records of a
partition in two directories, and if the `required` directory fails.

Source: Kafka's LogManager and MetaPropertiesEnsemble; KIP-112.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from lowtide.protocol.types import ZERO_TOPIC_ID, Offset, TopicId, TopicPartition
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.checkpoint import META_PROPERTIES, PARTITION_METADATA
from lowtide.storage.directory.directory_logs import DirectoryLogs
from lowtide.storage.directory.known_directories import KNOWN_DIRECTORIES, read_known
from lowtide.storage.errors import RefusedDirectoryError, StorageError
from lowtide.storage.folder_names import parse_folder_name
from lowtide.storage.log.log_values import LogConfig
from lowtide.storage.log_directory import BrokerIdentity, list_directory, moving_to


class KnownTopic(NamedTuple):
    """A topic of the cluster's metadata, and the configuration of its logs."""

    topic_id: TopicId
    config: LogConfig


RememberedTopics: TypeAlias = Callable[[str], TopicId | None]
"""Returns the id of the topic with this name."""


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The broker that opens the directories, and the topics that it knows."""

    identity: BrokerIdentity
    required: str | None = None
    """The directory without which the broker can't start."""
    topics: Mapping[str, KnownTopic] = msgspec.field(default_factory=dict)
    """The topics of the cluster's metadata, by name."""
    deleted_topics: Container[TopicId] = ()
    """Topics that the metadata record as deleted: only their folders may be removed."""
    remembered_topics: Mapping[str, RememberedTopics] = msgspec.field(default_factory=dict)
    """The topics as they were when a directory was last used, by directory; directories that don't know are missing."""


class OfflinePartition(NamedTuple):
    """A partition that is, or may be, in a directory that can't be used. The id is zeros if unknown."""

    directory: str
    topic_id: TopicId


class OpeningResult(msgspec.Struct, kw_only=True):
    """The outcome of opening."""

    offline: dict[TopicPartition, OfflinePartition] = msgspec.field(default_factory=dict)
    lost: dict[TopicId, str] = msgspec.field(default_factory=dict)
    """Directories that this broker had, by id, with unknown content."""
    moving: list[TopicPartition] = msgspec.field(default_factory=list)
    """Partitions whose move between directories was interrupted by the stop."""


def check_places(filesystem: FileSystem, paths: Sequence[str]) -> None:
    """Checks that no directory is given twice or lies within another one. Errors: RefusedDirectoryError.

    A directory `disk-1` within another one has the name of partition 1 of a topic `disk`: with such a topic, its logs
    would be written there, and a delete of the topic would remove the directory.
    """
    places = [filesystem.absolute_path(path) for path in paths]
    for path, place in sorted(zip(paths, places, strict=True)):
        if places.count(place) > 1:
            raise RefusedDirectoryError(path, "the log directory is given twice")
        for other, around in zip(paths, places, strict=True):
            if place != around and place.startswith(around.rstrip("/") + "/"):
                raise RefusedDirectoryError(path, f"the log directory is within {other}, which is one too")


def open_directories(
    filesystem: FileSystem, directories: Mapping[str, DirectoryLogs], request: OpenRequest
) -> OpeningResult:
    """Opens, prepares and loads all directories; those that fail are offline afterwards.

    Start code: it syncs, and may take long. Errors: RefusedDirectoryError, as described above; StorageError, the first
    one, if no directory is left or the required one fails.
    """
    opening = _Opening(filesystem, directories, request)
    for path, directory in directories.items():
        if opening.is_missing(path):
            opening.on_missing(path)
            continue
        try:
            directory.open(request.identity)
        except RefusedDirectoryError:
            raise
        except StorageError as error:
            opening.on_failed(path, error)
    _check_ids(directories)
    for path, directory in directories.items():
        if directory.is_online:
            try:
                directory.prepare()
            except StorageError as error:
                opening.on_failed(path, error)
    opening.check_any_is_left()
    opening.set_aside_unidentified()
    opening.settle_repeated_partitions()
    opening.settle_moves()
    for path, directory in directories.items():
        if directory.is_online:
            try:
                directory.load({name: topic.config for name, topic in request.topics.items()}, opening.starts)
            except StorageError as error:
                opening.on_failed(path, error)
    opening.check_any_is_left()
    return OpeningResult(offline=opening.offline, lost=opening.lost_directories(), moving=list(opening.starts))


def _check_ids(directories: Mapping[str, DirectoryLogs]) -> None:
    by_id: dict[TopicId, str] = {}
    for path, directory in directories.items():
        if directory.state.directory_id is not None:
            other = by_id.setdefault(directory.state.directory_id, path)
            if other != path:
                reason = f"the log directory has the same directory.id as {other}; one of them is a copy"
                raise RefusedDirectoryError(path, reason)


class _Opening:
    def __init__(self, filesystem: FileSystem, directories: Mapping[str, DirectoryLogs], request: OpenRequest) -> None:
        self.offline: dict[TopicPartition, OfflinePartition] = {}
        self._filesystem = filesystem
        self._directories = directories
        self._request = request
        self.starts: dict[TopicPartition, Offset] = {}
        """The lowest start offsets of partitions that were about to move."""
        self._failure: StorageError | None = None
        self._listed: set[str] = set()
        self._known_paths = {known for path in directories for known in read_known(filesystem, path).values()}

    def is_missing(self, path: str) -> bool:
        """Returns whether a directory that the others name is empty: an unmounted mount point, or a new disk."""
        if self._filesystem.absolute_path(path) not in self._known_paths or self._filesystem.exists(
            f"{path}/{META_PROPERTIES}"
        ):
            return False
        if not self._filesystem.exists(path):
            return True
        try:
            return not any(parse_folder_name(name) for name in self._filesystem.listdir(path))
        except OSError:
            return False

    def on_missing(self, path: str) -> None:
        """Takes a missing directory offline. Nothing is written there: a volume may be mounted over it at any time."""
        self._take_offline(
            path,
            StorageError(
                path,
                f"the log directory has no {META_PROPERTIES} though this broker used it; is its volume mounted? "
                f"If its content is gone for good, remove {KNOWN_DIRECTORIES} from the other log directories: "
                "what was in it then starts over, empty",
            ),
        )

    def on_failed(self, path: str, error: StorageError) -> None:
        """Takes a failed directory offline, and lists its partitions as far as possible."""
        self._take_offline(path, error)
        try:
            partitions = list_directory(self._filesystem, path).partitions
        except OSError:
            return
        self._listed.add(self._filesystem.absolute_path(path))
        self.offline |= {key: OfflinePartition(path, topic_id) for key, topic_id in partitions.items()}

    def _take_offline(self, path: str, error: StorageError) -> None:
        if path == self._request.required:
            raise error
        self._failure = self._failure or error
        self._directories[path].fail(error)

    def check_any_is_left(self) -> None:
        if self._failure is not None and not any(directory.is_online for directory in self._directories.values()):
            raise self._failure

    def set_aside_unidentified(self) -> None:
        """Sets aside folders that a power cut left without their topic id, unless the topic still has its name.

        Such a folder belongs to the topic that had the name then, not to one created since. It can be set aside,
        because everything that was promised to be durable has its topic id durably. A directory that doesn't remember
        topics, such as Kafka's, is assumed to have those of the metadata.
        """
        for path, remembered in self._request.remembered_topics.items():
            directory = self._directories[path]
            if not directory.is_online:
                continue
            for key in [key for key, topic_id in directory.folders.items() if topic_id == ZERO_TOPIC_ID]:
                before, topic = remembered(key.topic), self._request.topics.get(key.topic)
                if before is None or topic is None or before != topic.topic_id:
                    directory.leave_out(key, is_deleted=before is not None and before in self._request.deleted_topics)

    def settle_repeated_partitions(self) -> None:
        """Removes one folder if two directories have a partition, and that one has no records or a deleted topic's.

        Refuses anything else.
        """
        found: dict[TopicPartition, OfflinePartition] = dict(self.offline)
        for path, directory in self._directories.items():
            if not directory.is_online:
                continue
            for key, topic_id in list(directory.folders.items()):
                here, there = OfflinePartition(path, topic_id), found.get(key)
                if there is None:
                    found[key] = here
                elif self._is_left_over(key, there, here):
                    found[key] = here
                    self._leave_out(key, there)
                elif self._is_left_over(key, here, there):
                    self._leave_out(key, here)
                elif self._has_moved(key, there, here):
                    found[key] = here
                    self._leave_moved(key, there)
                elif self._has_moved(key, here, there):
                    self._leave_moved(key, here)
                elif self._is_blank(key, there, here):
                    found[key] = here
                    self._directories[there.directory].leave_out(key, is_deleted=True)
                elif self._is_blank(key, here, there):
                    directory.leave_out(key, is_deleted=True)
                else:
                    reason = f"the partition is in {there.directory} too; one of the folders must be moved away"
                    raise RefusedDirectoryError(directory.folder(key), reason)

    def _is_left_over(self, key: TopicPartition, one: OfflinePartition, other: OfflinePartition) -> bool:
        """Returns whether `one` is of a topic deleted while its directory was offline, and `other` is not.

        A folder without an id is of the topic that has the name now (`set_aside_unidentified`).
        """
        if one.topic_id in {ZERO_TOPIC_ID, other.topic_id}:
            return False
        topic = self._request.topics.get(key.topic)
        return one.topic_id in self._request.deleted_topics or (
            topic is not None and one.topic_id != topic.topic_id and other.topic_id in {topic.topic_id, ZERO_TOPIC_ID}
        )

    def _is_blank(self, key: TopicPartition, one: OfflinePartition, other: OfflinePartition) -> bool:
        """Returns whether the folder of `one` has no records, so that it can be removed and `other` is the log.

        If a log cannot be created in one directory, it is created in another. An empty folder may stay in the first:
        to remove it may have failed for want of file descriptors, or a power cut brought it back.
        """
        directory = self._directories[one.directory]
        if (
            one.topic_id not in {ZERO_TOPIC_ID, other.topic_id}
            or not directory.is_online
            or directory.parts.journal.value(one.topic_id, key.partition) is not None
        ):
            return False
        folder = directory.folder(key)
        try:
            return not any(
                self._filesystem.file_size(f"{folder}/{name}")
                for name in self._filesystem.listdir(folder)
                if name != PARTITION_METADATA
            )
        except OSError:
            return False

    def _leave_out(self, key: TopicPartition, place: OfflinePartition) -> None:
        if self.offline.get(key) == place:
            del self.offline[key]
        else:
            self._directories[place.directory].leave_out(key, is_deleted=place.topic_id in self._request.deleted_topics)

    def _has_moved(self, key: TopicPartition, one: OfflinePartition, other: OfflinePartition) -> bool:
        if one.topic_id != other.topic_id:
            return False
        try:
            to = moving_to(self._filesystem, f"{one.directory}/{key}")
            return to is not None and to == self._id_of(other.directory)
        except OSError:
            return False

    def _id_of(self, path: str) -> TopicId | None:
        """Returns the id of a directory, also of one that can't be used, as the others know it."""
        own = self._directories[path].state.directory_id
        if own is not None:
            return own
        known = {
            place: identity
            for each in self._directories
            for identity, place in read_known(self._filesystem, each).items()
        }
        return known.get(self._filesystem.absolute_path(path))

    def _leave_moved(self, key: TopicPartition, place: OfflinePartition) -> None:
        """Leaves a log that has moved to another directory. Its old files are removed once that directory works."""
        if self.offline.get(key) == place:
            del self.offline[key]
        elif key in self.offline:
            self._directories[place.directory].hide(key)
        else:
            self._directories[place.directory].leave_out(key, is_deleted=True)

    def settle_moves(self) -> None:
        """Makes a partition whose move was interrupted start at the higher of the two directories' starts.

        If the other directory doesn't work, the partition may be in there. Then it is offline.
        """
        online = [directory for directory in self._directories.values() if directory.is_online]
        for directory in online:
            for key, topic_id in list(directory.folders.items()):
                if moving_to(self._filesystem, directory.folder(key)) is None:
                    continue
                if self._failure is not None:
                    self.offline[key] = OfflinePartition(directory.path, topic_id)
                    directory.hide(key)
                else:
                    starts = [each.parts.journal.value(topic_id, key.partition) or Offset(0) for each in online]
                    self.starts[key] = max(starts)

    def lost_directories(self) -> dict[TopicId, str]:
        """Returns the directories that others name, except those whose content is known."""
        online = [directory for directory in self._directories.values() if directory.is_online]
        known: dict[TopicId, str] = {}
        for directory in online:
            known |= read_known(self._filesystem, directory.path)
        here = {directory.state.directory_id for directory in online}
        return {identity: path for identity, path in known.items() if identity not in here and path not in self._listed}
