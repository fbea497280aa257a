"""DescribeProducers: v0-v0.

Behaviour: returns the producers of each partition: id, epoch, last sequence and timestamp, and the first offset of an
open transaction. Any replica answers, not only the leader. A partition that is listed twice is answered once. A long
response is built in slices; each producer's row is from one moment.

Errors: INVALID_TOPIC_EXCEPTION and UNKNOWN_TOPIC_OR_PARTITION for a topic, with a message; without one
UNKNOWN_TOPIC_OR_PARTITION for a partition that the topic doesn't have, NOT_LEADER_OR_FOLLOWER for one that isn't here,
KAFKA_STORAGE_ERROR for one whose log directory is offline.

KIPs: 664.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from lowtide.broker.administration.committing import outcome_fields
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import topics as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_producers import (
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
    ProducerState,
)
from lowtide.replication.partition import Partition
from lowtide.replication.refusal import Refusal
from lowtide.replication.topic_names import check_topic_name

PARTITIONS_A_STEP = 50
PRODUCERS_A_STEP = 250
"""Some three tenths of a millisecond each."""

_UNKNOWN_TOPIC = Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")

CUT: Final = Cut(levels=(("topics", "topics"), ("partition_indexes", "partitions")))


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""

    def check_topic(name: str) -> Refusal | None:
        reason = check_topic_name(name)
        if reason is not None:
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        return None if name in broker.metadata.image.topics else _UNKNOWN_TOPIC

    def describe(
        topic: str, partition: int, refusal: Refusal | None
    ) -> Generator[None, None, DescribeProducersPartitionResponse]:
        if refusal is not None:
            return DescribeProducersPartitionResponse(partition_index=partition, **outcome_fields(refusal))
        found = broker.replicas.find(topic, partition)
        if isinstance(found, ErrorCode):
            return DescribeProducersPartitionResponse(partition_index=partition, error_code=found)
        producers = yield from _producers(found)
        return DescribeProducersPartitionResponse(
            partition_index=partition, error_code=ErrorCode.NONE, active_producers=producers
        )

    def answer(wanted: dict[str, dict[int, None]]) -> Generator[None, None, DescribeProducersResponse]:
        topics = []
        for name, partitions in wanted.items():
            refusal = check_topic(name)
            rows = []
            for partition in partitions:
                rows.append((yield from describe(name, partition, refusal)))
                if len(rows) % PARTITIONS_A_STEP == 0:
                    yield
            topics.append(DescribeProducersTopicResponse(name=name, partitions=rows))
        return DescribeProducersResponse(throttle_time_ms=0, topics=topics)

    def handle(request: DescribeProducersRequest, _context: RequestContext) -> Answer[DescribeProducersResponse]:
        # Each partition once, even if it is named more often: the answer to a small request could have any size.
        wanted: dict[str, dict[int, None]] = {}
        for topic in request.topics:
            wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        return broker.turns.answer(answer(wanted))

    return HandlerSpec(key=ApiKey.DESCRIBE_PRODUCERS, guard=guards.describe_producers, handle=handle, cut=CUT)


def _producers(partition: Partition) -> Generator[None, None, list[ProducerState]]:
    """Returns the producers that are known now, in steps. Each row is from one moment."""
    described: list[ProducerState] = []
    for producer_id, entry in list(partition.log.producer_state.producers.items()):
        described.append(
            ProducerState(
                producer_id=producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.transaction_first_offset,
            )
        )
        if len(described) % PRODUCERS_A_STEP == 0:
            yield
    return described
