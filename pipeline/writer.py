"""Writes rows to topics: the sink of `write` and of `writeStream`, from Arrow batches.

**At least once.** When a task succeeds, all in-sync replicas have acknowledged its rows, and retries of the producer do
not duplicate them. But when Spark repeats a task (after a failure, or by speculation) or a micro-batch (after a crash),
its rows are written again: there are no transactions, as in Spark's own Kafka sink. A job that must recognize
duplicates puts a unique key into the rows.

Each of Spark's worker processes keeps its producer from task to task, because brokers remember each producer id for a
day. A producer that has failed is not used again.

Source: Spark's `KafkaWriter`, `CachedKafkaProducer`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from lowtide.pipeline.options import KAFKA, Options
from lowtide.pipeline.producer import Producer
from lowtide.pipeline.producer_settings import ProducerSettings
from lowtide.pipeline.sink_columns import PartitionRows, RowPlaces, SinkError, check_columns, record_rows
from lowtide.protocol.columns import RecordRows
from lowtide.protocol.record_columns import BatchSettings, BuiltBatch, RecordTooLargeError, build_batches
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD
from lowtide.runtime.clock import SystemClock

log = logging.getLogger(__name__)

_OF_SPARK = ("checkpointLocation", "path", "includeHeaders")
"""Options of other parts of Spark, which a sink gets too. (Headers come from the column `headers`.)"""

RECORD_BYTES_MAX = 64 << 20
"""The largest batch of one record. Kafka's brokers refuse requests above 100 MB (`socket.request.max.bytes`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """The settings of all tasks. Sent to the executors."""

    producer: ProducerSettings
    topic: str | None

    @classmethod
    def of(cls, options: Mapping[str, str], types: Mapping[str, str]) -> SinkSettings:
        """Reads the options of `write`, and checks the names and the types of columns.

        Errors: SinkError, SettingsError, OptionError.
        """
        given = Options(options)
        topic = given.text("topic")
        check_columns(dict(types), topic)
        properties = {
            key[len(KAFKA) :].lower(): str(value) for key, value in options.items() if key.lower().startswith(KAFKA)
        }
        given.check_all_known(["topic", *_OF_SPARK, *(KAFKA + key for key in properties)])
        settings = cls(producer=ProducerSettings.of(properties, "the options of write"), topic=topic)
        if settings.producer.unused_keys:
            log.warning("options without effect: %s", ", ".join(KAFKA + key for key in settings.producer.unused_keys))
        return settings


@dataclass(slots=True, kw_only=True)
class WriteResult(WriterCommitMessage):  # type: ignore[misc]
    """The counts of one task. Sent to the driver."""

    rows: int
    retried_batches: int


def write_rows(settings: SinkSettings, batches: Iterator[Any], turn: int) -> WriteResult:
    """Writes all rows of one task, and returns when they are acknowledged. Errors: ProduceError, SinkError."""
    kept = _kept_producers()
    producer = kept.pop(settings.producer, None) or Producer(settings.producer)
    rows_before, retries_before = producer.acknowledged_records, producer.retries
    try:
        places = RowPlaces(topic=settings.topic, batch_bytes=settings.producer.batch_bytes, turn=turn)
        for rows in batches:
            _write_batch(producer, places, rows)
        producer.flush()
    except BaseException:
        # Its last batches may be written or not, so its sequences must not be used again.
        producer.close()
        raise
    for other in kept.values():
        other.close()
    kept.clear()
    kept[settings.producer] = producer
    return WriteResult(
        rows=producer.acknowledged_records - rows_before, retried_batches=producer.retries - retries_before
    )


@functools.cache
def _kept_producers() -> dict[ProducerSettings, Producer]:
    """Returns the producer that this process keeps from task to task; there is at most one."""
    return {}


def _write_batch(producer: Producer, places: RowPlaces, rows: Any) -> None:
    columns = record_rows(rows)
    for topic, selected in places.topics(rows):
        available = producer.learn_topic(topic)
        count = producer.cluster.leaders.partition_count(topic)
        for of_partition in places.places(rows, topic, selected, available, count):
            _add(producer, columns, of_partition)


def _add(producer: Producer, columns: RecordRows, rows: PartitionRows) -> None:
    """Builds batches of the rows of one partition, and passes them to the producer.

    A row that is larger than a batch gets its own: the broker may accept it.
    """
    settings, left = producer.settings, rows.selected
    while True:
        done = 0
        try:
            for built in _build(settings, columns, left, settings.batch_bytes):
                producer.add(rows.place, _own(built), built.row_count)
                done += built.row_count
        except RecordTooLargeError:
            left = np.arange(done, columns.row_count, dtype=np.int64) if left is None else left[done:]
        else:
            return
        try:
            for built in _build(settings, columns, left[:1], RECORD_BYTES_MAX):
                producer.add(rows.place, _own(built), built.row_count)
        except RecordTooLargeError as error:
            raise _too_large(rows, error.row, columns) from None
        left = left[1:]


def _own(built: BuiltBatch) -> bytearray:
    """Returns the batch as a bytearray, without a copy if it is one already."""
    return built.batch if isinstance(built.batch, bytearray) else bytearray(built.batch)


def _build(
    settings: ProducerSettings, columns: RecordRows, selected: NDArray[np.int64] | None, bytes_max: int
) -> Iterator[BuiltBatch]:
    batches = BatchSettings(batch_bytes_max=bytes_max, compression=settings.compression, with_crc=False)
    return build_batches(
        columns, batches, timestamp_ms=SystemClock().wall_ms(), selected=None if selected is None else selected.data
    )


def _too_large(rows: PartitionRows, row: int, columns: RecordRows) -> SinkError:
    assert columns.values is not None
    begins = memoryview(columns.values.offsets).cast("B").cast("i")
    size = begins[columns.values.first + row + 1] - begins[columns.values.first + row]
    allowed = RECORD_BYTES_MAX - RECORD_BATCH_OVERHEAD
    return SinkError(
        f"row {row} of its Arrow batch, for {rows.place}, has a value of {size} bytes: a record must not have more "
        f"than {allowed}."
    )


def _turn() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


class RowWriter:
    """The part of both writers that runs on the executors."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[Any]) -> WriteResult:
        return write_rows(self._settings, iterator, _turn())


class BatchWriter(RowWriter, DataSourceArrowWriter):  # type: ignore[misc]
    """The writer of `DataFrame.write`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing: rows are readable as soon as they are acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing: rows that were written before the failure stay (at least once)."""


class StreamWriter(RowWriter, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The writer of `DataFrame.writeStream`, for each micro-batch."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 Spark's name
        """Does nothing, as for a batch."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 Spark's name
        """Does nothing: Spark repeats the micro-batch, which writes its rows again."""
