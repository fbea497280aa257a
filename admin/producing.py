"""Writes a few records: one batch for each partition, with acks=all. `lowtide.pipeline` writes many.

The batches have a producer id, and keep their sequence over all attempts. So a batch whose answer was lost is written
once (KIP-98).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.attempts import Done, Outcome
from lowtide.admin.call import AdminCall, AdminClientBase, failure
from lowtide.admin.errors import BrokerAnsweredError
from lowtide.admin.leaders import LeaderFinder
from lowtide.protocol.batch_building import UnplacedRecord, build_batch
from lowtide.protocol.client.retries import is_retriable
from lowtide.protocol.compression import Compression
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.types import BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.errors import AdminError

NAMES_UNTIL: Final = 12
"""The last version of Produce with topic names; later ones have topic ids."""

ALL_IN_SYNC: Final = -1
"""The `acks` of a write that all in-sync replicas have."""

TRANSACTION_TIMEOUT_MS: Final = 60_000
"""InitProducerId has a transaction timeout even without a transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRecords:
    """Records in a partition: the offset of the first one; the others follow. `append_time_ms` is the broker's time.

    It is None if the records have their producer's timestamps.
    """

    first_offset: Offset
    append_time_ms: int | None


async def produce_records(
    client: AdminClientBase,
    records: Mapping[TopicPartition, Sequence[UnplacedRecord]],
    *,
    compression: Compression = Compression.NONE,
    timeout: float | None = None,
) -> dict[TopicPartition, WrittenRecords | AdminError]:
    """Writes a batch of records to each partition; a batch is written when all in-sync replicas have it.

    Records are tuples of timestamp in milliseconds, key, value and headers. After a DeadlineExceededError a batch may
    be written. Errors: ValueError for a partition without records.
    """
    if any(not some for some in records.values()):
        raise ValueError("a partition has no records: give at least one, or leave it out")
    call = client.call(timeout)
    leaders = LeaderFinder(call)
    producer_id, producer_epoch = await _new_producer(call) if records else (-1, -1)
    batches = {
        key: build_batch(
            some,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=0,
        )
        for key, some in records.items()
    }

    async def send(
        broker_id: BrokerId, asked: list[TopicPartition]
    ) -> Mapping[TopicPartition, Outcome[WrittenRecords]]:
        topics: dict[str, TopicProduceData] = {}
        for key in asked:
            topic = topics.setdefault(key.topic, TopicProduceData(name=key.topic, partition_data=[]))
            topic.partition_data.append(PartitionProduceData(index=key.partition, records=batches[key]))
        request = ProduceRequest(acks=ALL_IN_SYNC, timeout_ms=call.wait_ms(), topic_data=list(topics.values()))
        response = await call.ask(broker_id, request, waits=True, at_most=NAMES_UNTIL)
        return {
            TopicPartition(topic.name, row.index): _outcome(TopicPartition(topic.name, row.index), row, leaders)
            for topic in response.responses
            for row in topic.partition_responses
        }

    return await call.each(batches, leaders.locate, send, lambda key: f"records for {key}")


def _outcome(key: TopicPartition, row: Any, leaders: LeaderFinder) -> Outcome[WrittenRecords]:
    if is_retriable(row.error_code):
        return leaders.on_error(key, row.error_code, "its leader did not write the records")
    if row.error_code:
        return BrokerAnsweredError(row.error_code, f"records for {key}", _message(row))
    append_time_ms = row.log_append_time_ms if row.log_append_time_ms >= 0 else None
    return Done(WrittenRecords(first_offset=row.base_offset, append_time_ms=append_time_ms))


def _message(row: Any) -> str | None:
    """Returns why a batch was refused: of its first invalid record, or of all."""
    reasons = (each.batch_index_error_message for each in row.record_errors)
    message: str | None = next(filter(None, reasons), row.error_message)
    return message


async def _new_producer(call: AdminCall) -> tuple[int, int]:
    """Returns a new producer id with its epoch. Errors: AdminError."""

    async def send(broker_id: BrokerId, asked: list[str]) -> Mapping[str, Outcome[tuple[int, int]]]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        response = await call.ask(broker_id, request)
        if response.error_code:
            return dict.fromkeys(asked, failure("a producer id", response.error_code))
        return dict.fromkeys(asked, Done((response.producer_id, response.producer_epoch)))

    return await call.single("a producer id", call.to_broker(), send)
