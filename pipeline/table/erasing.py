"""Erases the rows of a person from an Iceberg table: from its rows, its files, its metadata, and its history.

1. A fence is committed: a snapshot with the property `lowtide.erasure`, in which files without the rows take the place
   of those with them. Rounds of the sink that are based on an older snapshot may not be committed any more.
2. Older snapshots are removed from the metadata, except those that a tag or another branch holds.
3. Files that only they reach are deleted: data, statistics, manifests with the bounds of keys, lists, metadata files.
4. Files that no metadata reach are deleted if they can't be committed any more. The others are searched.

What names a file is deleted after it. So the same call with the same id completes an erasure that was interrupted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.transforms import BucketTransform, VoidTransform

from lowtide.pipeline.table.committing import CommitUnknownError, HeadMovedError
from lowtide.pipeline.table.files import (
    StoredFile,
    TableFilesError,
    base_snapshot_of,
    delete_files,
    file_key,
    reached_ever,
    reached_now,
)
from lowtide.pipeline.table.loose import ORPHAN_AGE_NS, delete_dead_manifests, loose_files
from lowtide.pipeline.table.progress import ERASURE, MAIN, ancestry, head_id, properties_of
from lowtide.pipeline.table.replacing import Replacement, commit_expiry, commit_replacement, may_commit
from lowtide.pipeline.table.rewriting import (
    FilePlace,
    FileReader,
    FileWriter,
    LiveFile,
    TableRewriteError,
    check_writable,
    ids_of,
    live_files,
    selected,
)
from lowtide.pipeline.table.selecting import KEY, ColumnsError, RowSelector, record_columns

ERASED_ROWS: Final = "lowtide.erased-rows"
"""The summary of a fence has it: how many rows this erasure has removed so far."""

ATTEMPTS: Final = 100
"""How often the fence is tried. Each time only what other writers have committed meanwhile is searched."""


class TableEraseError(Exception):
    """The rows of a table could not be erased, or not everywhere. The text is a sentence without its full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableErasure:
    """What an erasure did to one table. An earlier call with the same id may have done more."""

    table: str
    table_uuid: str
    location: str
    erasure_id: UUID
    fence: Snapshot
    """The snapshot that the erasure committed."""
    rows: int
    """With those of earlier calls with the same id."""
    searched: int
    """How many data files were searched."""
    rewritten: tuple[str, ...] = ()
    """The data files that had rows of the person. They are deleted."""
    written: tuple[str, ...] = ()
    """The data files that took their place."""
    expired: tuple[int, ...] = ()
    """The snapshots that were removed."""
    deleted: tuple[str, ...] = ()
    """All files that were deleted."""
    not_reached: tuple[str, ...] = field(default=())
    """What still may have the rows, in sentences without their full stops. The erasure is complete if there is none."""


def check_erasable(table: Table, selector: RowSelector) -> None:
    """Errors: TableEraseError for a table from which nothing can be erased."""
    try:
        record_columns(table.schema(), selector.columns)
        check_writable(table.metadata)
        _check_partitions(table)
        live_files(table, table.metadata.snapshot_by_name(MAIN))
    except (ColumnsError, TableRewriteError) as error:
        raise _failed(table, error) from error


def _check_partitions(table: Table) -> None:
    """Errors: TableRewriteError if names of files have keys: receipts and metadata have these names."""
    key = record_columns(table.schema(), (KEY,))[KEY]
    for spec in table.specs().values():
        for each in spec.fields:
            if each.source_id == key and not isinstance(each.transform, (BucketTransform, VoidTransform)):
                raise TableRewriteError(f"it is partitioned by the key ({each.name}), so names of files have keys")


def count_rows(table: Table, selector: RowSelector) -> int:
    """Returns how many rows of the newest snapshot are selected. Errors: TableEraseError."""
    try:
        ids, reader = record_columns(table.schema(), selector.columns), FileReader(table.io, table.metadata)
        return sum(
            int(_mask(selector, ids, batch).sum())
            for each in live_files(table, table.metadata.snapshot_by_name(MAIN))
            for batch in reader.rows(each)
        )
    except (ColumnsError, TableRewriteError, OSError) as error:
        raise _failed(table, error) from error


def erase_rows(
    table: Table, selector: RowSelector, erasure_id: UUID, orphan_age_ns: int = ORPHAN_AGE_NS
) -> TableErasure:
    """Erases the selected rows from a table and its files. The same call again completes what was interrupted.

    Files of other writers that no metadata reach are deleted if they have such rows and are older than `orphan_age_ns`.

    Errors: TableEraseError.
    """
    try:
        return _Erasing(table, selector, erasure_id, orphan_age_ns).run()
    except (ColumnsError, TableRewriteError, TableFilesError, CommitUnknownError, HeadMovedError, OSError) as error:
        raise _failed(table, error) from error


def _failed(table: Table, error: Exception) -> TableEraseError:
    return TableEraseError(f"table {'.'.join(table.name())}: {error}")


def _mask(selector: RowSelector, ids: Mapping[str, int], batch: pa.RecordBatch) -> np.ndarray:
    columns = ids_of(batch)
    return selector.mask({name: columns[field_id] for name, field_id in ids.items()})


class _Erasing:
    """One call."""

    def __init__(self, table: Table, selector: RowSelector, erasure_id: UUID, orphan_age_ns: int) -> None:
        self._table = table
        self._selector = selector
        self._erasure_id = erasure_id
        self._orphan_age_ns = orphan_age_ns
        self._hits: dict[str, bool] = {}
        """Whether a data file, by its key, has rows of the person, also rows that are deleted by position."""
        self._outputs: dict[LiveFile, tuple[list[DataFile], int]] = {}
        """The files that take the place of others, and how many rows of the person those had."""
        self._base: int | None = None
        self._round = uuid4()
        self._number = 0

    def run(self) -> TableErasure:
        fence, before = self._fence()
        expired = commit_expiry(self._table, lambda metadata: _older(metadata, fence.snapshot_id))
        deleted, older = self._delete_history()
        gone, not_reached = self._clean_up(before)
        not_reached += self._in_other_references()
        written = [file for files, _ in self._outputs.values() for file in files]
        for file in written:
            if self._has_rows(file.file_path):
                raise TableEraseError(f"{file.file_path} was written with rows that were to be erased")
        gone += delete_files(self._table.io, older)
        return TableErasure(
            table=".".join(self._table.name()),
            table_uuid=str(self._table.metadata.table_uuid),
            location=self._table.location(),
            erasure_id=self._erasure_id,
            fence=fence,
            rows=int(properties_of(fence)[ERASED_ROWS]),
            searched=len(self._hits),
            rewritten=tuple(sorted(each.data_file.file_path for each in self._outputs)),
            written=tuple(sorted(each.file_path for each in written)),
            expired=tuple(sorted(expired)),
            deleted=(*deleted, *gone),
            not_reached=tuple(not_reached),
        )

    # ------------------------------------------------------------------ the fence
    def _fence(self) -> tuple[Snapshot, set[int]]:
        """Commits the fence. Returns it, and the snapshots that are older. Errors: as `commit_replacement`."""
        for attempt in range(ATTEMPTS):
            metadata = self._table.refresh().metadata
            check_writable(metadata)
            if not may_commit(metadata, self._base) or not self._outputs:
                self._begin(head_id(metadata))
            try:
                change = self._change(metadata)
            except FileNotFoundError:
                if self._table.refresh().metadata == metadata or attempt == ATTEMPTS - 1:
                    raise
                continue
            try:
                return commit_replacement(self._table, change), {each.snapshot_id for each in metadata.snapshots}
            except HeadMovedError:
                continue
        raise HeadMovedError("other writers commit all the time")

    def _begin(self, base: int | None) -> None:
        """Deletes the files that were written, and starts from a snapshot."""
        self._drop(list(self._outputs))
        self._base = base
        self._round = uuid4()
        self._number = 0

    def _drop(self, replaced: Collection[LiveFile]) -> None:
        delete_files(self._table.io, [file.file_path for each in replaced for file in self._outputs.pop(each)[0]])

    def _change(self, metadata: TableMetadata) -> Replacement:
        """Writes the files that the head needs. Returns what is to be committed after it."""
        live = live_files(self._table, metadata.snapshot_by_name(MAIN))
        with_rows = [each for each in live if self._has_rows(each.data_file.file_path)]
        self._drop([each for each in self._outputs if each not in set(with_rows)])
        for each in with_rows:
            if each not in self._outputs:
                self._outputs[each] = self._rewritten(each)
        going = {each.key for each in with_rows}
        rows = sum(count for _, count in self._outputs.values()) + _rows_before(metadata, self._erasure_id)
        return Replacement(
            operation=Operation.OVERWRITE,
            removed={each.key: each.data_file for each in with_rows},
            added=tuple(file for files, _ in self._outputs.values() for file in files),
            delete_files=frozenset(key for each in live if each.key not in going for key in each.deletes),
            properties={ERASURE: str(self._erasure_id), ERASED_ROWS: str(rows)},
            forgets=True,
        )

    def _has_rows(self, path: str) -> bool:
        """Returns whether a data file has rows of the person. Reads only the columns that decide."""
        key = file_key(path)
        if key not in self._hits:
            ids = record_columns(self._table.schema(), self._selector.columns)
            reader = FileReader(self._table.io, self._table.metadata)
            self._hits[key] = any(self._selector.mask(each).any() for each in reader.columns(path, ids))
        return self._hits[key]

    def _rewritten(self, live: LiveFile) -> tuple[list[DataFile], int]:
        """Writes the rows of a file that stay. Returns the files, and how many rows do not stay."""
        ids = record_columns(self._table.schema(), self._selector.columns)
        place = FilePlace(
            base_snapshot_id=self._base,
            round_id=self._round,
            spec_id=live.data_file.spec_id,
            partition=live.data_file.partition,
        )
        writer, count, read = FileWriter(self._table, place, self._number), 0, 0
        try:
            for batch in FileReader(self._table.io, self._table.metadata).rows(live):
                mask = _mask(self._selector, ids, batch)
                read += batch.num_rows
                count += int(mask.sum())
                if not mask.all():
                    writer.write(selected(batch, ~mask))
            files = writer.close()
        except BaseException:
            delete_files(self._table.io, writer.abandon())
            raise
        assert sum(each.record_count for each in files) + count == read, "rows were lost between two files"
        self._number += len(files)
        return files, count

    # ------------------------------------------------------------------ files
    def _delete_history(self) -> tuple[list[str], list[str]]:
        """Deletes what only older metadata reach. Returns the deleted files, and the older metadata files."""
        *groups, older = reached_ever(self._table).without(reached_now(self._table))
        return [path for group in groups for path in delete_files(self._table.io, group)], older

    def _clean_up(self, before: set[int]) -> tuple[list[str], list[str]]:
        """Deletes files that no metadata reach and that can't be committed any more, and searches the others.

        Returns the deleted ones, and sentences about those with rows of the person.
        """
        loose = loose_files(self._table)
        dead = set(loose.dead(before))
        alive = {each.snapshot_id for each in ancestry(self._table.metadata)} - before
        deleted, sentences = delete_files(self._table.io, sorted(each.path for each in dead)), list[str]()
        for each in loose.data:
            if each not in dead and base_snapshot_of(each.path) not in alive:
                deleted += self._search_loose(each, loose.fence_ns, sentences)
        return deleted + delete_dead_manifests(self._table.io, loose.manifests), sentences

    def _search_loose(self, file: StoredFile, fence_ns: int, sentences: list[str]) -> list[str]:
        """Searches a file that another writer may still commit. Deletes it if it has rows and is old."""
        try:
            if not self._has_rows(file.path):
                return []
            what = "has such rows, and another writer may be about to commit it"
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            what = f"can't be searched ({error})"
        if fence_ns - file.modified_ns >= self._orphan_age_ns:
            return delete_files(self._table.io, [file.path])
        sentences.append(f"{file.path} {what}: no snapshot has it, and it is not old enough to be abandoned")
        return []

    # ------------------------------------------------------------------ tags and branches
    def _in_other_references(self) -> list[str]:
        """Returns sentences about tags and branches whose snapshots may have rows of the person."""
        metadata, found = self._table.metadata, list[str]()
        main = {each.snapshot_id for each in ancestry(metadata)}
        for name, reference in sorted(metadata.refs.items()):
            snapshot = metadata.snapshot_by_id(reference.snapshot_id)
            if name == MAIN or snapshot is None or (snapshot.snapshot_id in main and self._is_fenced(snapshot)):
                continue
            try:
                has_rows = any(self._has_rows(each.data_file.file_path) for each in live_files(self._table, snapshot))
            except (TableRewriteError, OSError) as error:
                found.append(f"the snapshot of {name} can't be searched: {error}")
                continue
            if has_rows or self._remembers(snapshot):
                kind = reference.snapshot_ref_type.value
                found.append(f"the {kind} {name} holds such rows: remove it, then run the same command again")
        return found

    def _is_fenced(self, snapshot: Snapshot) -> bool:
        """Returns whether a snapshot of the branch main is the newest fence, or came after it."""
        for each in ancestry(self._table.metadata):
            if each.snapshot_id == snapshot.snapshot_id:
                return True
            if ERASURE in properties_of(each):
                return False
        return False

    def _remembers(self, snapshot: Snapshot) -> bool:
        """Returns whether manifests have statistics of removed files, which may have had rows of the person."""
        return any(
            entry.status == ManifestEntryStatus.DELETED
            and bool(entry.data_file.lower_bounds or entry.data_file.upper_bounds)
            and self._hits.get(file_key(entry.data_file.file_path), True)
            for manifest in snapshot.manifests(self._table.io)
            if manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=False)
        )


def _rows_before(metadata: TableMetadata, erasure_id: UUID) -> int:
    """Returns how many rows earlier calls with the same id have removed."""
    for snapshot in ancestry(metadata):
        properties = properties_of(snapshot)
        if properties.get(ERASURE) == str(erasure_id):
            return int(properties.get(ERASED_ROWS, "0"))
    return 0


def _older(metadata: TableMetadata, fence: int) -> set[int]:
    """Returns the snapshots to remove: all but the fence, those after it, and those that a tag or branch holds."""
    kept = {each.snapshot_id for each in ancestry(metadata, fence)} | {fence}
    kept |= {each.snapshot_id for each in metadata.refs.values()}
    return {each.snapshot_id for each in metadata.snapshots} - kept
