"""One log directory: its lock, its owner, how it was left, and whether it still works.

Guards: only one broker at a time writes here (a lock), and only a broker of the cluster that the directory belongs to
(`meta.properties`). The marker of a clean stop is removed durably before any log is changed, so that a later crash
can't pass for a clean stop; but only after all checks that may refuse the start.

It doesn't know logs; it only lists the folders that hold partitions.

Sources: Kafka's LogManager, MetaPropertiesEnsemble and CleanShutdownFileHandler; KIP-858 for `directory.id`.
"""

from __future__ import annotations

import contextlib
import errno
from typing import NamedTuple

import msgspec

from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId, TopicPartition, random_uuid
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
from lowtide.storage.folder_names import is_deleted_folder, parse_folder_name, parse_future_name

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


_NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class BrokerIdentity(msgspec.Struct, frozen=True, kw_only=True):
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
    def open(cls, filesystem: FileSystem, path: str, identity: BrokerIdentity, random: Random) -> LogDirectory:
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
        """Checks that the directory was not removed or unmounted. Errors: OSError.

        Without this check the creation of a log would create the directory again, without a lock.
        """
        if not self._filesystem.exists(f"{self.path}/{META_PROPERTIES}"):
            raise OSError(errno.ENOENT, "the log directory is gone", self.path)

    @property
    def is_online(self) -> bool:
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
        """Returns the number of the last registration that reached this directory; None, which is stale, if unknown."""
        path = f"{self.path}/{REGISTRATION_COUNTER}"
        if not self._filesystem.exists(path):
            return None
        text = self._filesystem.read_bytes(path).strip()
        return int(text) if text.isdigit() else None

    def write_registration(self, number: int) -> None:
        """Writes the number of a registration durably. Start code: it syncs. Errors: OSError."""
        assert number >= 0, number
        self._filesystem.replace_file(f"{self.path}/{REGISTRATION_COUNTER}", b"%d\n" % number)

    def note_page_cache(self) -> None:
        """Writes the id of the page cache that files go through, durably. Start code. Errors: OSError."""
        cache = self._filesystem.page_cache_id()
        if cache is not None and not _has_kept_page_cache(self._filesystem, self.path):
            self._filesystem.replace_file(f"{self.path}/{PAGE_CACHE_NOTE}", f"{cache}\n".encode())

    def release(self) -> None:
        self._lock.release()


def may_lack_records(filesystem: FileSystem, path: str) -> bool:
    """Returns whether a directory was, or may have been, in use when the machine stopped. Errors: OSError."""
    was_used, stopped_cleanly = (
        filesystem.exists(f"{path}/{name}") for name in (META_PROPERTIES, CLEAN_SHUTDOWN_MARKER)
    )
    return was_used and not stopped_cleanly and not _has_kept_page_cache(filesystem, path)


def _has_kept_page_cache(filesystem: FileSystem, path: str) -> bool:
    """Returns whether the files were written through memory that still exists. Errors: OSError."""
    note, cache = f"{path}/{PAGE_CACHE_NOTE}", filesystem.page_cache_id()
    return cache is not None and filesystem.exists(note) and filesystem.read_bytes(note).strip() == cache.encode()


class FutureFolder(NamedTuple):
    """The folder of a log that is being moved into a directory (KIP-113). The id is zeros if unknown."""

    name: str
    topic_id: TopicId


class DirectoryListing(msgspec.Struct, frozen=True, kw_only=True):
    """The folders of a log directory, by kind."""

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
        elif is_deleted_folder(name):
            deleted.append(name)
        else:
            strays.append(name)
    return DirectoryListing(partitions=partitions, deleted=tuple(deleted), strays=tuple(strays), futures=futures)


def moving_to(filesystem: FileSystem, folder: str) -> TopicId | None:
    """Returns the id of the directory that a partition's log was about to move to, if any. Errors: OSError."""
    path = f"{folder}/{MOVING_TO}"
    if not filesystem.exists(path):
        return None
    try:
        return bytes.fromhex(filesystem.read_bytes(path).decode())
    except ValueError:
        return None  # A power cut before it was durable: then nothing has moved.


def deleted_partition(filesystem: FileSystem, path: str, name: str) -> tuple[TopicId, int] | None:
    """Returns topic id and partition of the deleted folder `name`; None if the folder no longer has the id."""
    topic_id = topic_id_in(filesystem, f"{path}/{name}")
    return None if topic_id == ZERO_TOPIC_ID else (topic_id, int(name.rpartition(".")[0].rpartition("-")[2]))


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
    """Makes durable that the directory exists, whichever process created it; skips parents that can't be opened."""
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


def _claimed(filesystem: FileSystem, path: str, identity: BrokerIdentity, random: Random) -> MetaProperties:
    """Reads the owner of the directory, or writes this broker as the owner if it has none."""
    place = f"{path}/{META_PROPERTIES}"
    known = decode_meta_properties(filesystem.read_bytes(place), place) if filesystem.exists(place) else None
    reason: str | None = None
    if known is None:
        partition = next(filter(None, map(parse_folder_name, filesystem.listdir(path))), None)
        if partition is not None:
            reason = (
                f"holds partitions ({partition}) but {META_PROPERTIES}, which says whose they are, is missing or empty"
            )
    elif known.cluster_id != identity.cluster_id:
        reason = (
            f"belongs to cluster {known.cluster_id!r} ({META_PROPERTIES}), this broker is of {identity.cluster_id!r}"
        )
    elif known.node_id != identity.node_id:
        reason = f"belongs to node {known.node_id} ({META_PROPERTIES}), this broker is node {identity.node_id}"
    if reason is not None:
        raise RefusedDirectoryError(path, f"the log directory {reason}")
    if known is not None and known.directory_id != ZERO_TOPIC_ID:
        # Without writing, a directory that can't be written would pass until the first append.
        _check_writable(filesystem, path)
        return known
    properties = MetaProperties(
        cluster_id=identity.cluster_id,
        node_id=identity.node_id,
        directory_id=random_uuid(random.randbytes),
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
