"""What an executor does: reads ranges, decodes them, and writes Parquet files for a table. It commits nothing.

A file's name is `lowtide-BASE-ROUND-…`: the snapshot on which its round is based, and the round. A round can't be
committed once an erasure has committed a snapshot after BASE, so such files can be deleted safely.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import (
    _get_parquet_writer_kwargs,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record
from pyspark import TaskContext

from lowtide.admin.settings import ClientSettings
from lowtide.pipeline.arrow_batches import BatchMaker
from lowtide.pipeline.batch_reader import exempt_imports_from_collection, shared_cluster
from lowtide.pipeline.fetching import RangeReader
from lowtide.pipeline.table.committing import delete_files
from lowtide.pipeline.table.partitioning import split_rows
from lowtide.pipeline.table.schemas import decoder_of
from lowtide.pipeline.table.schemas.decoding import NO_COLUMNS, SchemaSettings, arrow_schema_of
from lowtide.pipeline.table.schemas.evolution import union_of_columns
from lowtide.pipeline.tasks import DataLossError, FetchSettings, PlannedRange

if TYPE_CHECKING:
    from pyiceberg.table import Table

log = logging.getLogger(__name__)

ROW_GROUP_BYTES: Final = 64 << 20
"""The size in memory of the rows that one task keeps until it writes them, as one row group."""

OPEN_FILES_MAX: Final = 32
"""How many files of different partitions of the table one task keeps open. The one with the most bytes is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTarget:
    """What a task knows of a table. Can be pickled."""

    location: str
    schema: Schema
    spec: PartitionSpec
    properties: Mapping[str, str]
    io: Mapping[str, str] = field(repr=False)
    base: int | None
    """The snapshot on which the round is based; None for a table without one."""


def target_of(table: Table, base: int | None) -> TableTarget:
    """Returns what tasks need of a table."""
    return TableTarget(
        location=table.location(),
        schema=table.schema(),
        spec=table.spec(),
        properties=dict(table.properties),
        io=dict(table.io.properties),
        base=base,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask:
    """The work of one task. Can be pickled."""

    round_id: str
    number: int
    ranges: Sequence[PlannedRange]
    client: ClientSettings
    fetch: FetchSettings
    schema: SchemaSettings
    main: TableTarget
    dead: TableTarget | None
    """The table of dead letters. None if the schema has none."""
    skipped: Mapping[int, Sequence[int]]
    """Offsets by partition that the table of dead letters has already."""
    file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutput:
    """What a task has written. Either it has written all, or nothing."""

    number: int
    files: Sequence[DataFile] = ()
    dead_files: Sequence[DataFile] = ()
    new_columns: pa.Schema = NO_COLUMNS
    """What the table lacks. Nothing was written then."""
    lost: str | None = None
    """Why records of the ranges can't be read any more. Nothing was written then."""


def run_tasks(tasks: Iterable[WriteTask]) -> Iterator[TaskOutput]:
    """Runs tasks. Spark calls it in an executor."""
    exempt_imports_from_collection()
    for task in tasks:
        yield _run(task)


def _run(task: WriteTask) -> TaskOutput:
    """Reads, decodes and writes. Errors: ClusterError, DamagedBatchError; those of decoders and storage."""
    main = TableWriter(task.main, task, "data")
    dead = None if task.dead is None else TableWriter(task.dead, task, "dead")
    writers = [main] if dead is None else [main, dead]
    missing = NO_COLUMNS
    try:
        decoder = decoder_of(task.schema, task.main.schema)
        for records in _records(task):
            decoded = decoder.decode(records)
            if len(decoded.new_columns):
                missing = union_of_columns(task.main.schema, [missing, decoded.new_columns])
            if len(missing):
                continue  # The rest is decoded only to find all columns at once.
            if decoded.rows is not None:
                main.write(decoded.rows)
            if decoded.dead is not None and decoded.dead.num_rows:
                assert dead is not None, f"the schema {task.schema.kind} has dead letters"
                dead.write(decoded.dead)
        if len(missing):
            _abort(writers)
            return TaskOutput(number=task.number, new_columns=missing)
        return TaskOutput(number=task.number, files=main.close(), dead_files=() if dead is None else dead.close())
    except DataLossError as error:
        _abort(writers)
        return TaskOutput(number=task.number, lost=str(error))
    except BaseException:
        _abort(writers)
        raise


def _abort(writers: Iterable[TableWriter]) -> None:
    for writer in writers:
        writer.abort()


def _records(task: WriteTask) -> Iterator[pa.RecordBatch]:
    """Yields the records of the ranges, without those to skip."""
    cluster = shared_cluster(task.client)
    for planned in task.ranges:
        place = planned.offsets.partition
        skipped = task.skipped.get(place.partition)
        without = None if not skipped else pa.array(skipped, pa.int64())
        maker = BatchMaker(place, include_headers=True)
        for columns in RangeReader(cluster, task.fetch, planned).columns():
            batch = maker.batch(columns)
            if without is not None:
                batch = batch.filter(pc.invert(pc.is_in(batch.column("offset"), value_set=without)))
            if batch.num_rows:
                yield batch


# ---------------------------------------------------------------------- files
class TableWriter:
    """Writes rows into files of about the wished size, split by the table's partitioning."""

    def __init__(self, target: TableTarget, task: WriteTask, kind: str) -> None:
        self._target = target
        self._task = task
        self._kind = kind
        self._io = load_file_io(dict(target.io), target.location)
        self._places = load_location_provider(target.location, dict(target.properties))
        self._arrow = arrow_schema_of(target.schema)
        self._buffered: list[pa.Table] = []
        self._buffered_bytes = 0
        self._open: dict[str, _OpenFile] = {}
        """By the partition of the table."""
        self._done: list[DataFile] = []
        self._paths: list[str] = []

    def write(self, rows: pa.Table) -> None:
        """Adds rows, with columns that have names and types of the table."""
        self._buffered.append(conformed(rows, self._arrow))
        self._buffered_bytes += rows.nbytes
        if self._buffered_bytes >= min(ROW_GROUP_BYTES, self._task.file_bytes):
            self._flush()

    def close(self) -> list[DataFile]:
        """Writes the rest, and returns all files."""
        self._flush()
        for key in list(self._open):
            self._finish(key)
        return self._done

    def abort(self) -> None:
        """Deletes all files. Never raises."""
        self._buffered.clear()
        for file in self._open.values():
            file.discard()
        self._open.clear()
        delete_files(self._io, self._paths)

    def _flush(self) -> None:
        """Writes the buffered rows, as one row group for each partition of the table."""
        if not self._buffered:
            return
        rows = pa.concat_tables(self._buffered)
        self._buffered.clear()
        self._buffered_bytes = 0
        if self._target.spec.is_unpartitioned():
            self._append(None, rows)
            return
        for key, part in split_rows(rows, self._target.spec, self._target.schema):
            self._append(key, part)

    def _append(self, key: PartitionKey | None, rows: pa.Table) -> None:
        place = "" if key is None else key.to_path()
        limit = min(ROW_GROUP_BYTES, self._task.file_bytes)
        step = max(math.ceil(rows.num_rows / max(math.ceil(rows.nbytes / limit), 1)), 1)
        for start in range(0, rows.num_rows, step):
            self._append_group(place, key, rows.slice(start, step))

    def _append_group(self, place: str, key: PartitionKey | None, rows: pa.Table) -> None:
        """Writes one row group, and closes its file if it is large enough."""
        file = self._open.get(place)
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._finish(max(self._open, key=lambda one: self._open[one].size))
            file = self._open[place] = self._opened(key)
        file.write(rows)
        if file.size >= self._task.file_bytes:
            self._finish(place)

    def _opened(self, key: PartitionKey | None) -> _OpenFile:
        task, number = self._task, len(self._paths)
        name = (
            f"lowtide-{self._target.base or 0}-{task.round_id}-{self._kind}-{task.number}-{_attempt()}-{number}.parquet"
        )
        path = self._places.new_data_location(name, key)
        self._paths.append(path)
        return _OpenFile(self._io, path, key, self._target, self._arrow)

    def _finish(self, place: str) -> None:
        self._done.append(self._open.pop(place).finish())


class _OpenFile:
    """One Parquet file that is being written."""

    def __init__(self, io: FileIO, path: str, key: PartitionKey | None, target: TableTarget, arrow: pa.Schema) -> None:
        self._output = io.new_output(path)
        self._key = key
        self._target = target
        self._stream = self._output.create(overwrite=True)
        self._writer = pq.ParquetWriter(
            self._stream,
            schema=arrow,
            store_decimal_as_integer=True,
            **_get_parquet_writer_kwargs(dict(target.properties)),
        )
        self.size = 0
        """Bytes that are written."""

    def write(self, rows: pa.Table) -> None:
        """Writes a row group."""
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self.size = self._stream.tell()

    def finish(self) -> DataFile:
        """Closes the file, and describes it as Iceberg wants it."""
        with self._stream:
            self._writer.close()
        properties = dict(self._target.properties)
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=self._writer.writer.metadata,
            stats_columns=compute_statistics_plan(self._target.schema, properties),
            parquet_column_mapping=parquet_path_to_id_mapping(self._target.schema),
        )
        made = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._output.location,
            file_format=FileFormat.PARQUET,
            partition=Record() if self._key is None else self._key.partition,
            file_size_in_bytes=len(self._output),
            sort_order_id=None,
            spec_id=self._target.spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        made.spec_id = self._target.spec.spec_id
        return made

    def discard(self) -> None:
        """Closes the file without finishing it. Never raises."""
        for close in (self._writer.close, self._stream.close):
            with contextlib.suppress(Exception):
                close()


def conformed(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Returns the rows with exactly the wanted columns; missing ones are null. Errors: pa.ArrowInvalid."""
    columns = []
    for one in wanted:
        index = rows.schema.get_field_index(one.name)
        if index < 0:
            columns.append(pa.nulls(rows.num_rows, one.type))
            continue
        column = rows.column(index)
        columns.append(column if column.type == one.type else column.cast(one.type))
    return pa.Table.from_arrays(columns, schema=wanted)


def _attempt() -> int:
    """Returns the number of this attempt of a Spark task: the files of a killed attempt may still be there."""
    context = TaskContext.get()
    return 0 if context is None else context.taskAttemptId()
