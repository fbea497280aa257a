"""The files of an Iceberg table: which ones its metadata reach, which ones are stored below its location, and deletion.

A file is identified by its path without the scheme, as catalogs and storages write the same place in several forms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
)
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

_DATA_NAME: Final = re.compile(r"lowtide-(\d{1,20})-([0-9a-f-]{32,36})-.*\.parquet")
_ROUND_NAME: Final = re.compile(r"lowtide-\d{1,20}-([0-9a-f]{32})-(?:data|dead)-.*\.parquet")

METADATA_SUFFIXES: Final = (".metadata.json", ".metadata.json.gz", ".gz.metadata.json")
UNKNOWN_NS: Final = 2**63 - 1
"""The time of a file whose storage tells none. Such a file is never old enough to be deleted for its age."""
FILE_SUFFIXES: Final = (".parquet", ".orc", ".avro", ".puffin", ".stats", *METADATA_SUFFIXES)
"""Other files below a location are not the table's: nothing here deletes them."""


class TableFilesError(Exception):
    """Files of a table can't be listed, read or deleted. The text is a sentence without its full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file below a table's location. `modified_ns` is the time of the storage, in nanoseconds since 1970."""

    path: str
    size: int
    modified_ns: int

    @property
    def key(self) -> str:
        """Returns what identifies the file."""
        return file_key(self.path)

    @property
    def is_table_file(self) -> bool:
        """Returns whether writers of Iceberg tables make files of this name."""
        return self.path.endswith(FILE_SUFFIXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedFiles:
    """The files that table metadata reach. Each maps the key of a file to its path.

    `damaged` has the metadata files, manifest lists and manifests that are gone.
    """

    data: dict[str, str] = field(default_factory=dict)
    """Data files and files of deletes."""
    manifests: dict[str, str] = field(default_factory=dict)
    lists: dict[str, str] = field(default_factory=dict)
    statistics: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)

    def keys(self) -> set[str]:
        """Returns the keys of all files."""
        return set(chain(self.data, self.manifests, self.lists, self.statistics, self.metadata))

    def without(self, other: ReachedFiles) -> list[list[str]]:
        """Returns the paths that only these metadata reach, in the order in which they can be deleted.

        What names a file comes after the file. So if the deletion is interrupted, the rest is found again.
        """
        kept = other.keys()
        groups = (self.data, self.statistics, self.manifests, self.lists, self.metadata)
        return [[path for key, path in group.items() if key not in kept] for group in groups]


def file_key(path: str) -> str:
    """Returns what identifies a file: its path without the scheme, and without links if it is on this machine.

    >>> file_key("file:///w/t/a.parquet"), file_key("s3a://bucket/t/a.parquet")
    ('/w/t/a.parquet', 'bucket/t/a.parquet')
    """
    scheme, _, key = PyArrowFileIO.parse_location(path)
    return str(Path(key).resolve()) if scheme == "file" else str(key)


def data_file_name(base_snapshot_id: int | None, round_id: UUID, number: int) -> str:
    """Returns the name of a data file of ours: with the snapshot that the work is based on, 0 if there was none.

    >>> data_file_name(77, UUID(int=1), 3)
    'lowtide-77-00000000-0000-0000-0000-000000000001-00003.parquet'
    """
    return f"lowtide-{base_snapshot_id or 0}-{round_id}-{number:05d}.parquet"


def base_snapshot_of(path: str) -> int | None:
    """Returns the snapshot that the work on a file of ours is based on, 0 for none; None for files of other writers.

    >>> base_snapshot_of("/w/t/data/" + data_file_name(77, UUID(int=1), 3)), base_snapshot_of("/w/t/data/a.parquet")
    (77, None)
    """
    match = _DATA_NAME.fullmatch(path.rpartition("/")[2])
    return None if match is None else int(match[1])


def round_of(path: str) -> str | None:
    """Returns the round of the job that has written a data file; None for files of all other work.

    >>> round_of(f"/w/t/data/lowtide-77-{UUID(int=1).hex}-data-0-0-0.parquet")
    '00000000000000000000000000000001'
    >>> round_of("/w/t/data/" + data_file_name(77, UUID(int=1), 3))
    """
    match = _ROUND_NAME.fullmatch(path.rpartition("/")[2])
    return None if match is None else match[1]


def reached_now(table: Table) -> ReachedFiles:
    """Returns what the current metadata of a table reach, with its own file but without older metadata files.

    Errors: TableFilesError if something is gone.
    """
    found = ReachedFiles()
    found.metadata[file_key(table.metadata_location)] = table.metadata_location
    _add(found, table.io, table.metadata, set())
    if found.damaged:
        raise TableFilesError(f"{_named(table)}: {min(found.damaged)} is missing, so what it names is unknown")
    return found


def reached_ever(table: Table) -> ReachedFiles:
    """Returns what the current metadata and all earlier metadata files that are still there reach, and these files."""
    found, seen = ReachedFiles(), set[str]()
    found.metadata[file_key(table.metadata_location)] = table.metadata_location
    _add(found, table.io, table.metadata, seen)
    for entry in table.metadata.metadata_log:
        try:
            earlier = FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise TableFilesError(f"{_named(table)}: {entry.metadata_file} can't be read: {error}") from error
        found.metadata[file_key(entry.metadata_file)] = entry.metadata_file
        _add(found, table.io, earlier, seen)
    return found


def metadata_files(table: Table) -> dict[str, str]:
    """Returns the current metadata file, and the earlier ones that it names, also those that are gone."""
    paths = [table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)]
    return {file_key(each): each for each in paths}


def _named(table: Table) -> str:
    return ".".join(table.name())


def _add(found: ReachedFiles, io: FileIO, metadata: TableMetadata, seen: set[str]) -> None:
    """Adds what metadata reach. Files in `seen` were read already."""
    for each in (*metadata.statistics, *metadata.partition_statistics):
        found.statistics[file_key(each.statistics_path)] = each.statistics_path
    for snapshot in metadata.snapshots:
        key = file_key(snapshot.manifest_list)
        if key in seen:
            continue
        seen.add(key)
        found.lists[key] = snapshot.manifest_list
        try:
            manifests = list(read_manifest_list(io.new_input(snapshot.manifest_list)))
        except FileNotFoundError:
            found.damaged.add(snapshot.manifest_list)
            continue
        for manifest in manifests:
            _add_manifest(found, io, manifest, seen)


def _add_manifest(found: ReachedFiles, io: FileIO, manifest: ManifestFile, seen: set[str]) -> None:
    key = file_key(manifest.manifest_path)
    if key in seen:
        return
    seen.add(key)
    found.manifests[key] = manifest.manifest_path
    try:
        entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
    except FileNotFoundError:
        found.damaged.add(manifest.manifest_path)
        return
    found.data.update((file_key(entry.data_file.file_path), entry.data_file.file_path) for entry in entries)


def stored_files(io: FileIO, location: str) -> Iterator[StoredFile]:
    """Lists all files below a location. Errors: TableFilesError."""
    base = location.rstrip("/") + "/"
    try:
        if isinstance(io, PyArrowFileIO):
            scheme, netloc, path = PyArrowFileIO.parse_location(base, io.properties)
            yield from _listed_by_arrow(io.fs_by_scheme(scheme, netloc), path.rstrip("/") + "/", base)
        elif isinstance(io, FsspecFileIO):
            scheme = base.partition("://")[0] if "://" in base else "file"
            yield from _listed_by_fsspec(io.get_fs(scheme), base)
        else:
            raise TableFilesError(f"{type(io).__name__} can't list files: give PyArrow's or fsspec's in the catalog")
    except OSError as error:
        raise TableFilesError(f"{location} can't be listed: {error}") from error


def _listed_by_arrow(system: FileSystem, path: str, base: str) -> Iterator[StoredFile]:
    info: FileInfo
    for info in system.get_file_info(FileSelector(path, allow_not_found=True, recursive=True)):
        if info.type == FileType.File:
            relative = _relative(info.path, path)
            yield StoredFile(
                path=base + relative, size=info.size, modified_ns=UNKNOWN_NS if info.mtime_ns is None else info.mtime_ns
            )


def _listed_by_fsspec(system: Any, base: str) -> Iterator[StoredFile]:
    root = system._strip_protocol(base).rstrip("/") + "/"  # noqa: SLF001 - fsspec has no other name for it
    system.invalidate_cache()  # Listings are kept for the whole process, and others write the same table.
    for path, details in system.find(base, detail=True).items():
        yield StoredFile(
            path=base + _relative(path, root), size=details.get("size") or 0, modified_ns=_modified_ns(details)
        )


def _relative(path: str, root: str) -> str:
    """Returns a path below a folder. Errors: TableFilesError if the storage spells the folder in another way."""
    if not path.startswith(root):
        raise TableFilesError(f"the storage lists {path} below {root}, so files can't be compared with the metadata")
    return path[len(root) :]


def _modified_ns(details: dict[str, Any]) -> int:
    """Returns when a file was modified. Storages have different names for it."""
    for name in ("LastModified", "last_modified", "updated", "mtime", "created"):
        value = details.get(name)
        if isinstance(value, datetime):
            return int(value.timestamp() * 1e9)
        if isinstance(value, int | float):
            return int(value * 1e9)
    return UNKNOWN_NS


def entries_of(io: FileIO, path: str) -> list[ManifestEntry]:
    """Reads a manifest that no manifest list has to name. Errors: TableFilesError if it is none."""
    schema = MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION]
    types, enums = (
        {-1: ManifestEntry, 2: DataFile},
        {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )
    try:
        with AvroFile[ManifestEntry](io.new_input(path), schema, read_types=types, read_enums=enums) as reader:
            return list(reader)
    except FileNotFoundError:
        return []
    except Exception as error:  # the reader of incomplete files fails in many ways
        raise TableFilesError(f"{path} can't be read as a manifest: {error}") from error


def delete_files(io: FileIO, paths: Iterable[str]) -> list[str]:
    """Deletes files. Those that are gone already are no error. Returns those that this call deleted.

    Errors: TableFilesError with the first file that can't be deleted, after all others were tried.
    """
    deleted: list[str] = []
    failure: TableFilesError | None = None
    for path in paths:
        try:
            io.delete(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            if not isinstance(io, PyArrowFileIO) or exists(io, path):
                failure = failure or TableFilesError(f"{path} can't be deleted: {error}")
            continue
        deleted.append(path)
    if failure is not None:
        raise failure
    return deleted


def exists(io: FileIO, path: str) -> bool:
    """Returns whether a file is there, also if that can't be found out."""
    try:
        return bool(io.new_input(path).exists())
    except OSError:
        return True
