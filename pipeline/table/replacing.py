"""Commits a snapshot in which data files take the place of others, on condition that the head did not change.

PyIceberg's own overwrite repeats a failed commit by itself, and its snapshots keep the statistics of removed files: the
lower and upper bounds of keys. Here a failed commit is the caller's to decide about, and `forgets` leaves no statistics
of removed files in any manifest of the snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pyiceberg.catalog import Catalog
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
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import (
    Operation,
    Summary,
    UpdateMetrics,
    ancestors_of,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import _SnapshotProducer

from lowtide.pipeline.table.files import file_key
from lowtide.pipeline.table.rewriting import TableRewriteError
from lowtide.pipeline.table.selecting import RECORD_COLUMNS

T = TypeVar("T")

OFFSETS: Final = "lowtide.offsets"
TOPIC_ID: Final = "lowtide.topic-id"
ERASURE: Final = "lowtide.erasure"
"""The summary of a fence has it: rounds that are based on an older snapshot may not be committed any more."""


class HeadChangedError(Exception):
    """Another writer has committed meanwhile. Nothing was committed, and the files of the commit are deleted."""


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
    expired: frozenset[int] = frozenset()
    """The snapshots that the same commit removes."""
    forgets: bool = False


class _ReplaceFiles(_SnapshotProducer["_ReplaceFiles"]):
    """Writes the manifests of a replacement."""

    def __init__(self, transaction: Transaction, table: Table, change: Replacement) -> None:
        super().__init__(Operation.OVERWRITE, transaction, table.io, snapshot_properties=dict(change.properties))
        self._change = change
        self._removed_deletes: list[DataFile] = []

    def _existing_manifests(self) -> list[ManifestFile]:
        raise NotImplementedError

    def _deleted_entries(self) -> list[ManifestEntry]:
        raise NotImplementedError

    def _manifests(self) -> list[ManifestFile]:
        head = self._transaction.table_metadata.snapshot_by_name(MAIN_BRANCH)
        kept: list[ManifestFile] = []
        removed: list[ManifestEntry] = []
        for manifest in () if head is None else head.manifests(self._io):
            if manifest.content == ManifestContent.DELETES:
                kept.extend(self._kept_deletes(manifest))
            else:
                kept.extend(self._rewritten(manifest, removed))
        if len(removed) != len(self._change.removed):
            raise HeadChangedError
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
        public = {name for column in RECORD_COLUMNS[:3] for name in (column, f"_{column}")}
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
        head = metadata.snapshot_by_name(MAIN_BRANCH)
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
        spec_id=file.spec_id,
    )
    return ManifestEntry.from_args(
        status=entry.status,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=bare,
    )


def commit_replacement(catalog: Catalog, table: Table, change: Replacement) -> int:
    """Commits a snapshot after the head that `table` has. Returns its id.

    Errors: HeadChangedError; TableRewriteError if the outcome is unknown.
    """
    transaction = Transaction(table)
    producer = _ReplaceFiles(transaction, table, change)
    try:
        updates, requirements = producer._commit()  # noqa: SLF001 - the transaction would repeat it by itself
    except Exception:
        producer._clean_all_uncommitted()  # noqa: SLF001
        raise
    updates += _expiry(table.metadata, change.expired)
    requirements += (AssertTableUUID(uuid=table.metadata.table_uuid),)
    if commit_updates(catalog, table, updates, requirements, producer.snapshot_id):
        return producer.snapshot_id
    producer._clean_all_uncommitted()  # noqa: SLF001
    raise HeadChangedError


def commit_expiry(catalog: Catalog, table: Table, expired: Iterable[int]) -> None:
    """Removes snapshots from the metadata, if no branch or tag was moved meanwhile. Errors: as `commit_replacement`."""
    requirements: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        *(AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id) for name, ref in table.metadata.refs.items()),
    )
    if not commit_updates(catalog, table, _expiry(table.metadata, frozenset(expired)), requirements):
        raise HeadChangedError


def _expiry(metadata: TableMetadata, expired: frozenset[int]) -> tuple[TableUpdate, ...]:
    """Returns the updates that remove snapshots."""
    if not expired:
        return ()
    statistics = {each.snapshot_id for each in metadata.partition_statistics} & expired
    return (
        *(RemovePartitionStatisticsUpdate(snapshot_id=each) for each in sorted(statistics)),
        RemoveSnapshotsUpdate(snapshot_ids=sorted(expired)),
    )


def commit_updates(
    catalog: Catalog,
    table: Table,
    updates: tuple[TableUpdate, ...],
    requirements: tuple[TableRequirement, ...],
    snapshot_id: int | None = None,
) -> bool:
    """Commits updates without PyIceberg's repetition. Returns False if another writer was first.

    Errors: TableRewriteError if the outcome is unknown, and `snapshot_id` does not show it.
    """
    try:
        catalog.commit_table(table, requirements, updates)
    except CommitFailedException:
        return False
    except ValueError as error:  # a snapshot to remove has been removed by another writer
        if "does not exist" not in str(error):
            raise
        return False
    except (CommitStateUnknownException, OSError) as error:
        now = catalog.load_table(table.name()).metadata
        if snapshot_id is not None and now.snapshot_by_id(snapshot_id) is not None:
            return True
        if snapshot_id is not None and now.current_snapshot_id != table.metadata.current_snapshot_id:
            return False
        raise TableRewriteError(
            f"the outcome of a commit is unknown, so run the same command again: {error}"
        ) from error
    return True


def carried(metadata: TableMetadata) -> dict[str, str]:
    """Returns the progress of the sink in the newest snapshots that have it, for the summary of the next one."""
    found: dict[str, str] = {}
    topics: dict[str, Any] = {}
    for snapshot in ancestors_of(metadata.current_snapshot(), metadata):
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        if OFFSETS in summary:
            for topic, offsets in json.loads(summary[OFFSETS]).items():
                topics.setdefault(topic, offsets)
            if TOPIC_ID in summary:
                found.setdefault(TOPIC_ID, summary[TOPIC_ID])
    if topics:
        found[OFFSETS] = json.dumps(topics)
    return found


def newest_fence(metadata: TableMetadata) -> int | None:
    """Returns the newest snapshot of an erasure among the ancestors of the head."""
    for snapshot in ancestors_of(metadata.current_snapshot(), metadata):
        if snapshot.summary and ERASURE in snapshot.summary.additional_properties:
            return snapshot.snapshot_id
    return None


def still_valid(metadata: TableMetadata, base_snapshot_id: int | None) -> bool:
    """Returns whether work that is based on a snapshot may still be committed after the head: the rule of the fence.

    It may not if an erasure was committed since, or if that is unknown because the snapshots were expired.
    """
    if base_snapshot_id is None:
        return metadata.current_snapshot() is None
    for snapshot in ancestors_of(metadata.current_snapshot(), metadata):
        if snapshot.snapshot_id == base_snapshot_id:
            return True
        if snapshot.summary and ERASURE in snapshot.summary.additional_properties:
            return False
    return False
