"""DescribeProducers: v0-v0.

Behaviour: tells what each partition remembers of its producers: id, epoch, last sequence and timestamp, and the first offset of an open
transaction. Any replica answers, not the leader only. A partition that is named twice is answered once.

Errors: INVALID_TOPIC_EXCEPTION and UNKNOWN_TOPIC_OR_PARTITION for a topic, with a message; without one UNKNOWN_TOPIC_OR_PARTITION for a
partition that the topic doesn't have, NOT_LEADER_OR_FOLLOWER for one that isn't here, KAFKA_STORAGE_ERROR for one whose log directory is
offline.

KIPs: 664.
"""

from __future__ import annotations

from lowtide.broker.connection import RequestContext
from lowtide.broker.context import BrokerContext
from lowtide.broker.dispatcher import HandlerSpec
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_producers import (
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
    ProducerState,
)
from lowtide.replication.controller import Refusal, check_topic_name
from lowtide.replication.partition import Partition

_UNKNOWN_TOPIC = Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's state."""

    def check_topic(name: str) -> Refusal | None:
        reason = check_topic_name(name)
        if reason is not None:
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        return None if name in broker.metadata.image.topics else _UNKNOWN_TOPIC

    def describe(topic: str, partition: int, refusal: Refusal | None) -> DescribeProducersPartitionResponse:
        if refusal is not None:
            return DescribeProducersPartitionResponse(
                partition_index=partition, error_code=refusal.error_code, error_message=refusal.message
            )
        found = broker.replicas.find(topic, partition)
        if isinstance(found, ErrorCode):
            return DescribeProducersPartitionResponse(partition_index=partition, error_code=found)
        return DescribeProducersPartitionResponse(partition_index=partition, error_code=ErrorCode.NONE, active_producers=_producers(found))

    def handle(request: DescribeProducersRequest, _context: RequestContext) -> DescribeProducersResponse:
        # Told once each, however often they are named: a small request for one partition many times would have an answer of any size.
        wanted: dict[str, dict[int, None]] = {}
        for topic in request.topics:
            wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        topics = []
        for name, partitions in wanted.items():
            refusal = check_topic(name)
            rows = [describe(name, partition, refusal) for partition in partitions]
            topics.append(DescribeProducersTopicResponse(name=name, partitions=rows))
        return DescribeProducersResponse(throttle_time_ms=0, topics=topics)

    return HandlerSpec(key=ApiKey.DESCRIBE_PRODUCERS, handle=handle)


def _producers(partition: Partition) -> list[ProducerState]:
    return [
        ProducerState(
            producer_id=producer_id,
            producer_epoch=entry.producer_epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.last_timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.transaction_first_offset,
        )
        for producer_id, entry in partition.log.producer_state.producers.items()
    ]
