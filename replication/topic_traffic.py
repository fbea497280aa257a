"""Traffic counters of partitions on this broker; they only rise.

Each partition has its own `Traffic`, so a request needs no look-up; a scrape of metrics adds up the partitions of a
topic. `TrafficTable` is bounded by the existing topics; the counts of deleted topics remain in the total.

The names are those of Kafka's `BrokerTopicMetrics`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lowtide.protocol.types import TopicPartition

_PARTITIONS_A_STEP: Final = 500
"""Partitions added up between two looks at the clock: a third of a millisecond."""


class Traffic:
    """Counts since the broker started, by partition: a request for three partitions of a topic adds three."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetch_requests",
        "failed_produce_requests",
        "fetch_requests",
        "messages_in",
        "produce_requests",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        """Records appended as leader; current after `Partition.count_records`."""
        self.bytes_in = 0
        self.bytes_out = 0
        """Sent to consumers."""
        self.produce_requests = 0
        self.fetch_requests = 0
        """Reads of consumers and followers; a fetch that waits reads again."""
        self.failed_produce_requests = 0
        """Refused for a reason other than a wrong broker, a size or a checksum."""
        self.failed_fetch_requests = 0
        """The log could not be read."""
        self.replication_bytes_in = 0
        """Appended as follower."""
        self.replication_bytes_out = 0
        """Sent to followers."""

    def add(self, other: Traffic) -> None:
        self.messages_in += other.messages_in
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.produce_requests += other.produce_requests
        self.fetch_requests += other.fetch_requests
        self.failed_produce_requests += other.failed_produce_requests
        self.failed_fetch_requests += other.failed_fetch_requests
        self.replication_bytes_in += other.replication_bytes_in
        self.replication_bytes_out += other.replication_bytes_out


class TrafficTable:
    """The traffic of the topics with partitions on this broker."""

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[int, Traffic]] = {}
        self.errors: Counter[tuple[str, int]] = Counter()
        """Partitions of requests that were answered with an error, by API and error code."""
        self.unnamed = Traffic()
        """Traffic of deleted topics, and of requests for topics that don't exist."""

    def of(self, key: TopicPartition) -> Traffic:
        """Returns the traffic of a partition, creating it if needed."""
        return self._by_topic.setdefault(key.topic, {}).setdefault(key.partition, Traffic())

    def forget(self, topic: str) -> None:
        """Moves the counts of a deleted topic to the total."""
        for traffic in self._by_topic.pop(topic, {}).values():
            self.unnamed.add(traffic)

    def of_topic(self, topic: str) -> Traffic:
        """Returns the sum of a topic's partitions."""
        total = Traffic()
        for traffic in self._by_topic.get(topic, {}).values():
            total.add(traffic)
        return total

    def by_topic(self) -> Iterator[tuple[str, Traffic] | None]:
        """Yields the sum of each topic in order of name, and None between the steps of a long calculation."""
        for topic in sorted(self._by_topic):
            total = Traffic()
            for count, traffic in enumerate(list(self._by_topic.get(topic, {}).values()), 1):
                total.add(traffic)
                if count % _PARTITIONS_A_STEP == 0:
                    yield None
            if topic in self._by_topic:
                yield topic, total
