"""Reads the data files of an Iceberg table as streams of batches, and writes others in their place.

Nothing here holds a whole file: batches and row groups are bounded in bytes. Values never stay dictionary-encoded
between reading and writing, because Parquet would keep the values of rows that were left out in its dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    ParquetFormatWriter,
    _get_column_projection_values,
    _read_deletes,
    _to_requested_schema,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import ManifestGroupPlanner, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from lowtide.pipeline.table.files import data_file_name, file_key

BATCH_BYTES: Final = 8 << 20
"""About the size of a batch that is read, uncompressed."""
BATCH_ROWS_MAX: Final = 65_536
ROW_GROUP_BYTES: Final = 32 << 20
"""About the size of a row group that is written, uncompressed."""
TARGET_BYTES: Final = 128 << 20
"""About the size of a file that is written."""
FORMATS_WRITTEN: Final = (1, 2)
"""The format versions of tables that PyIceberg can write."""


class TableRewriteError(Exception):
    """A table can't be rewritten. The text is a sentence without its full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A data file of a snapshot, with the files of position deletes that apply to it."""

    data_file: DataFile
    deletes: frozenset[str] = frozenset()
    delete_files: tuple[DataFile, ...] = field(default=(), compare=False, repr=False)

    @property
    def key(self) -> str:
        """Returns what identifies the data file."""
        return file_key(self.data_file.file_path)


def check_writable(metadata: TableMetadata) -> None:
    """Errors: TableRewriteError for a table that can't be rewritten."""
    if metadata.format_version not in FORMATS_WRITTEN:
        raise TableRewriteError(f"its format version is {metadata.format_version}, and PyIceberg writes only 1 and 2")
    if metadata.properties.get("gc.enabled", "true").lower() == "false":
        raise TableRewriteError("its property gc.enabled is false, so its files may belong to other tables too")


def live_files(table: Table, snapshot: Snapshot | None) -> list[LiveFile]:
    """Returns the data files of a snapshot. Errors: TableRewriteError for those that can't be read."""
    if snapshot is None:
        return []
    planner = ManifestGroupPlanner(table.metadata, table.io, options={"include_empty_files": "true"})
    manifests = snapshot.manifests(table.io)
    try:
        tasks = list(planner.plan_files(manifests))
    except ValueError as error:
        if "equality deletes" not in str(error):
            raise
        raise TableRewriteError(
            "it has equality deletes, which PyIceberg can't read: rewrite its files with the engine that wrote them"
        ) from error
    found = [
        LiveFile(
            data_file=task.file,
            deletes=frozenset(file_key(each.file_path) for each in task.delete_files),
            delete_files=tuple(task.delete_files),
        )
        for task in tasks
    ]
    for each in found:
        for file in (each.data_file, *each.delete_files):
            if file.file_format != FileFormat.PARQUET or file.key_metadata:
                raise TableRewriteError(f"{file.file_path} is not a plain Parquet file")
    return found


class FileReader:
    """Reads the files of one table."""

    def __init__(self, io: FileIO, metadata: TableMetadata) -> None:
        self._io = io
        self._metadata = metadata

    @cached_property
    def schema(self) -> Schema:
        """The table's schema with the names that Parquet files have."""
        return sanitize_column_names(self._metadata.schema())

    @cached_property
    def arrow(self) -> pa.Schema:
        """The form of the batches that `rows` returns."""
        return schema_to_pyarrow(self.schema)

    def columns(self, path: str, field_ids: Mapping[str, int]) -> Iterator[dict[str, pa.Array]]:
        """Reads some columns of all rows in a file, also of those that are deleted by position.

        A file without one of the columns has no value in it, and nothing is read. Errors: FileNotFoundError.
        """
        with self._io.new_input(path).open() as stream:
            parquet = pq.ParquetFile(stream)
            names = self._names(parquet, field_ids)
            if len(names) == len(field_ids):
                for batch in parquet.iter_batches(batch_size=_batch_rows(parquet), columns=list(names.values())):
                    yield {name: _decoded(batch.column(column)) for name, column in names.items()}

    def _names(self, parquet: Any, field_ids: Mapping[str, int]) -> dict[str, str]:
        by_id = {each.field_id: each.name for each in self._file_schema(parquet).fields}
        return {name: by_id[field_id] for name, field_id in field_ids.items() if field_id in by_id}

    def _file_schema(self, parquet: Any) -> Schema:
        version = self._metadata.format_version
        return pyarrow_to_schema(
            parquet.schema_arrow,
            self._metadata.name_mapping(),
            downcast_ns_timestamp_to_us=version <= 2,  # noqa: PLR2004 - the last version without nanoseconds
            format_version=version,
        )

    def rows(self, live: LiveFile, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """Reads the rows that are not deleted, with the columns of the table's schema and its field ids."""
        path = live.data_file.file_path
        deleted = self._deleted_positions(live)
        with self._io.new_input(path).open() as stream:
            parquet = pq.ParquetFile(stream)
            schema = self._file_schema(parquet)
            missing = _get_column_projection_values(
                live.data_file,
                self.schema,
                self._metadata.schema(),
                self._metadata.specs().get(live.data_file.spec_id),
                schema.field_ids,
            )
            first = 0
            for batch in parquet.iter_batches(batch_size=_batch_rows(parquet, batch_bytes)):
                kept = _without_positions(_decoded_batch(batch), first, deleted)
                first += batch.num_rows
                if kept.num_rows:
                    projected = _to_requested_schema(
                        self.schema,
                        schema,
                        kept,
                        projected_missing_fields=missing,
                        allow_timestamp_tz_mismatch=True,
                    )
                    columns = [
                        column.cast(each.type) for column, each in zip(projected.columns, self.arrow, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    def _deleted_positions(self, live: LiveFile) -> np.ndarray:
        found = [np.empty(0, dtype=np.int64)]
        for each in live.delete_files:
            if each.content != DataFileContent.POSITION_DELETES:
                raise TableRewriteError(f"{each.file_path} is no file of position deletes")
            positions = _read_deletes(self._io, each).get(live.data_file.file_path)
            if positions is not None:
                found.append(np.asarray(positions.combine_chunks()).astype(np.int64))
        return np.unique(np.concatenate(found))


def _batch_rows(parquet: Any, batch_bytes: int = BATCH_BYTES) -> int:
    """Returns how many rows a batch has, so that it has about some bytes."""
    metadata = parquet.metadata
    total = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(1, min(BATCH_ROWS_MAX, batch_bytes * int(metadata.num_rows) // max(int(total), 1)))


def _decoded(column: pa.Array) -> pa.Array:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _decoded_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    if not any(pa.types.is_dictionary(each) for each in batch.schema.types):
        return batch
    columns = [_decoded(each) for each in batch.columns]
    fields = [each.with_type(column.type) for each, column in zip(batch.schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, batch.schema.metadata))


def _without_positions(batch: pa.RecordBatch, first: int, deleted: np.ndarray) -> pa.RecordBatch:
    """Returns a batch, whose first row has the position `first` in its file, without deleted positions."""
    low, high = np.searchsorted(deleted, [first, first + batch.num_rows])
    if low == high:
        return batch
    kept = np.ones(batch.num_rows, dtype=bool)
    kept[deleted[low:high] - first] = False
    return batch.filter(pa.array(kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlace:
    """Which work writes files, and for which partition of the table."""

    base_snapshot_id: int | None
    round_id: UUID
    spec_id: int
    partition: Any


class FileWriter:
    """Writes rows to data files of one partition of the table, each of about `target_bytes`.

    It numbers them from `first_number`. Close it, or call `abandon`.
    """

    def __init__(self, table: Table, place: FilePlace, first_number: int, target_bytes: int = TARGET_BYTES) -> None:
        self._table = table
        self._place = place
        self._number = first_number
        self._target_bytes = target_bytes
        self._schema = sanitize_column_names(table.schema())
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._open: tuple[str, Any, ParquetFormatWriter] | None = None
        self._paths: list[str] = []
        self._done: list[DataFile] = []
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows. Their columns are those of the table's schema, with field ids."""
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> list[DataFile]:
        """Completes the last file, and returns all. Without rows there is none."""
        self._flush()
        self._close_file()
        return self._done

    def abandon(self) -> list[str]:
        """Closes what is open. Returns the paths of all files that were begun: the caller deletes them."""
        if self._open is not None:
            stream = self._open[2]._fos  # noqa: SLF001 - its close() needs a complete file
            if stream is not None:
                stream.close()
            self._open = None
        return self._paths

    def _flush(self) -> None:
        """Writes the waiting rows as a row group."""
        if not self._waiting:
            return
        group = pa.Table.from_batches(self._waiting).combine_chunks()
        self._waiting, self._waiting_bytes = [], 0
        if self._open is None:
            name = data_file_name(self._place.base_snapshot_id, self._place.round_id, self._number)
            self._number += 1
            path = self._table.location_provider().new_data_location(name)
            output = self._table.io.new_output(path)
            self._paths.append(path)
            self._open = (path, output, ParquetFormatWriter(output, self._schema, self._table.properties))
        writer = self._open[2]
        writer.write(group)
        if writer._fos is not None and writer._fos.tell() >= self._target_bytes:  # noqa: SLF001 - only it knows the size
            self._close_file()

    def _close_file(self) -> None:
        if self._open is None:
            return
        path, output, writer = self._open
        statistics = writer.close()
        self._open = None
        data_file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=self._place.partition,
            file_size_in_bytes=len(output),
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        data_file.spec_id = self._place.spec_id
        self._done.append(data_file)


def selected(batch: pa.RecordBatch, mask: np.ndarray) -> pa.RecordBatch:
    """Returns the rows of a batch that a mask marks."""
    return batch if mask.all() else batch.filter(pa.array(mask))


def row_count(files: Iterable[DataFile]) -> int:
    """Returns the rows in files."""
    return sum(each.record_count for each in files)


def ids_of(batch: pa.RecordBatch) -> dict[int, pa.Array]:
    """Returns the columns of a batch of the table by field id."""
    return {
        int((each.metadata or {})[b"PARQUET:field_id"]): column
        for each, column in zip(batch.schema, batch.columns, strict=True)
    }


def sum_of_sizes(files: Iterable[DataFile]) -> int:
    """Returns the bytes of files."""
    return sum(each.file_size_in_bytes for each in files)
