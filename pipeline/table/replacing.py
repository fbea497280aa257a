"""Commits a snapshot in which data files take the place of others, on condition that the head did not change.

PyIceberg's own overwrite repeats a failed commit by itself, and its snapshots keep the statistics of removed files: the
lower and upper bounds of keys. Here a failed commit is the caller's to decide about, and `forgets` leaves no statistics
of removed files in any manifest of the snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import uuid4

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    Summary,
    UpdateMetrics,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotsUpdate,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import _SnapshotProducer

from lowtide.pipeline.table.committing import (
    ATTEMPTS,
    FIRST_PAUSE_S,
    CommitUnknownError,
    HeadMovedError,
    _sent,
    check_moved,
    is_complete,
)
from lowtide.pipeline.table.files import file_key
from lowtide.pipeline.table.progress import COMMIT, ERASURE, MAIN, ancestry, carried, head_id, properties_of
from lowtide.pipeline.table.schemas.decoding import PREFIX
from lowtide.pipeline.table.selecting import RECORD_COLUMNS

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """What a snapshot changes."""

    operation: Operation
    removed: Mapping[str, DataFile] = field(default_factory=dict)
    """By key of the file."""
    added: tuple[DataFile, ...] = ()
    delete_files: frozenset[str] = frozenset()
    """The files of deletes that apply to files that stay. Manifests with none of them are left out."""
    properties: Mapping[str, str] = field(default_factory=dict)
    forgets: bool = False


class _ReplaceFiles(_SnapshotProducer["_ReplaceFiles"]):  # type: ignore[misc]  # mypy reads nothing of PyIceberg
    """Writes the manifests of a replacement."""

    def __init__(
        self, transaction: Transaction, table: Table, change: Replacement, properties: Mapping[str, str]
    ) -> None:
        super().__init__(Operation.OVERWRITE, transaction, table.io, snapshot_properties=dict(properties))
        self._change = change
        self._removed_deletes: list[DataFile] = []

    def _existing_manifests(self) -> list[ManifestFile]:
        raise NotImplementedError

    def _deleted_entries(self) -> list[ManifestEntry]:
        raise NotImplementedError

    def _manifests(self) -> list[ManifestFile]:
        head = self._transaction.table_metadata.snapshot_by_name(MAIN)
        kept: list[ManifestFile] = []
        removed: list[ManifestEntry] = []
        for manifest in () if head is None else head.manifests(self._io):
            if manifest.content == ManifestContent.DELETES:
                kept.extend(self._kept_deletes(manifest))
            else:
                kept.extend(self._rewritten(manifest, removed))
        if {_key(each.data_file) for each in removed} != set(self._change.removed):
            raise HeadMovedError("the head lacks files that are to be replaced")
        for entry in removed:
            self._deleted_data_files.add(entry.data_file)
        self._added_data_files = list(self._change.added)
        return [*self._written(removed), *self._added_manifests(), *kept]

    def _kept_deletes(self, manifest: ManifestFile) -> list[ManifestFile]:
        entries = self.fetch_manifest_entry(manifest)
        if any(_key(each.data_file) in self._change.delete_files for each in entries):
            return [manifest]
        self._removed_deletes.extend(each.data_file for each in entries)
        return []

    def _rewritten(self, manifest: ManifestFile, removed: list[ManifestEntry]) -> list[ManifestFile]:
        """Returns a manifest without the removed files, which it adds to `removed`, and without earlier ones."""
        entries = self.fetch_manifest_entry(manifest, discard_deleted=False)
        live = [each for each in entries if each.status != ManifestEntryStatus.DELETED]
        going = [each for each in live if _key(each.data_file) in self._change.removed]
        removed.extend(going)
        if not going and not (self._change.forgets and len(live) < len(entries)):
            return [manifest]
        staying = [each for each in live if _key(each.data_file) not in self._change.removed]
        if not staying:
            return []
        with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
            for each in staying:
                writer.existing(each)
        return [writer.to_manifest_file()]

    def _written(self, removed: list[ManifestEntry]) -> Iterable[ManifestFile]:
        """Writes the manifests that name the removed files, so that other writers notice the removal."""
        for spec_id, entries in _by_spec(removed, lambda each: each.data_file).items():
            if self._change.forgets and not self._names_no_person(self.spec(spec_id)):
                continue
            with self.new_manifest_writer(self.spec(spec_id)) as writer:
                for each in entries:
                    writer.delete(_without_statistics(each) if self._change.forgets else each)
            yield writer.to_manifest_file()

    def _names_no_person(self, spec: PartitionSpec) -> bool:
        """Returns whether the partitions are made of a record's place and time only."""
        schema = self.schema()
        public = {name for column in RECORD_COLUMNS[:3] for name in (column, PREFIX + column)}
        return all(schema.find_column_name(each.source_id) in public for each in spec.fields)

    def _added_manifests(self) -> Iterable[ManifestFile]:
        for spec_id, files in _by_spec(list(self._change.added), lambda each: each).items():
            with self.new_manifest_writer(self.spec(spec_id)) as writer:
                for each in files:
                    writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=each))
            yield writer.to_manifest_file()

    def _summary(self, snapshot_properties: Mapping[str, str] = {}) -> Summary:
        metadata = self._transaction.table_metadata
        metrics = UpdateMetrics()
        for file in self._added_data_files:
            metrics.add_file(file)
        for file in (*self._deleted_data_files, *self._removed_deletes):
            metrics.remove_file(file)
        head = metadata.snapshot_by_name(MAIN)
        built = update_snapshot_summaries(
            summary=Summary(operation=Operation.OVERWRITE, **metrics.to_dict(), **snapshot_properties),
            previous_summary=head.summary.additional_properties if head is not None and head.summary else None,
        )
        return Summary(operation=self._change.operation, **built.additional_properties)


def _key(file: DataFile) -> str:
    return file_key(file.file_path)


def _by_spec(items: Iterable[T], file_of: Callable[[T], DataFile]) -> dict[int, list[T]]:
    found: dict[int, list[T]] = {}
    for each in items:
        found.setdefault(file_of(each).spec_id, []).append(each)
    return found


def _without_statistics(entry: ManifestEntry) -> ManifestEntry:
    """Returns the entry of a removed file with its path, partition and size only."""
    file = entry.data_file
    bare = DataFile.from_args(
        content=file.content,
        file_path=file.file_path,
        file_format=file.file_format,
        partition=file.partition,
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
    )
    bare.spec_id = file.spec_id
    return ManifestEntry.from_args(
        status=entry.status,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=bare,
    )


def commit_replacement(table: Table, change: Replacement) -> Snapshot:
    """Commits a snapshot on the head that `table` was loaded with. Returns it, and refreshes `table` to it.

    Errors: HeadMovedError, after which nothing was committed; CommitUnknownError.
    """
    commit_id = uuid4().hex
    properties = {**carried(table.metadata), **change.properties, COMMIT: commit_id}
    producer = _ReplaceFiles(Transaction(table), table, change, properties)
    try:
        updates, _ = producer._commit()  # noqa: SLF001 - the transaction would repeat it by itself
        requirements = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertRefSnapshotId.model_validate({"ref": MAIN, "snapshot-id": head_id(table.metadata)}),
        )
        return _sent(table, updates, requirements, commit_id)
    except CommitUnknownError:
        raise
    except BaseException as error:
        producer._clean_all_uncommitted()  # noqa: SLF001 - PyIceberg deletes what its own commits have written
        check_moved(error, table)
        raise


def commit_expiry(table: Table, expired_of: Callable[[TableMetadata], Collection[int]]) -> set[int]:
    """Removes snapshots from the metadata of a table. Returns those that this call removed.

    `expired_of` decides about them, each time that another commit comes first. A commit whose outcome is unknown is
    repeated: it does no harm. Errors: HeadMovedError if other commits always come first.
    """
    removed: set[int] = set()
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(FIRST_PAUSE_S * 2**attempt)
        expired = frozenset(expired_of(table.refresh().metadata))
        if not expired:
            return removed
        statistics = {each.snapshot_id for each in table.metadata.partition_statistics} & expired
        updates: tuple[TableUpdate, ...] = (
            *(RemovePartitionStatisticsUpdate.model_validate({"snapshot-id": each}) for each in sorted(statistics)),
            RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(expired)}),
        )
        removed |= expired
        try:
            table.catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), updates)
        except (CommitFailedException, CommitStateUnknownException, ValueError, OSError) as error:
            why = error  # a ValueError: another writer has removed one of the snapshots
        else:
            table.refresh()
            return removed
    raise HeadMovedError(f"table {'.'.join(table.name())} changes all the time ({why})")


def may_commit(metadata: TableMetadata, base_snapshot_id: int | None) -> bool:
    """Returns whether work that is based on a snapshot may still be committed after the head: the rule of the fence.

    It may not if an erasure was committed since, or if that is unknown because snapshots were expired.
    """
    return is_complete(metadata, base_snapshot_id) and not any(
        ERASURE in properties_of(each) for each in ancestry(metadata, base_snapshot_id)
    )
