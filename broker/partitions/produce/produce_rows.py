"""The rows of Produce requests and of their responses.

Pure. Source: Kafka's `KafkaApis.handleProduceRequest`, `RequestUtils.hasTransactionalRecords`.
"""

from __future__ import annotations

import contextlib
from typing import cast

from lowtide.protocol.compression import Buffer
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from lowtide.protocol.records import (
    ATTRIBUTES_POSITION,
    CURRENT_MAGIC,
    MAGIC_POSITION,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL_BIT,
    BatchHeader,
    read_batch_header,
)
from lowtide.protocol.types import UNKNOWN_OFFSET, TopicId
from lowtide.replication.partition import Partition
from lowtide.storage.log.validation.rejections import Rejection

_FLAGS_POSITION = ATTRIBUTES_POSITION + 1
"""The lower byte of the attributes."""


def once_each(topics: list[TopicProduceData]) -> list[TopicProduceData]:
    """Returns each topic that has partitions once, with each partition once: the last batch wins, as in Kafka."""
    found: dict[tuple[str, TopicId], tuple[TopicProduceData, dict[int, PartitionProduceData]]] = {}
    for topic in topics:
        _, rows = found.setdefault((topic.name, topic.topic_id), (topic, {}))
        rows.update((row.index, row) for row in topic.partition_data)
    for topic, rows in found.values():
        topic.partition_data = list(rows.values())
    return [topic for topic, rows in found.values() if rows]


def has_transactional(topics: list[TopicProduceData]) -> bool:
    """Returns whether the first batch of any partition is transactional. The batches are not validated yet."""
    for topic in topics:
        for row in topic.partition_data:
            records = cast("Buffer | None", row.records)
            if records is None or len(records) <= _FLAGS_POSITION or records[MAGIC_POSITION] != CURRENT_MAGIC:
                continue
            if records[_FLAGS_POSITION] & TRANSACTIONAL_BIT:
                return True
    return False


def refused_for_now(
    index: int, error: ErrorCode, partition: Partition, records: Buffer | None, now_ms: int, message: str | None = None
) -> PartitionProduceResponse:
    """Returns the row of a refused batch that its producer will send again, before its later batches."""
    header = header_of(records)
    if header is not None:
        partition.log.producer_state.note_refused(header, now_ms)
    return failed(index, error, message=message)


def header_of(records: Buffer | None) -> BatchHeader | None:
    """Returns the header of an unvalidated batch; None if there is none."""
    with contextlib.suppress(ProtocolError):
        if records is not None and len(records) >= RECORD_BATCH_OVERHEAD and records[MAGIC_POSITION] == CURRENT_MAGIC:
            return read_batch_header(records, 0)
    return None


def not_appended(
    index: int, error: ErrorCode, partition: Partition, records: Buffer | None, now_ms: int
) -> PartitionProduceResponse:
    """Returns the row of a batch that the log refused or could not write.

    A batch out of order behind a refused one gets NOT_LEADER_OR_FOLLOWER, because clients give up at
    OUT_OF_ORDER_SEQUENCE_NUMBER.
    """
    if error == ErrorCode.KAFKA_STORAGE_ERROR:
        return refused_for_now(index, error, partition, records, now_ms)
    if error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and _is_behind_refused(partition, records):
        return refused_for_now(index, ErrorCode.NOT_LEADER_OR_FOLLOWER, partition, records, now_ms)
    return failed(index, error, log_start_offset=partition.log.log_start_offset)


def _is_behind_refused(partition: Partition, records: Buffer | None) -> bool:
    return records is not None and partition.log.producer_state.is_behind_refused(read_batch_header(records, 0))


def failed(
    index: int, error: int, *, log_start_offset: int = UNKNOWN_OFFSET, message: str | None = None
) -> PartitionProduceResponse:
    """Returns the row of a batch that was not written."""
    return PartitionProduceResponse(
        index=index,
        error_code=error,
        base_offset=UNKNOWN_OFFSET,
        log_start_offset=log_start_offset,
        error_message=message,
    )


def rejected(index: int, partition: Partition, rejection: Rejection) -> PartitionProduceResponse:
    """Returns the row of a batch that the validator refused."""
    log_start_offset = partition.log.log_start_offset if rejection.found_in_log else UNKNOWN_OFFSET
    response = failed(index, rejection.error_code, log_start_offset=log_start_offset, message=rejection.error_message)
    response.record_errors = [
        BatchIndexAndErrorMessage(batch_index=batch_index, batch_index_error_message=message)
        for batch_index, message in rejection.record_errors
    ]
    return response


def refused_throughout(topics: list[TopicProduceData], error: ErrorCode) -> list[TopicProduceResponse]:
    """Returns the rows of a request of which nothing is written. Source: `KafkaApis`."""
    return [
        TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[failed(row.index, error) for row in topic.partition_data],
        )
        for topic in topics
    ]
