"""The contents of a Metadata answer: brokers, topics, partitions and their leaders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from lowtide.admin.settings import Address
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import ZERO_TOPIC_ID, BrokerId, LeaderEpoch, TopicId, TopicPartition, topic_id_text

if TYPE_CHECKING:
    from lowtide.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic

NO_LEADER: BrokerId = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker with the address for clients. Only `describe_cluster` sets `is_fenced`."""

    broker_id: BrokerId
    address: Address
    rack: str | None = None
    is_fenced: bool = False


class PartitionDescription(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A partition. `leader` is None while it has none; `error` is NONE, or why clients can't use it."""

    partition: int
    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    """-1 if the broker does not return it."""
    replicas: tuple[BrokerId, ...]
    """The preferred leader comes first."""
    isr: tuple[BrokerId, ...]
    offline: tuple[BrokerId, ...] = ()
    error: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic. A topic that is deleted and created again has another id."""

    name: str
    topic_id: TopicId | None
    """None from brokers before Kafka 2.8."""
    is_internal: bool
    partitions: Mapping[int, PartitionDescription]

    @property
    def topic_id_text(self) -> str | None:
        """The id as Kafka's tools print it."""
        return None if self.topic_id is None else topic_id_text(self.topic_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The reachable brokers, and the requested topics."""

    cluster_id: str | None
    controller_id: BrokerId | None
    brokers: Mapping[BrokerId, Broker]
    topics: Mapping[str, TopicDescription]
    errors: Mapping[str, int]
    """The error codes of topics without a description."""

    def partition(self, partition: TopicPartition) -> PartitionDescription | int:
        """Returns the partition, or an error code."""
        topic = self.topics.get(partition.topic)
        if topic is None:
            return self.errors.get(partition.topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic.partitions.get(partition.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def topic_id(self, topic: str) -> TopicId | None:
        """Returns the id of a topic, if it is known."""
        found = self.topics.get(topic)
        return None if found is None else found.topic_id


def view_of(response: MetadataResponse) -> ClusterView:
    """Returns the view that an answer contains."""
    topics: dict[str, TopicDescription] = {}
    errors: dict[str, int] = {}
    for topic in response.topics:
        name = topic.name or ""
        if topic.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE) and (
            topic.partitions or not topic.error_code
        ):
            topics[name] = _topic(name, topic)
        else:
            errors[name] = topic.error_code
    brokers = {
        row.node_id: Broker(broker_id=row.node_id, address=Address(row.host, row.port), rack=row.rack)
        for row in response.brokers
    }
    controller = response.controller_id if response.controller_id >= 0 else None
    return ClusterView(
        cluster_id=response.cluster_id, controller_id=controller, brokers=brokers, topics=topics, errors=errors
    )


def _topic(name: str, topic: MetadataResponseTopic) -> TopicDescription:
    partitions = {
        row.partition_index: PartitionDescription(
            partition=row.partition_index,
            leader=row.leader_id if row.leader_id != NO_LEADER else None,
            leader_epoch=row.leader_epoch,
            replicas=tuple(row.replica_nodes),
            isr=tuple(row.isr_nodes),
            offline=tuple(row.offline_replicas),
            error=row.error_code,
        )
        for row in sorted(topic.partitions, key=lambda row: row.partition_index)
    }
    topic_id = topic.topic_id if topic.topic_id != ZERO_TOPIC_ID else None
    return TopicDescription(name=name, topic_id=topic_id, is_internal=topic.is_internal, partitions=partitions)
