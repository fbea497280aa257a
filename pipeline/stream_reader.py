"""`spark.readStream.format("lowtide")`: topics as a stream of micro-batches, which may delete consumed records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from lowtide.pipeline.batch_reader import RangePartition, read_range
from lowtide.pipeline.read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from lowtide.pipeline.stream_positions import StreamPositions


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Spark creates one for the driver, which lives as long as the query, and pickles another one for the executors.

    Nothing relies on `stop`: Spark ends the driver's process without it.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._positions: StreamPositions | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_positions": None}

    @property
    def positions(self) -> StreamPositions:
        """The driver's side, created on first use. Executors do not import it."""
        if self._positions is None:
            from lowtide.pipeline.stream_positions import stream_positions  # noqa: PLC0415 executors do not need it

            self._positions = stream_positions(self._options)
        return self._positions

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 Spark's name
        return self.positions.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 Spark's name
        if self._options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self._options.offsets_per_trigger_max)
        if self._options.offsets_per_trigger_min is not None:
            return ReadMinRows(self._options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 Spark's name
        # Spark has no limit with both bounds, so the lower one comes from the options. `Trigger.Once` reads everything.
        is_all = isinstance(limit, ReadAllAvailable)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self.positions.latest(start, rows_max, None if is_all else self._options.offsets_per_trigger_min)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 Spark's name
        return self.positions.reported_latest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 Spark's name
        self.positions.prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        return [RangePartition(planned) for planned in self.positions.planned(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options.client, self._options.fetch, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self.positions.committed(end)
