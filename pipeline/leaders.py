"""Keeps the leaders of partitions from the answers to Metadata requests.

Brokers do not learn of changes at the same time, so an answer may be older than the one before it. While a topic keeps
its id, known partitions stay known, and a leader of an older epoch is ignored (KIP-320). A topic with another id
replaces the known one, because nothing shows which of them is newer.

Source: Kafka's `Metadata`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lowtide.admin.settings import Address
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from lowtide.protocol.types import ZERO_TOPIC_ID, BrokerId, LeaderEpoch, TopicId, TopicPartition

NO_LEADER: Final = -1


class Leader(NamedTuple):
    """The leader of a partition."""

    broker_id: BrokerId
    epoch: LeaderEpoch
    """-1 if the broker is older than leader epochs."""


class Topic(NamedTuple):
    """The metadata of a topic."""

    topic_id: TopicId
    """Zeros if the broker is older than topic ids."""
    leaders: dict[int, Leader]
    """By partition number. A partition without a leader has `NO_LEADER`."""
    is_internal: bool = False
    """Whether brokers store their own records in it."""


@dataclass(slots=True, kw_only=True)
class LeaderCache:
    """The leaders of all requested topics."""

    addresses: dict[BrokerId, Address] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    problems: dict[str, int] = field(default_factory=dict)
    """The error codes in the last answer, by topic. Only a missing topic loses its metadata."""

    def learn(self, answer: MetadataResponse) -> None:
        """Takes the metadata in an answer."""
        if answer.brokers:
            self.addresses = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        for topic in answer.topics:
            if topic.name is None:
                continue
            if topic.error_code == ErrorCode.NONE:
                self.problems.pop(topic.name, None)
                self.topics[topic.name] = _merged(self.topics.get(topic.name), topic)
                continue
            self.problems[topic.name] = topic.error_code
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self.topics.pop(topic.name, None)

    def of(self, partition: TopicPartition) -> Leader | None:
        """Returns the leader, or None if the partition is unknown or has no leader that clients can reach."""
        topic = self.topics.get(partition.topic)
        leader = None if topic is None else topic.leaders.get(partition.partition)
        return leader if leader is not None and leader.broker_id in self.addresses else None

    def partition_count(self, topic: str) -> int:
        """Returns how many partitions a topic has; 0 for an unknown topic."""
        known = self.topics.get(topic)
        return 0 if known is None else max(known.leaders, default=-1) + 1

    def available(self, topic: str) -> list[int]:
        """Returns the partitions that have a leader, or all if none has."""
        everyone = range(self.partition_count(topic))
        return [number for number in everyone if self.of(TopicPartition(topic, number)) is not None] or list(everyone)


def _merged(known: Topic | None, row: MetadataResponseTopic) -> Topic:
    """Returns the metadata of a topic after this row of an answer."""
    leaders = {each.partition_index: Leader(each.leader_id, each.leader_epoch) for each in row.partitions}
    if known is None or known.topic_id != row.topic_id:
        return Topic(row.topic_id, leaders, row.is_internal)
    for partition, leader in known.leaders.items():
        now = leaders.get(partition)
        is_older = row.topic_id != ZERO_TOPIC_ID if now is None else 0 <= now.epoch < leader.epoch
        if is_older:
            leaders[partition] = leader
    return Topic(row.topic_id, dict(sorted(leaders.items())), row.is_internal)
