"""Which broker leads which partition, as far as the last answer to Metadata has told. Values only; who asks, and when, is not here.

What is known stays when a topic can't be told for a moment: a leader that is gone is found out by asking it.
Source: KIP-951 is not used, a refused batch asks for metadata anew; Kafka's `Metadata`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lowtide.admin.settings import Address
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseTopic
from lowtide.protocol.types import BrokerId, LeaderEpoch, TopicPartition


@dataclass(slots=True, kw_only=True)
class Leaders:
    """See the module."""

    addresses: dict[BrokerId, Address] = field(default_factory=dict)
    of: dict[TopicPartition, BrokerId] = field(default_factory=dict)
    """Only partitions that have a leader."""

    partition_counts: dict[str, int] = field(default_factory=dict)
    problems: dict[str, ErrorCode] = field(default_factory=dict)
    """Why a topic couldn't be told."""

    _epochs: dict[TopicPartition, LeaderEpoch] = field(default_factory=dict)

    def learn(self, answer: MetadataResponse) -> None:
        """Take over what a broker says; what is older than what is known already is passed over (KIP-320)."""
        if answer.brokers:
            self.addresses = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        for topic in answer.topics:
            if topic.name is None:
                continue
            self.problems.pop(topic.name, None)
            if topic.error_code:
                self.problems[topic.name] = ErrorCode(topic.error_code)
            else:
                self._learn_topic(topic.name, topic)

    def _learn_topic(self, name: str, topic: MetadataResponseTopic) -> None:
        self.partition_counts[name] = max((row.partition_index for row in topic.partitions), default=-1) + 1
        for row in topic.partitions:
            place = TopicPartition(name, row.partition_index)
            if row.leader_epoch < self._epochs.get(place, -1):
                continue
            self._epochs[place] = row.leader_epoch
            if row.leader_id in self.addresses:
                self.of[place] = row.leader_id
            else:
                self.of.pop(place, None)

    def available(self, topic: str) -> list[int]:
        """The partitions that have a leader; all, where none has."""
        count = self.partition_counts.get(topic, 0)
        return [number for number in range(count) if (topic, number) in self.of] or list(range(count))


def metadata_request(topics: Iterable[str], *, may_create: bool) -> MetadataRequest:
    """What is asked; `may_create`: a broker with `auto.create.topics.enable` makes a topic that isn't there."""
    rows = [MetadataRequestTopic(name=topic) for topic in sorted(topics)]
    return MetadataRequest(topics=rows, allow_auto_topic_creation=may_create)
