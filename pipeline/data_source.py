"""`format("lowtide")` as Spark sees it: a name, a schema, and who reads and writes.

Spark starts several processes for a query, each of which imports this module and asks for one thing: so what reads and
what writes is imported when it is asked for. It is a tenth of a second each time.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lowtide.pipeline.read_options import read_options, wants_headers

SCHEMA: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP, timestampType INT"
)
"""For Spark, without headers; `arrow_batches` has the same for Arrow."""

SCHEMA_WITH_HEADERS: Final = f"{SCHEMA}, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


class LowtideDataSource(DataSource):  # type: ignore[misc]
    """Topics of a Kafka cluster as data frames.

    Its options keep their capitals only in Spark's own map, so that is what is passed on.
    """

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "lowtide"

    def schema(self) -> str:
        """Kafka's columns, whatever is read."""
        return SCHEMA_WITH_HEADERS if wants_headers(self.options) else SCHEMA

    def reader(self, schema: StructType) -> Any:
        """Errors: OptionError."""
        from lowtide.pipeline.batch_reader import BatchReader  # noqa: PLC0415 PySpark imports this module where it isn't needed

        return BatchReader(read_options(self.options, is_stream=False))

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 Spark's name
        """Errors: OptionError."""
        from lowtide.pipeline.stream_reader import StreamReader  # noqa: PLC0415 PySpark imports this module where it isn't needed

        return StreamReader(read_options(self.options, is_stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> Any:  # noqa: FBT001 Spark's signature
        """Errors: OptionError, SettingsError, SinkError: before anything is written."""
        from lowtide.pipeline.sink_columns import SinkError  # noqa: PLC0415 PySpark imports this module where it isn't needed
        from lowtide.pipeline.writer import BatchWriter, SinkSettings  # noqa: PLC0415 PySpark imports this module where it isn't needed

        if overwrite:
            raise SinkError(
                'mode("overwrite") would have to delete what others have written: a topic is appended to, say '
                'mode("append")'
            )
        return BatchWriter(SinkSettings.of(self.options, column_types(schema)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: FBT001, N802 Spark's signature
        """Errors: OptionError, SettingsError, SinkError: before anything is written."""
        from lowtide.pipeline.writer import SinkSettings, StreamWriter  # noqa: PLC0415 PySpark imports this module where it isn't needed

        return StreamWriter(SinkSettings.of(self.options, column_types(schema)))


def column_types(schema: StructType) -> dict[str, str]:
    """Each column with its type in Spark's words."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}
