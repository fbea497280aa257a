"""Files below a table's location that no metadata reach: of work that is under way, failed or was thrown away.

A file of ours has the snapshot in its name that the work is based on (`files.data_file_name`). Once an erasure has
committed its fence, work that is based on an older snapshot can't be committed, so its files can be deleted at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from pyiceberg.io import FileIO
from pyiceberg.manifest import read_manifest_list
from pyiceberg.table import Table

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
    stored_files,
)
from lowtide.pipeline.table.progress import ERASURE, ancestry, properties_of

ORPHAN_AGE_NS: Final = 3 * 86_400 * 10**9
"""The age at which a file that no metadata name counts as abandoned. Iceberg's own tools use the same age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseFiles:
    """The files that no metadata reach."""

    data: list[StoredFile]
    manifests: list[StoredFile]
    """Manifests and lists of manifests."""
    others: list[StoredFile]
    fence_ns: int
    """When the newest fence was written, by the clock of the storage; 0 without any."""

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
    stored = [each for each in stored_files(table.io, table.location()) if each.is_table_file]
    known = reached_now(table.refresh()).keys() | metadata_files(table).keys()
    loose = [each for each in stored if each.key not in known]
    fences = [each for each in ancestry(table.metadata) if ERASURE in properties_of(each)]
    written = file_key(fences[0].manifest_list) if fences else ""
    return LooseFiles(
        data=[each for each in loose if each.path.endswith(".parquet")],
        manifests=[each for each in loose if each.path.endswith(".avro")],
        others=[each for each in loose if not each.path.endswith((".parquet", ".avro"))],
        fence_ns=next((each.modified_ns for each in stored if each.key == written), 0),
    )


def delete_dead_manifests(io: FileIO, loose: Iterable[StoredFile]) -> list[str]:
    """Deletes manifests that name files that are gone, and lists that name such manifests: they can't be committed.

    Manifests have the bounds of keys. Errors: TableFilesError.
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
        if _any_is_gone(io, named):
            deleted += delete_files(io, [each.path])
    for each in lists:
        try:
            named = [manifest.manifest_path for manifest in read_manifest_list(io.new_input(each.path))]
        except Exception:  # noqa: BLE001, S112 - the reader of incomplete files fails in many ways
            continue
        if _any_is_gone(io, named):
            deleted += delete_files(io, [each.path])
    return deleted


def _any_is_gone(io: FileIO, paths: Iterable[str]) -> bool:
    return any(not exists(io, path) for path in paths)
