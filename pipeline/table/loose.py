"""Files below a table's location that no metadata reach: of work that is under way, failed or was thrown away.

A file of ours has the snapshot in its name that the work is based on (`files.data_file_name`). Once an erasure has
committed its fence, work that is based on an older snapshot can't be committed, so its files can be deleted at once.
The same holds for rounds of the job once another round has made progress (`committing.judge`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from pyiceberg.io import FileIO
from pyiceberg.manifest import read_manifest_list
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from lowtide.pipeline.table.files import (
    StoredFile,
    TableFilesError,
    base_snapshot_of,
    delete_files,
    entries_of,
    exists,
    file_key,
    metadata_files,
    reached_now,
    round_of,
    stored_files,
)
from lowtide.pipeline.table.progress import ERASURE, OFFSETS, ROUND, ancestry, properties_of

ORPHAN_AGE_NS: Final = 3 * 86_400 * 10**9
"""The age at which a file that no metadata name counts as abandoned. Iceberg's own tools use the same age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestProgress:
    """The newest snapshot that a round of the job has committed."""

    before: frozenset[int]
    """The snapshots that it follows, as far as they were not expired."""
    known: frozenset[int]
    """All snapshots of the table, also those of other branches."""
    written_ns: int
    """When it was written, by the clock of the storage; 0 if that is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseFiles:
    """The files that no metadata reach."""

    data: list[StoredFile]
    manifests: list[StoredFile]
    """Manifests and lists of manifests."""
    others: list[StoredFile]
    fence_ns: int
    """When the newest fence was written, by the clock of the storage; 0 without any."""
    progress: NewestProgress | None
    """None if no round has made progress."""

    def superseded(self) -> list[StoredFile]:
        """Returns data files of rounds of the job that can't be committed any more: another round has made progress.

        If the snapshot in a file's name was expired, so that it is unknown, it is older than the progress if the file
        is.
        """
        now, found = self.progress, list[StoredFile]()
        if now is None:
            return found
        for each in self.data:
            base = base_snapshot_of(each.path)
            if base is None or round_of(each.path) is None:
                continue
            if base == 0 or base in now.before or (base not in now.known and each.modified_ns < now.written_ns):
                found.append(each)
        return found

    def dead(self, before: Collection[int] = ()) -> list[StoredFile]:
        """Returns data files of ours that can't be committed any more. The snapshots `before` are older than the fence.

        If the snapshot in a file's name is unknown because it was expired, it is older than the fence if the file is.
        """
        if not self.fence_ns:
            return []
        found = []
        for each in self.data:
            base = base_snapshot_of(each.path)
            if base is not None and (base == 0 or base in before or each.modified_ns < self.fence_ns):
                found.append(each)
        return found


def loose_files(table: Table) -> LooseFiles:
    """Lists the files first, and reads the newest metadata then: what is committed meanwhile is not loose.

    Errors: TableFilesError.
    """
    return _loose_of(table, _listed(table))


def _listed(table: Table) -> list[StoredFile]:
    return [each for each in stored_files(table.io, table.location()) if each.is_table_file]


def _loose_of(table: Table, stored: Collection[StoredFile]) -> LooseFiles:
    """Returns which of the files nothing names, by the newest metadata. Errors: TableFilesError."""
    metadata = table.refresh().metadata
    known = reached_now(table).keys() | metadata_files(table).keys()
    loose = [each for each in stored if each.key not in known]
    fences = [each for each in ancestry(metadata) if ERASURE in properties_of(each)]
    return LooseFiles(
        data=[each for each in loose if each.path.endswith(".parquet")],
        manifests=[each for each in loose if each.path.endswith(".avro")],
        others=[each for each in loose if not each.path.endswith((".parquet", ".avro"))],
        fence_ns=_written_ns(stored, fences[0]) if fences else 0,
        progress=_newest_progress(metadata, stored),
    )


def _written_ns(stored: Iterable[StoredFile], snapshot: Snapshot) -> int:
    """Returns when a snapshot was written, by the clock of the storage; 0 if that is unknown."""
    key = file_key(snapshot.manifest_list)
    return next((each.modified_ns for each in stored if each.key == key), 0)


def _newest_progress(metadata: TableMetadata, stored: Iterable[StoredFile]) -> NewestProgress | None:
    """Finds the round. Other commits of ours carry its progress on, but append nothing."""
    line = list(ancestry(metadata))
    for number, each in enumerate(line):
        properties = properties_of(each)
        is_append = each.summary is not None and each.summary.operation == Operation.APPEND
        before = line[number + 1] if number + 1 < len(line) else None
        is_carried = before is not None and properties_of(before).get(ROUND) == properties.get(ROUND)
        if is_append and OFFSETS in properties and ERASURE not in properties and not is_carried:
            return NewestProgress(
                before=frozenset(one.snapshot_id for one in line[number + 1 :]),
                known=frozenset(one.snapshot_id for one in metadata.snapshots),
                written_ns=_written_ns(stored, each),
            )
    return None


def delete_dead_rounds(table: Table) -> list[str]:
    """Deletes the files of rounds of the job that can't be committed any more, and the manifests that name them.

    Other jobs may run: the rule by which their rounds are thrown away decides. Returns the files.
    Errors: TableFilesError.
    """
    stored = _listed(table)
    committed = {properties_of(each).get(ROUND) for each in table.refresh().metadata.snapshots}
    # Where nothing was expired, each file tells by its name that it is committed, and no manifest has to be read.
    if all(round_of(each.path) in {None, *committed} for each in stored):
        return []
    loose = _loose_of(table, stored)
    deleted = delete_files(table.io, sorted(each.path for each in loose.superseded()))
    return deleted + (delete_dead_manifests(table.io, loose.manifests, deleted) if deleted else [])


def delete_dead_manifests(
    io: FileIO, loose: Iterable[StoredFile], deleted_data: Collection[str] | None = None
) -> list[str]:
    """Deletes manifests that name files that are gone, and lists that name such manifests: they can't be committed.

    With `deleted_data` only these files count as gone. Manifests have the bounds of keys. Errors: TableFilesError.
    """
    lists, deleted = list[StoredFile](), list[str]()
    for each in loose:
        if each.path.rpartition("/")[2].startswith("snap-"):
            lists.append(each)
            continue
        try:
            named = [entry.data_file.file_path for entry in entries_of(io, each.path)]
        except TableFilesError:  # another writer may be writing it
            continue
        if _any_is_gone(io, named, deleted_data):
            deleted += delete_files(io, [each.path])
    for each in lists:
        try:
            named = [manifest.manifest_path for manifest in read_manifest_list(io.new_input(each.path))]
        except Exception:  # noqa: BLE001, S112 - the reader of incomplete files fails in many ways
            continue
        if _any_is_gone(io, named, None if deleted_data is None else deleted):
            deleted += delete_files(io, [each.path])
    return deleted


def _any_is_gone(io: FileIO, paths: Iterable[str], gone: Collection[str] | None) -> bool:
    if gone is not None:
        keys = {file_key(each) for each in gone}
        return any(file_key(each) in keys for each in paths)
    return any(not exists(io, path) for path in paths)
