"""Searches copies of log directories for records that receipts say were erased. Only reads; no broker must run.

All folders with the topic's id are read, also moved, deleted and set aside ones, and all files with records in them,
also those of an unfinished cleaning. Folders whose id is lost count by their name. One batch is in memory at a time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import msgspec

from lowtide.admin.receipts.statement import LeaderSearch
from lowtide.cli.dumped_batches import RECORD_BYTES_MAX, DumpedBatch, Unwritten, dump_batches
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import Record, iterate_records
from lowtide.protocol.types import ZERO_TOPIC_ID, LeaderEpoch, Offset, TopicId, topic_id_text
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.checkpoint import META_PROPERTIES, decode_meta_properties
from lowtide.storage.errors import StorageError
from lowtide.storage.folder_names import partition_of_folder
from lowtide.storage.log_directory import PROCESSES_FOLDER, topic_id_in

DiskFault: TypeAlias = Literal["still_there", "key_still_there", "key_came_back", "unreadable"]

_RECORD_FILE: Final = re.compile(r".*\.log(\..+)?")
"""Segments, and with `.cleaned`, `.swap`, `.deleted` or another ending former or future ones."""


class DiskFinding(msgspec.Struct, frozen=True):
    """A record that is on a disk, or bytes that can't be read."""

    kind: DiskFault
    sentence: str
    file: str
    offset: Offset | None = None


class CheckedDirectory(msgspec.Struct, kw_only=True):
    """A log directory that was given, and what was read in it."""

    path: str
    directory_id: str
    broker: int
    folders: int = 0
    files: int = 0
    batches: int = 0


@dataclass(slots=True)
class DiskSearch:
    """What to look for in one partition: records named by receipts, and keys below and above a searched end."""

    topic: str
    topic_id: TopicId
    partition: int
    named: dict[Offset, set[tuple[LeaderEpoch, int]]] = field(default_factory=dict)
    beginning: Offset = 0
    """Exclusive: no record may be below."""
    key_ends: dict[bytes, Offset] = field(default_factory=dict)
    """The exclusive end of the search for each key."""

    def add(self, search: LeaderSearch, keys: Collection[bytes]) -> None:
        """Adds one search of a receipt. `keys` are those that its commitment is to; a replay didn't search for them."""
        for run in search.runs:
            for place, timestamp in enumerate(run.timestamps):
                self.named.setdefault(run.first_offset + place, set()).add((run.leader_epoch, timestamp))
        end = 0 if search.is_replay else search.searched_to
        for key in keys:
            self.key_ends[key] = max(self.key_ends.get(key, 0), end)

    def is_in(self, topic_id: TopicId, name: str) -> bool:
        """Returns whether a folder with this id and name has, or may have, records of the partition."""
        found = partition_of_folder(name)
        if topic_id not in (ZERO_TOPIC_ID, self.topic_id):
            return False
        if found is None:
            return topic_id == self.topic_id
        (topic, partition), is_cut = found
        named = topic == self.topic or (is_cut and self.topic.startswith(topic))
        return partition == self.partition and (named or topic_id == self.topic_id)

    def concerns(self, first: Offset, last: Offset) -> bool:
        """Returns whether the records from `first` to `last` (inclusive) must be read."""
        if self.key_ends or first < self.beginning:
            return True
        if last - first < len(self.named):
            return any(offset in self.named for offset in range(first, last + 1))
        return any(first <= offset <= last for offset in self.named)

    def judge(self, record: Record, leader_epoch: LeaderEpoch) -> DiskFault | None:
        """Returns what is wrong with a record that is there."""
        if record.offset < self.beginning or (leader_epoch, record.timestamp) in self.named.get(record.offset, ()):
            return "still_there"
        end = None if record.key is None else self.key_ends.get(record.key)
        if end is None:
            return None
        return "key_still_there" if record.offset < end else "key_came_back"


_SENTENCES: Final[dict[DiskFault, str]] = {
    "still_there": "an erased record is still there",
    "key_still_there": "a record with the key is still there, below the end of the search",
    "key_came_back": "a record with the key came back later, after the end of the search",
}


def log_directories(files: FileSystem, paths: Iterable[str]) -> list[CheckedDirectory]:
    """Returns the given log directories, and those of other processes in them.

    Errors: StorageError for a folder that is no log directory; OSError.
    """
    found: list[CheckedDirectory] = []
    for path in paths:
        found.append(_directory(files, path.rstrip("/") or "/"))
        inner = f"{found[-1].path}/{PROCESSES_FOLDER}"
        if files.is_directory(inner):
            found += [_directory(files, f"{inner}/{name}") for name in sorted(files.listdir(inner))]
    return found


def _directory(files: FileSystem, path: str) -> CheckedDirectory:
    meta = f"{path}/{META_PROPERTIES}"
    if not files.exists(meta):
        raise StorageError(path, f"it is not a log directory: it has no {META_PROPERTIES}")
    properties = decode_meta_properties(files.read_bytes(meta), meta)
    if properties is None:
        raise StorageError(path, f"it is not a log directory: its {META_PROPERTIES} is empty")
    return CheckedDirectory(path=path, directory_id=topic_id_text(properties.directory_id), broker=properties.node_id)


def check_directory(
    files: FileSystem, directory: CheckedDirectory, searches: Sequence[DiskSearch]
) -> Iterator[DiskFinding]:
    """Searches a log directory, and counts what it reads. Errors: OSError."""
    for name in sorted(files.listdir(directory.path)):
        folder = f"{directory.path}/{name}"
        if name == PROCESSES_FOLDER or not files.is_directory(folder):
            continue
        topic_id = topic_id_in(files, folder)
        concerned = [each for each in searches if each.is_in(topic_id, name)]
        if not concerned:
            continue
        directory.folders += 1
        for file in sorted(files.listdir(folder)):
            if _RECORD_FILE.fullmatch(file):
                directory.files += 1
                yield from _check_file(files, f"{folder}/{file}", concerned, directory)


def _check_file(
    files: FileSystem, path: str, searches: Sequence[DiskSearch], directory: CheckedDirectory
) -> Iterator[DiskFinding]:
    file = files.open(path)
    try:
        for found in dump_batches(file, file.size(), 0, check_records=False):
            if isinstance(found, Unwritten):
                continue
            if not isinstance(found, DumpedBatch):
                reason = f"bytes {found.position} to {found.end - 1} can't be read: {found.reason}"
                yield DiskFinding("unreadable", f"{path}: {reason}.", path)
                continue
            directory.batches += 1
            if found.fault is not None:
                yield DiskFinding("unreadable", f"{path}: byte {found.position}: {found.fault}.", path)
            yield from _check_batch(path, found, searches)
    finally:
        file.close()


def _check_batch(path: str, found: DumpedBatch, searches: Sequence[DiskSearch]) -> Iterator[DiskFinding]:
    header = found.header
    if header.is_control:
        return
    concerned = [each for each in searches if each.concerns(header.base_offset, header.last_offset)]
    if not concerned:
        return
    try:
        for record in iterate_records(found.content, max_bytes=RECORD_BYTES_MAX):
            for search in concerned:
                fault = search.judge(record, header.partition_leader_epoch)
                if fault is not None:
                    sentence = f"{path}: offset {record.offset}: {_SENTENCES[fault]}."
                    yield DiskFinding(fault, sentence, path, record.offset)
    except ProtocolError as error:
        if found.fault is None:
            reason = f"the records of the batch at byte {found.position} can't be read: {error}"
            yield DiskFinding("unreadable", f"{path}: {reason}.", path)
