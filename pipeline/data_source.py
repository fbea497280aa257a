"""`format("lowtide")` as Spark sees it: a name, a schema, and who reads and writes."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lowtide.pipeline.arrow_batches import SCHEMA, SCHEMA_WITH_HEADERS
from lowtide.pipeline.batch_reader import BatchReader
from lowtide.pipeline.read_options import read_options, wants_headers
from lowtide.pipeline.sink_columns import SinkError
from lowtide.pipeline.stream_reader import StreamReader
from lowtide.pipeline.writer import BatchWriter, SinkSettings, StreamWriter


class LowtideDataSource(DataSource):  # type: ignore[misc]
    """Topics of a Kafka cluster as data frames. Its options keep their capitals only in Spark's own map, so that is what is passed on."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "lowtide"

    def schema(self) -> str:
        """Kafka's columns, whatever is read."""
        return SCHEMA_WITH_HEADERS if wants_headers(self.options) else SCHEMA

    def reader(self, schema: StructType) -> Any:
        """Errors: OptionError."""
        return BatchReader(read_options(self.options, is_stream=False))

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 Spark's name
        """Errors: OptionError."""
        return StreamReader(read_options(self.options, is_stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> Any:  # noqa: FBT001 Spark's signature
        """Errors: OptionError, SettingsError, SinkError: before anything is written."""
        if overwrite:
            raise SinkError('mode("overwrite") would have to delete what others have written: a topic is appended to, say mode("append")')
        return BatchWriter(SinkSettings.of(self.options, column_types(schema)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: FBT001, N802 Spark's signature
        """Errors: OptionError, SettingsError, SinkError: before anything is written."""
        return StreamWriter(SinkSettings.of(self.options, column_types(schema)))


def column_types(schema: StructType) -> dict[str, str]:
    """Each column with its type in Spark's words."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}
