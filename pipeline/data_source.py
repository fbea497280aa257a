"""`format("lowtide")` as Spark sees it: a name, a schema, and who reads and writes."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lowtide.pipeline.arrow_batches import SCHEMA, SCHEMA_WITH_HEADERS
from lowtide.pipeline.batch_reader import BatchReader
from lowtide.pipeline.read_options import read_options, wants_headers


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
