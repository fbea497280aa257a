"""Which broker leads which partition, as far as answers to Metadata say.

Values only: this module decides neither whom to ask nor when. Brokers don't learn of changes at the same time, so an
answer may be older than one that came before it. Of a topic with the same id a partition that is known stays known, and
a leader of an older epoch is passed over (KIP-320). A topic with another id takes the place of the one that was known,
whichever is newer: nothing tells.

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
    """Who leads a partition."""

    broker_id: BrokerId
    epoch: LeaderEpoch
    """-1, where the broker is older than leader epochs."""


class Topic(NamedTuple):
    """What is known of a topic."""

    topic_id: TopicId
    """Zeros, where the broker is older than topic ids."""
    leaders: dict[int, Leader]
    """By partition. One without a leader has `NO_LEADER`."""
    is_internal: bool = False
    """Whether brokers keep something of their own in it."""


@dataclass(slots=True, kw_only=True)
class LeaderCache:
    """The leaders of all partitions that were asked for."""

    addresses: dict[BrokerId, Address] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    problems: dict[str, int] = field(default_factory=dict)
    """Error codes of topics that couldn't be described by the last answer. What was known of one stays, unless it isn't there."""

    def learn(self, answer: MetadataResponse) -> None:
        """Take over what a broker says."""
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
        """Who leads it; None for a partition that isn't known, or has no leader that clients can reach."""
        topic = self.topics.get(partition.topic)
        leader = None if topic is None else topic.leaders.get(partition.partition)
        return leader if leader is not None and leader.broker_id in self.addresses else None

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; zero for one that isn't known."""
        known = self.topics.get(topic)
        return 0 if known is None else max(known.leaders, default=-1) + 1

    def available(self, topic: str) -> list[int]:
        """The partitions that have a leader; all, where none has."""
        everyone = range(self.partition_count(topic))
        return [number for number in everyone if self.of(TopicPartition(topic, number)) is not None] or list(everyone)


def _merged(known: Topic | None, row: MetadataResponseTopic) -> Topic:
    """What is known of a topic after this row of an answer."""
    leaders = {each.partition_index: Leader(each.leader_id, each.leader_epoch) for each in row.partitions}
    if known is None or known.topic_id != row.topic_id:
        return Topic(row.topic_id, leaders, row.is_internal)
    for partition, leader in known.leaders.items():
        now = leaders.get(partition)
        is_older = row.topic_id != ZERO_TOPIC_ID if now is None else 0 <= now.epoch < leader.epoch
        if is_older:
            leaders[partition] = leader
    return Topic(row.topic_id, dict(sorted(leaders.items())), row.is_internal)
