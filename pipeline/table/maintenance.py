"""Keeps an Iceberg table in good order: merges small files, expires old snapshots, deletes files that nothing names.

All three are safe beside the sink, beside erasures, and beside writers of other kinds. A compaction that is based on a
snapshot before an erasure is thrown away, so it can't bring rows back (the rule of the fence, `replacing.may_commit`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from lowtide.pipeline.table.committing import CommitUnknownError, HeadMovedError
from lowtide.pipeline.table.files import TableFilesError, delete_files, reached_ever, reached_now
from lowtide.pipeline.table.loose import ORPHAN_AGE_NS, loose_files
from lowtide.pipeline.table.progress import MAIN, OFFSETS, ancestry, head_id, properties_of
from lowtide.pipeline.table.replacing import Replacement, commit_expiry, commit_replacement, may_commit
from lowtide.pipeline.table.rewriting import (
    TARGET_BYTES,
    FilePlace,
    FileReader,
    FileWriter,
    LiveFile,
    TableRewriteError,
    check_writable,
    ids_of,
    live_files,
)
from lowtide.pipeline.table.selecting import OFFSET, PARTITION, ColumnsError, record_columns

SMALL_SHARE: Final = 0.5
"""A file with less than this share of the target is small."""
SMALL_BYTES_SHARE: Final = 0.01
"""Small files with at most this share of a table's bytes stay, rather than a large file being written again."""
FILES_PER_BIN: Final = 128
"""The most files that are merged at once: each is open, with a batch in memory."""
MERGED_BYTES: Final = 64 << 20
"""About the size of all these batches together, uncompressed."""
BATCH_BYTES_MIN: Final = 256 << 10
PASSES: Final = 8
"""How often a compaction looks for small files again: merged files may be small too."""
BIN_ATTEMPTS: Final = 20
"""How often merged files are committed on a newer head, if another writer commits first."""


class TableMaintenanceError(Exception):
    """A table could not be maintained. The text is a sentence without its full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """What a compaction did."""

    bins: int
    """How many times files were merged and committed."""
    merged: int
    written: int
    merged_bytes: int
    written_bytes: int
    skipped: int
    """How many bins were thrown away, because another writer had changed their files or an erasure came between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What was removed, or what would be by a dry run."""

    snapshots: tuple[int, ...]
    files: tuple[str, ...]


# ---------------------------------------------------------------------- small files
def compact(table: Table, target_bytes: int = TARGET_BYTES) -> Compaction:
    """Merges small files of the same partition of the table, sorted by partition and offset. The rows do not change.

    It also applies position deletes. Errors: TableMaintenanceError.
    """
    done, seen = [0, 0, 0, 0, 0, 0], set[frozenset[str]]()
    try:
        for _ in range(PASSES):
            metadata = table.refresh().metadata
            check_writable(metadata)
            bins = plan_bins(live_files(table, metadata.snapshot_by_name(MAIN)), target_bytes, _place_ids(metadata))
            bins = [each for each in bins if frozenset(one.key for one in each) not in seen]
            if not bins:
                break
            for each in bins:
                seen.add(frozenset(one.key for one in each))
                written = _merge(table, each, target_bytes)
                counts = (0, 0, 0, 0, 0, 1) if written is None else (1, len(each), len(written), _bytes(each), 0, 0)
                done = [total + more for total, more in zip(done, counts, strict=True)]
                done[4] += sum(one.file_size_in_bytes for one in written or ())
    except (TableRewriteError, TableFilesError, CommitUnknownError, HeadMovedError, OSError) as error:
        raise _failed(table, error) from error
    bins_done, merged, files, merged_bytes, written_bytes, skipped = done
    return Compaction(
        bins=bins_done,
        merged=merged,
        written=files,
        merged_bytes=merged_bytes,
        written_bytes=written_bytes,
        skipped=skipped,
    )


def _failed(table: Table, error: Exception) -> TableMaintenanceError:
    return TableMaintenanceError(f"table {'.'.join(table.name())}: {error}")


def _bytes(files: Iterable[LiveFile]) -> int:
    return sum(each.data_file.file_size_in_bytes for each in files)


def plan_bins(live: Sequence[LiveFile], target_bytes: int, ids: Mapping[str, int]) -> list[list[LiveFile]]:
    """Returns which files are merged with each other: small ones, and those with position deletes.

    Small files that together are no large one are merged with the smallest large file of their partition, unless small
    files are a hundredth of the table's bytes at most.
    """
    small_bytes = int(target_bytes * SMALL_SHARE)
    groups: dict[tuple[int, str], list[LiveFile]] = {}
    for each in live:
        groups.setdefault((each.data_file.spec_id, repr(each.data_file.partition)), []).append(each)
    total, leftover, bins = _bytes(live), 0, list[list[LiveFile]]()
    remainders: list[tuple[list[LiveFile], list[LiveFile]]] = []
    for files in groups.values():
        small = [each for each in files if each.data_file.file_size_in_bytes < small_bytes or each.deletes]
        large = [each for each in files if each not in set(small)]
        packed = _packed(sorted(small, key=partial(_first_place, ids=ids)), target_bytes)
        rest = packed.pop() if packed and _bytes(packed[-1]) < small_bytes else []
        if rest and packed and len(rest) + len(packed[-1]) <= FILES_PER_BIN:
            packed[-1] += rest
            rest = []
        bins += packed
        if rest:
            leftover += _bytes(rest)
            remainders.append((rest, large))
    for rest, large in remainders:
        if large and leftover > total * SMALL_BYTES_SHARE and len(rest) < FILES_PER_BIN:
            rest.append(min(large, key=lambda each: (each.data_file.file_size_in_bytes, each.key)))
        bins.append(rest)
    return [each for each in bins if len(each) > 1 or any(one.deletes for one in each)]


def _first_place(live: LiveFile, ids: Mapping[str, int]) -> tuple[int, int, str]:
    """Returns the lowest partition and the lowest offset in a file, as far as its statistics say: an order in time."""
    bounds = live.data_file.lower_bounds or {}
    partition, offset = (int.from_bytes(bounds.get(ids.get(name, -1), b""), "little") for name in (PARTITION, OFFSET))
    return partition, offset, live.key


def _packed(files: Iterable[LiveFile], target_bytes: int) -> list[list[LiveFile]]:
    """Cuts files into bins of about the target."""
    bins: list[list[LiveFile]] = []
    filled = target_bytes
    for each in files:
        if filled >= target_bytes or len(bins[-1]) >= FILES_PER_BIN:
            bins.append([])
            filled = 0
        bins[-1].append(each)
        filled += each.data_file.file_size_in_bytes
    return bins


def _merge(table: Table, merged: Sequence[LiveFile], target_bytes: int) -> list[DataFile] | None:
    """Writes the rows of files to others, and commits. Returns None if that may not be committed any more."""
    base, first = head_id(table.metadata), merged[0].data_file
    place = FilePlace(base_snapshot_id=base, round_id=uuid4(), spec_id=first.spec_id, partition=first.partition)
    writer = FileWriter(table, place, 0, target_bytes + target_bytes // 2)
    try:
        for batch in _sorted_rows(FileReader(table.io, table.metadata), merged, table.metadata):
            writer.write(batch)
        written = writer.close()
        if _committed(table, base, merged, written):
            return written
    except CommitUnknownError:
        raise
    except FileNotFoundError:
        table.refresh()
        if all(each in live_files(table, table.metadata.snapshot_by_name(MAIN)) for each in merged):
            raise
    except BaseException:
        delete_files(table.io, writer.abandon())
        raise
    delete_files(table.io, writer.abandon())
    return None


def _committed(table: Table, base: int | None, merged: Sequence[LiveFile], written: list[DataFile]) -> bool:
    """Commits on the head, if it still has the merged files, with the same deletes, and no erasure came between."""
    keys = {each.key for each in merged}
    for _ in range(BIN_ATTEMPTS):
        live = live_files(table, table.metadata.snapshot_by_name(MAIN))
        if not may_commit(table.metadata, base) or not set(merged) <= set(live):
            return False
        change = Replacement(
            operation=Operation.REPLACE,
            removed={each.key: each.data_file for each in merged},
            added=tuple(written),
            delete_files=frozenset(key for each in live if each.key not in keys for key in each.deletes),
        )
        try:
            commit_replacement(table, change)
        except HeadMovedError:
            table.refresh()
            continue
        return True
    return False


# ---------------------------------------------------------------------- rows in order
class _SortedFile:
    """The rows of a file as they follow each other: most files are sorted by partition and offset."""

    def __init__(self, batches: Iterator[pa.RecordBatch], ids: dict[str, int]) -> None:
        self._batches = batches
        self._ids = ids
        self._batch: pa.RecordBatch | None = None
        self._places: tuple[np.ndarray, np.ndarray] | None = None
        self._next = 0
        self.advance()

    def advance(self) -> None:
        """Reads the next batch."""
        self._batch = next(self._batches, None)
        self._next = 0
        self._places = None
        if self._batch is not None and self._ids:
            columns = ids_of(self._batch)
            partitions, offsets = (columns[self._ids[name]] for name in (PARTITION, OFFSET))
            if not partitions.null_count and not offsets.null_count:
                self._places = _if_sorted(np.asarray(partitions), np.asarray(offsets))

    @property
    def is_over(self) -> bool:
        return self._batch is None

    def place(self) -> tuple[int, int]:
        """Returns the partition and offset of the next row; less than all others if the rows are in no order."""
        if self._places is None:
            return (-1, -1)
        return int(self._places[0][self._next]), int(self._places[1][self._next])

    def take(self, until: tuple[int, int] | None) -> pa.RecordBatch:
        """Returns the rows of the batch up to a place, at least one; all without `until`."""
        assert self._batch is not None
        first, last = self._next, self._batch.num_rows
        if until is not None and self._places is not None:
            partitions, offsets = self._places
            low = np.searchsorted(partitions, until[0], side="left")
            high = np.searchsorted(partitions, until[0], side="right")
            last = max(int(low + np.searchsorted(offsets[low:high], until[1], side="right")), first + 1)
        rows = self._batch.slice(first, last - first)
        self._next = last
        if last == self._batch.num_rows:
            self.advance()
        return rows


def _if_sorted(partitions: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    same = partitions[1:] == partitions[:-1]
    later = (partitions[1:] > partitions[:-1]) | (same & (offsets[1:] >= offsets[:-1]))
    return (partitions, offsets) if later.all() else None


def _place_ids(metadata: TableMetadata) -> dict[str, int]:
    """Returns the field ids of partition and offset; none if the table has other columns."""
    try:
        return record_columns(metadata.schema(), (PARTITION, OFFSET))
    except ColumnsError:
        return {}


def _sorted_rows(reader: FileReader, files: Sequence[LiveFile], metadata: TableMetadata) -> Iterator[pa.RecordBatch]:
    """Merges the rows of files by partition and offset. Rows of a file that is not sorted keep their order."""
    ids, batch_bytes = _place_ids(metadata), max(BATCH_BYTES_MIN, MERGED_BYTES // len(files))
    sources = [_SortedFile(reader.rows(each, batch_bytes), ids) for each in files]
    heap = [(each.place(), number) for number, each in enumerate(sources) if not each.is_over]
    heapq.heapify(heap)
    while heap:
        _, number = heapq.heappop(heap)
        yield sources[number].take(heap[0][0] if heap else None)
        if not sources[number].is_over:
            heapq.heappush(heap, (sources[number].place(), number))


# ---------------------------------------------------------------------- old snapshots
def expire(table: Table, before_ms: int, keep: int = 1, *, dry_run: bool = False) -> Deletion:
    """Removes snapshots that are older than a time, and the files that only they reach.

    Kept are the `keep` newest snapshots of the branch main, those that a branch or tag holds, and those from the newest
    one that has the progress of the sink. Errors: TableMaintenanceError.
    """
    try:
        check_writable(table.refresh().metadata)
        if dry_run:
            return Deletion(snapshots=tuple(sorted(_expired(table.metadata, before_ms, keep))), files=())
        reached = reached_ever(table)
        expired = commit_expiry(table, lambda metadata: _expired(metadata, before_ms, keep))
        if not expired:
            return Deletion(snapshots=(), files=())
        now = reached_now(table)
        *groups, _ = reached.without(now)  # the metadata files belong to the history that the catalog keeps
        deleted = [path for group in groups for path in delete_files(table.io, group)]
        return Deletion(snapshots=tuple(sorted(expired)), files=tuple(deleted))
    except (TableRewriteError, TableFilesError, HeadMovedError, OSError) as error:
        raise _failed(table, error) from error


def _expired(metadata: TableMetadata, before_ms: int, keep: int) -> set[int]:
    """Returns the snapshots to remove."""
    main = list(ancestry(metadata))
    with_progress = [number for number, each in enumerate(main) if OFFSETS in properties_of(each)]
    # Without the snapshots between, the progress is none of an ancestor of the head.
    kept = {each.snapshot_id for each in main[: max(keep, 1, *(number + 1 for number in with_progress[:1]))]}
    kept |= {each.snapshot_id for each in metadata.refs.values()}
    return {each.snapshot_id for each in metadata.snapshots if each.timestamp_ms < before_ms} - kept


# ---------------------------------------------------------------------- files that nothing names
def delete_orphans(table: Table, now_ns: int, older_than_ns: int = ORPHAN_AGE_NS, *, dry_run: bool = False) -> Deletion:
    """Deletes files below the table's location that no metadata reach and that are old enough to be abandoned.

    Files of ours that an erasure or another round has made invalid are deleted at once. Errors: TableMaintenanceError.
    """
    try:
        check_writable(table.refresh().metadata)
        loose = loose_files(table)
        dead = {*loose.dead(), *loose.superseded()}
        going = [each for each in loose.data if each in dead]
        # Data come before what names them, so that an interrupted deletion leaves no manifest of missing files behind.
        going += [
            each
            for each in (*loose.data, *loose.manifests, *loose.others)
            if each not in dead and now_ns - each.modified_ns >= older_than_ns
        ]
        paths = [each.path for each in going]
        return Deletion(snapshots=(), files=tuple(paths if dry_run else delete_files(table.io, paths)))
    except (TableRewriteError, TableFilesError, OSError) as error:
        raise _failed(table, error) from error
