"""One log directory: its lock, its owner, how it was left, and whether it still works.

Guards: one broker at a time writes here (a lock), and only a broker of the cluster that the directory belongs to
(`meta.properties`). The marker of a clean stop is removed durably before any log is changed, so a later crash can't
pass for a clean stop, but only after everything was checked that may make a broker refuse to start.

It doesn't know logs; it only lists the folders that hold partitions.

Sources: Kafka's LogManager, MetaPropertiesEnsemble and CleanShutdownFileHandler; KIP-858 for `directory.id`.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId, TopicPartition
from lowtide.runtime.filesystem import AlreadyLockedError, FileSystem, Lock
from lowtide.runtime.random import Random
from lowtide.storage.checkpoint import (
    CLEAN_SHUTDOWN_MARKER,
    META_PROPERTIES,
    PARTITION_METADATA,
    CheckpointError,
    MetaProperties,
    decode_meta_properties,
    decode_partition_metadata,
    encode_meta_properties,
    parent_directory,
)
from lowtide.storage.errors import RefusedDirectoryError, StorageError, is_passing, storage_error

LOCK_FILE = ".lock"
REGISTRATION_COUNTER = "lowtide-registration"
"""The number of the last registration under which the directory was used, in decimal. Each registration rewrites it
durably; a directory in which it is missing or behind the cluster's is stale.
"""

PAGE_CACHE_NOTE = "lowtide-page-cache"
"""Identifies the memory through which files were written since the last start: while it lives, unsynced bytes aren't
lost.
"""

PROCESSES_FOLDER = "lowtide-processes"
"""In a log directory of the first of several brokers of a machine: the log directories of the others, each under its
id.
"""

MOVING_TO = "lowtide-moving-to"
"""In the folder of a partition whose copy is about to take its place: the `directory.id` of the copy's directory, in
hexadecimal. From then on either may be the partition's log, until one of the two folders is removed.
"""

KAFKA_METADATA_TOPIC = "__cluster_metadata"
"""Kafka's own metadata log: it lies among the partitions and is not to be recovered, cut or served."""

_NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_PARTITION_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})")
_FUTURE_FOLDER = re.compile(r"(?P<partition>.+-[0-9]+)\.[0-9a-f]{32}-future")
_DELETED_FOLDER = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-delete")
_RENAMED_FOLDER = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]+)\.[0-9a-f]{32}-(delete|stray|future)")
_MAX_PARTITION = 2**31 - 1
_FOLDER_NAME_MAX = 255


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The broker that opens a directory."""

    cluster_id: str
    node_id: int


class LogDirectory:
    """An open log directory; holds its lock until `release`."""

    def __init__(
        self,
        filesystem: FileSystem,
        path: str,
        lock: Lock,
        properties: MetaProperties,
        *,
        stopped_cleanly: bool,
        may_lack_records: bool,
    ) -> None:
        self.path = path
        self.properties = properties
        self.stopped_cleanly = stopped_cleanly
        """Whether the marker of a clean stop was found: the logs need no recovery."""
        self.may_lack_records = may_lack_records
        """Whether the directory was, or may have been, in use when the machine stopped: unsynced bytes may be lost."""
        self.offline_reason: str | None = None
        """Why the directory isn't used any more; None while it is online."""
        self._filesystem = filesystem
        self._lock = lock

    @classmethod
    def open(cls, filesystem: FileSystem, path: str, identity: Identity, random: Random) -> LogDirectory:
        """Locks the directory for the broker `identity`; creates it, with its owner, if it is new.

        Start code: it syncs. The logs may be read, not changed, before `begin_use`. Errors, in one sentence each:
        RefusedDirectoryError for a lock that another process holds, a directory of another cluster or node, and
        partitions without a `meta.properties`; StorageError for a path that isn't a folder or cannot be created, read
        or written.
        """
        lock = _locked(filesystem, path)
        try:
            lacks = may_lack_records(filesystem, path)
            properties = _claimed(filesystem, path, identity, random)
            filesystem.make_private(path)  # Older versions, and Apache Kafka, created what all users read.
            stopped_cleanly = filesystem.exists(f"{path}/{CLEAN_SHUTDOWN_MARKER}")
        except OSError as error:
            lock.release()
            raise _unusable(path, error) from error
        except StorageError:
            lock.release()
            raise
        return cls(filesystem, path, lock, properties, stopped_cleanly=stopped_cleanly, may_lack_records=lacks)

    def begin_use(self) -> None:
        """Removes the marker of a clean stop. Start code: it syncs. Errors: OSError."""
        if self.stopped_cleanly:
            self._filesystem.unlink(f"{self.path}/{CLEAN_SHUTDOWN_MARKER}")
            self._filesystem.sync_directory(self.path)

    def check_is_there(self) -> None:
        """Fails if the directory was removed or unmounted. Errors: OSError.

        Creating a log would otherwise create it again, without an owner.
        """
        if not self._filesystem.exists(f"{self.path}/{META_PROPERTIES}"):
            raise OSError(errno.ENOENT, "the log directory is gone", self.path)

    @property
    def is_online(self) -> bool:
        """Whether the directory's logs are served."""
        return self.offline_reason is None

    @property
    def directory_id(self) -> TopicId:
        """The sixteen bytes that identify this directory in the cluster's metadata."""
        return self.properties.directory_id

    def fail(self, reason: str) -> bool:
        """Takes the directory offline. Returns whether it was online. It stays locked until the stop."""
        if self.offline_reason is not None:
            return False
        self.offline_reason = reason
        return True

    def registration(self) -> int | None:
        """Returns the number of the last registration that reached this directory.

        None if unknown: the directory is stale then.
        """
        path = f"{self.path}/{REGISTRATION_COUNTER}"
        if not self._filesystem.exists(path):
            return None
        text = self._filesystem.read_bytes(path).strip()
        return int(text) if text.isdigit() else None

    def write_registration(self, number: int) -> None:
        """Notes the number of a registration durably. Start code: it syncs. Errors: OSError."""
        assert number >= 0, number
        self._filesystem.replace_file(f"{self.path}/{REGISTRATION_COUNTER}", b"%d\n" % number)

    def note_page_cache(self) -> None:
        """Notes durably through which memory files are written: what was lost before is known.

        Start code. Errors: OSError.
        """
        cache = self._filesystem.page_cache_id()
        if cache is not None and not _has_kept_page_cache(self._filesystem, self.path):
            self._filesystem.replace_file(f"{self.path}/{PAGE_CACHE_NOTE}", f"{cache}\n".encode())

    def release(self) -> None:
        """Releases the lock; another broker may use the directory."""
        self._lock.release()


def may_lack_records(filesystem: FileSystem, path: str) -> bool:
    """Returns whether a directory was, or may have been, in use when the machine stopped. Errors: OSError."""
    was_used, stopped_cleanly = (
        filesystem.exists(f"{path}/{name}") for name in (META_PROPERTIES, CLEAN_SHUTDOWN_MARKER)
    )
    return was_used and not stopped_cleanly and not _has_kept_page_cache(filesystem, path)


def _has_kept_page_cache(filesystem: FileSystem, path: str) -> bool:
    """Returns whether the files were written through the memory that is there now. Errors: OSError."""
    note, cache = f"{path}/{PAGE_CACHE_NOTE}", filesystem.page_cache_id()
    return cache is not None and filesystem.exists(note) and filesystem.read_bytes(note).strip() == cache.encode()


class FutureFolder(NamedTuple):
    """The folder of a log that is being moved into a directory (KIP-113). The id is zeros if unknown."""

    name: str
    topic_id: TopicId


class DirectoryListing(msgspec.Struct, frozen=True, kw_only=True):
    """The folders of a log directory, by what they hold."""

    partitions: dict[TopicPartition, TopicId]
    """Each partition's folder is `<path>/<topic>-<partition>`. The id is zeros if `partition.metadata` doesn't have it.
    """
    deleted: tuple[str, ...]
    """Names of folders of deleted partitions, still to be removed."""
    strays: tuple[str, ...]
    """Names of unknown folders, which are left alone."""
    futures: dict[TopicPartition, FutureFolder] = msgspec.field(default_factory=dict)
    """Folders of logs that are being moved here."""


def list_directory(filesystem: FileSystem, path: str) -> DirectoryListing:
    """Lists the folders of a log directory. Errors: OSError; StorageError for a malformed `partition.metadata`."""
    partitions: dict[TopicPartition, TopicId] = {}
    deleted: list[str] = []
    strays: list[str] = []
    futures: dict[TopicPartition, FutureFolder] = {}
    for name in sorted(filesystem.listdir(path)):
        folder = f"{path}/{name}"
        if name == PROCESSES_FOLDER or not filesystem.is_directory(folder):
            continue
        topic_partition = parse_folder_name(name)
        if topic_partition is not None:
            partitions[topic_partition] = topic_id_in(filesystem, folder)
        elif (future := parse_future_name(name)) is not None:
            if future in futures:
                deleted.append(name)
            else:
                futures[future] = FutureFolder(name, topic_id_in(filesystem, folder))
        elif _DELETED_FOLDER.fullmatch(name):
            deleted.append(name)
        else:
            strays.append(name)
    return DirectoryListing(partitions=partitions, deleted=tuple(deleted), strays=tuple(strays), futures=futures)


def parse_folder_name(name: str) -> TopicPartition | None:
    """Returns the partition whose folder has this name; None if it is no partition's."""
    match = _PARTITION_FOLDER.fullmatch(name)
    if match is None or match["topic"] in {".", "..", KAFKA_METADATA_TOPIC} or int(match["partition"]) > _MAX_PARTITION:
        return None
    return TopicPartition(match["topic"], int(match["partition"]))


def parse_future_name(name: str) -> TopicPartition | None:
    """Returns the partition whose log is being moved into the folder of this name; None if it is no such folder."""
    match = _FUTURE_FOLDER.fullmatch(name)
    return None if match is None else parse_folder_name(match["partition"])


def future_folder_name(topic_partition: TopicPartition, random: Random) -> str | None:
    """Returns a new name for the folder that a log is moved into, as in Kafka; None for too long a topic."""
    return _future_name(topic_partition, random.getrandbits(128)) if can_be_moved(topic_partition) else None


def can_be_moved(topic_partition: TopicPartition) -> bool:
    """Whether the folder that its log would be moved into can have a name."""
    return len(_future_name(topic_partition, 0)) <= _FOLDER_NAME_MAX


def _future_name(topic_partition: TopicPartition, number: int) -> str:
    return f"{topic_partition}.{number:032x}-future"


def moving_to(filesystem: FileSystem, folder: str) -> TopicId | None:
    """The id of the directory that a partition's log was about to move to; None if there is none. Errors: OSError."""
    path = f"{folder}/{MOVING_TO}"
    if not filesystem.exists(path):
        return None
    try:
        return bytes.fromhex(filesystem.read_bytes(path).decode())
    except ValueError:
        return None  # A power cut before it was durable: then nothing has moved.


def deleted_partition(filesystem: FileSystem, path: str, name: str) -> tuple[TopicId, int] | None:
    """Returns topic id and partition of the deleted folder `name`; None if the folder doesn't say any more."""
    topic_id = topic_id_in(filesystem, f"{path}/{name}")
    return None if topic_id == ZERO_TOPIC_ID else (topic_id, int(name.rpartition(".")[0].rpartition("-")[2]))


def is_deleted_folder(name: str) -> bool:
    """Returns whether a folder of this name is being deleted."""
    return _DELETED_FOLDER.fullmatch(name) is not None


def partition_of_folder(name: str) -> tuple[TopicPartition, bool] | None:
    """Returns the partition that a folder is or was of, also a renamed one; None if it is no partition's.

    True if the topic's name may have been cut: then it is only its beginning, and the folder has the id.
    """
    match = _RENAMED_FOLDER.fullmatch(name)
    if match is None:
        plain = parse_folder_name(name)
        return None if plain is None else (plain, False)
    return TopicPartition(match["topic"], int(match["partition"])), len(name) == _FOLDER_NAME_MAX


def deleted_folder_name(topic_partition: TopicPartition, random: Random) -> str:
    """Returns a new name for the folder of a deleted partition. A long topic is cut, as in Kafka, to fit 255 bytes."""
    return _fresh_folder_name(topic_partition, random, "delete")


def stray_folder_name(topic_partition: TopicPartition, random: Random) -> str:
    """Returns a new name for a folder that is set aside: nothing removes it.

    Source: Kafka's `UnifiedLog.logStrayDirName`.
    """
    return _fresh_folder_name(topic_partition, random, "stray")


def _fresh_folder_name(topic_partition: TopicPartition, random: Random, ending: str) -> str:
    suffix = f"-{topic_partition.partition}.{random.getrandbits(128):032x}-{ending}"
    return topic_partition.topic[: _FOLDER_NAME_MAX - len(suffix)] + suffix


def topic_id_in(filesystem: FileSystem, folder: str) -> TopicId:
    """Returns the topic id in a partition's folder; zeros if the file is absent, empty or torn, as a new log's."""
    path = f"{folder}/{PARTITION_METADATA}"
    if not filesystem.exists(path):
        return ZERO_TOPIC_ID
    try:
        return decode_partition_metadata(filesystem.read_bytes(path), path)
    except CheckpointError:
        return ZERO_TOPIC_ID


def _locked(filesystem: FileSystem, path: str) -> Lock:
    if filesystem.exists(path) and not filesystem.is_directory(path):
        raise StorageError(path, "the log directory is a file, it must be a folder")
    try:
        filesystem.make_directories(path)
        _sync_names_above(filesystem, path)
        return filesystem.lock(f"{path}/{LOCK_FILE}")
    except AlreadyLockedError as error:
        reason = (
            f"the log directory is in use by another broker, which holds {LOCK_FILE}; "
            "stop it, or give this one another directory"
        )
        raise RefusedDirectoryError(path, reason) from error
    except OSError as error:
        raise _unusable(path, error) from error


def _sync_names_above(filesystem: FileSystem, path: str) -> None:
    """Makes durable that the directory exists, whichever process created it.

    Parent folders that can't be opened are skipped.
    """
    above = path
    while above not in {"/", "."}:
        above = parent_directory(above)
        with contextlib.suppress(PermissionError, FileNotFoundError):
            filesystem.sync_directory(above)


def _unusable(path: str, error: OSError) -> StorageError:
    if error.errno in _NOT_WRITABLE:
        return StorageError(
            path, f"the log directory can't be written ({error.strerror}); a broker needs to read and write it"
        )
    if error.errno == errno.ENOTDIR:
        return StorageError(path, "the log directory cannot be created, because a part of its path is a file")
    return storage_error(path, error)


def _claimed(filesystem: FileSystem, path: str, identity: Identity, random: Random) -> MetaProperties:
    """Reads the owner of the directory, and writes this broker as the owner if it has none."""
    place = f"{path}/{META_PROPERTIES}"
    known = decode_meta_properties(filesystem.read_bytes(place), place) if filesystem.exists(place) else None
    if known is None:
        partition = next(filter(None, map(parse_folder_name, filesystem.listdir(path))), None)
        if partition is not None:
            reason = (
                f"the log directory holds partitions ({partition}) but {META_PROPERTIES}, "
                "which says whose they are, is missing or empty"
            )
            raise RefusedDirectoryError(path, reason)
    elif known.cluster_id != identity.cluster_id:
        owner = f"cluster {known.cluster_id!r} ({META_PROPERTIES}), this broker is of {identity.cluster_id!r}"
        reason = f"the log directory belongs to {owner}"
        raise RefusedDirectoryError(path, reason)
    elif known.node_id != identity.node_id:
        owner = f"node {known.node_id} ({META_PROPERTIES}), this broker is node {identity.node_id}"
        reason = f"the log directory belongs to {owner}"
        raise RefusedDirectoryError(path, reason)
    elif known.directory_id != ZERO_TOPIC_ID:
        # Without writing, a directory that can't be written would pass until the first append.
        _check_writable(filesystem, path)
        return known
    properties = MetaProperties(
        cluster_id=identity.cluster_id,
        node_id=identity.node_id,
        directory_id=_fresh_id(random.getrandbits),
        others=known.others if known else {},
    )
    filesystem.replace_file(place, encode_meta_properties(properties))
    return properties


def _check_writable(filesystem: FileSystem, path: str) -> None:
    """Checks that the directory can be written. A full disk is accepted: deletes free it, and need a running broker."""
    probe = f"{path}/.lowtide-write-check"
    with contextlib.suppress(FileNotFoundError):
        filesystem.unlink(probe)
    try:
        filesystem.write_bytes(probe, b"")
    except OSError as error:
        if not is_passing(error):
            raise
    else:
        filesystem.unlink(probe)


def _fresh_id(getrandbits: Callable[[int], int]) -> TopicId:
    """Returns a random id (UUID version 4) whose text doesn't begin with a dash, which looks like an option."""
    while True:
        bits = getrandbits(128)
        bits = bits & ~(0xF << 76) | 4 << 76
        bits = bits & ~(0x3 << 62) | 2 << 62
        fresh = bits.to_bytes(16, "big")
        if fresh[0] >> 2 != _DASH and fresh != ZERO_TOPIC_ID:
            return fresh


_DASH = 62
"""The value that URL-safe base64 writes as `-`."""
