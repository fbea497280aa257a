"""The data source `format("lowtide")`: its name, its schema, its readers and writers.

Spark starts several processes for a query, and each needs one reader or writer. These are imported on demand, which
saves a tenth of a second.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lowtide.pipeline.read_options import read_options, wants_headers

SCHEMA: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP, timestampType INT"
)
"""The schema for Spark, without headers; `arrow_batches` has the same for Arrow."""

SCHEMA_WITH_HEADERS: Final = f"{SCHEMA}, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


class LowtideDataSource(DataSource):  # type: ignore[misc]
    """Topics of a Kafka cluster as data frames."""

    @classmethod
    def name(cls) -> str:
        """Returns the name for `format(...)`."""
        return "lowtide"

    def schema(self) -> str:
        """Returns Kafka's columns."""
        return SCHEMA_WITH_HEADERS if wants_headers(self.options) else SCHEMA

    def reader(self, schema: StructType) -> Any:
        """Returns the reader. Errors: OptionError."""
        from lowtide.pipeline.batch_reader import BatchReader  # noqa: PLC0415

        return BatchReader(read_options(self.options, is_stream=False))

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 Spark's name
        """Returns the reader. Errors: OptionError."""
        from lowtide.pipeline.stream_reader import StreamReader  # noqa: PLC0415

        return StreamReader(read_options(self.options, is_stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> Any:  # noqa: FBT001 Spark's signature
        """Returns the writer. Errors, before anything is written: OptionError, SettingsError, SinkError."""
        from lowtide.pipeline.sink_columns import SinkError  # noqa: PLC0415
        from lowtide.pipeline.writer import BatchWriter, SinkSettings  # noqa: PLC0415

        if overwrite:
            raise SinkError('mode("overwrite") would delete records of others: use mode("append")')
        return BatchWriter(SinkSettings.of(self.options, column_types(schema)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: FBT001, N802 Spark's signature
        """Returns the writer. Errors, before anything is written: OptionError, SettingsError, SinkError."""
        from lowtide.pipeline.writer import SinkSettings, StreamWriter  # noqa: PLC0415

        return StreamWriter(SinkSettings.of(self.options, column_types(schema)))


def column_types(schema: StructType) -> dict[str, str]:
    """Returns the type of each column, with Spark's names."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}
