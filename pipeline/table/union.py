"""All of a topic as one data frame: the rows of a table, and behind them the records that the table lacks yet.

One snapshot is read, and its progress says where the topic goes on. So each record is in the data frame once, whatever
the job commits meanwhile. If the topic is trimmed further than that snapshot while the query runs, the query fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from lowtide.pipeline.batch_reader import shared_cluster
from lowtide.pipeline.options import OptionError
from lowtide.pipeline.read_options import EARLIEST, read_options
from lowtide.pipeline.table.options import catalog_settings, check_table_name, load_catalog
from lowtide.pipeline.table.progress import SCHEMA, TableProgress, head_id, progress_in
from lowtide.pipeline.table.rounds import check_topic_id
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import DataFrame, SparkSession

    from lowtide.pipeline.table.schemas.decoding import SchemaSettings

PASSES_MAX: Final = 20
"""How often a batch is decoded again because it has columns that the table lacks."""

BatchMap = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def union_of(  # noqa: PLR0913 - what names a topic, a table and their places
    topic: str,
    table: str,
    spark: SparkSession,
    *,
    catalog: str,
    options: Mapping[str, str],
    catalog_properties: Iterable[str] = (),
    registry: Iterable[tuple[str, str]] = (),
) -> DataFrame:
    """Returns a data frame with the columns of the table and all records of the topic, old and new, each once.

    `catalog` and `catalog_properties` are those of `lowtide table run`, `options` those of `format("lowtide")` without
    a topic and offsets, and `registry` the settings of a schema registry. Dead letters are left out, and so are fields
    that the table has no column for yet. Errors: OptionError, ProgressError, ClusterError.
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - an extra

    from lowtide.pipeline import register  # noqa: PLC0415 - it imports this module on demand
    from lowtide.pipeline.table.schemas import SchemaSettings, arrow_schema_of  # noqa: PLC0415 - an extra

    opened = load_catalog(catalog_settings(catalog, catalog_properties))
    try:
        loaded = opened.load_table(check_table_name(table))
    except Exception as error:
        raise OptionError(f"the table {table} can't be read: {error}") from error
    progress = progress_in(loaded, topic)
    starts = _starts(topic, progress, options)
    columns = from_arrow_schema(arrow_schema_of(loaded.schema()), prefer_timestamp_ntz=False)
    head = head_id(loaded.metadata)
    files = [] if head is None else list(loaded.scan(snapshot_id=head).plan_files())
    old = spark.range(0, len(files), 1, max(len(files), 1)).mapInArrow(_table_reader(loaded, files), columns)
    register(spark)
    reader = spark.read.format("lowtide").options(**options).option("subscribe", topic)
    new = reader.option("includeHeaders", "true").option("startingOffsets", starts).load()
    settings = SchemaSettings(kind=loaded.properties.get(SCHEMA, "raw"), registry=tuple(registry))
    return old.unionByName(new.mapInArrow(_record_reader(settings, loaded), columns))


def _starts(topic: str, progress: TableProgress | None, options: Mapping[str, str]) -> str:
    """Returns the option `startingOffsets`: where the table ends. Errors: OptionError, ProgressError, ClusterError."""
    client = read_options({**options, "subscribe": topic}, is_stream=False).client
    cluster = shared_cluster(client)
    found = cluster.find_topics([topic], cluster.deadline())[topic]
    check_topic_id(progress, topic, found.topic_id)
    places = [TopicPartition(topic, number) for number in sorted(found.leaders)]
    known = {} if progress is None else progress.positions_of(places)
    return json.dumps({topic: {str(place.partition): known.get(place, EARLIEST) for place in places}})


def _table_reader(table: Table, files: Sequence[FileScanTask]) -> BatchMap:
    """Returns what reads the rows of files by their numbers; it runs in executors."""
    metadata, io, schema = table.metadata, table.io, table.schema()

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415 - in an executor
        from pyiceberg.io.pyarrow import ArrowScan  # noqa: PLC0415 - as above

        from lowtide.pipeline.table.schemas import arrow_schema_of  # noqa: PLC0415 - as above

        wanted = arrow_schema_of(schema)
        for batch in batches:
            for number in batch.column("id").to_pylist():
                for rows in ArrowScan(metadata, io, schema, AlwaysTrue()).to_record_batches([files[number]]):
                    yield rows.cast(wanted)

    return read


def _record_reader(settings: SchemaSettings, table: Table) -> BatchMap:
    """Returns what decodes records into the table's columns; it runs in executors."""
    metadata, schema = table.metadata, table.schema()

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from lowtide.pipeline.arrow_batches import ARROW_SCHEMA_WITH_HEADERS  # noqa: PLC0415 - in an executor
        from lowtide.pipeline.table.schemas import arrow_schema_of, decoder_of  # noqa: PLC0415 - as above
        from lowtide.pipeline.table.schemas.decoding import NO_COLUMNS  # noqa: PLC0415 - as above
        from lowtide.pipeline.table.schemas.evolution import union_of_columns  # noqa: PLC0415 - as above
        from lowtide.pipeline.table.writing import conformed  # noqa: PLC0415 - as above

        wanted, missing = arrow_schema_of(schema), NO_COLUMNS
        decoder = decoder_of(settings, schema)
        for batch in batches:
            records = batch.cast(ARROW_SCHEMA_WITH_HEADERS)
            decoded = decoder.decode(records)
            for _ in range(PASSES_MAX):
                if not len(decoded.new_columns):
                    break
                missing = union_of_columns(schema, [missing, decoded.new_columns])
                decoder = decoder_of(settings, _with_columns(metadata, missing))
                decoded = decoder.decode(records)
            else:
                raise ValueError(
                    f"records still have new columns after {PASSES_MAX} passes: {decoded.new_columns.names}"
                )
            if decoded.rows is not None:
                names = [name for name in decoded.rows.column_names if name in wanted.names]
                yield from conformed(decoded.rows.select(names), wanted).to_batches()

    return read


def _with_columns(metadata: TableMetadata, columns: pa.Schema) -> Schema:
    """Returns a table's schema with more columns. The table does not get them."""
    from pyiceberg.catalog.noop import NoopCatalog  # noqa: PLC0415 - in an executor
    from pyiceberg.io.pyarrow import PyArrowFileIO  # noqa: PLC0415 - as above
    from pyiceberg.table import Table  # noqa: PLC0415 - as above

    copy = Table((), metadata, "", PyArrowFileIO(), NoopCatalog("none"))
    return copy.transaction().update_schema().union_by_name(columns)._apply()  # noqa: SLF001 - it has no public form
