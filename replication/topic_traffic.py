"""What has gone in and out of partitions on this broker, as plain numbers that only rise.

Each partition has a `Traffic` of its own, so a request adds to it without a look-up; a scrape of metrics adds up those
of a topic.
`TrafficTable` keeps those of topics that exist, so their number is bounded; what topics counted that are gone since stays in the sum over
all.

Words are those of Kafka's `BrokerTopicMetrics`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lowtide.protocol.types import TopicPartition

_PARTITIONS_A_STEP: Final = 500
"""Added up between two looks at the clock: a third of a millisecond."""


class Traffic:
    """Counts since the broker started. Partitions are counted: a request of three partitions of a topic adds three."""

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
        """Records appended as leader; up to date after `Partition.count_records`."""
        self.bytes_in = 0
        self.bytes_out = 0
        """Sent to consumers."""
        self.produce_requests = 0
        self.fetch_requests = 0
        """Reads of consumers and of followers; a fetch that waits reads again."""
        self.failed_produce_requests = 0
        """Those refused for another reason than a wrong broker, a size or a checksum."""
        self.failed_fetch_requests = 0
        """Those whose log could not be read."""
        self.replication_bytes_in = 0
        """Appended as follower."""
        self.replication_bytes_out = 0
        """Sent to followers."""

    def add(self, other: Traffic) -> None:
        """Count what another one has counted."""
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
    """The traffic of the topics with partitions here."""

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[int, Traffic]] = {}
        self.errors: Counter[tuple[str, int]] = Counter()
        """Partitions of requests that were answered with an error, by API and error code."""
        self.unnamed = Traffic()
        """That of topics that are gone, and of requests that name none that exists."""

    def of(self, key: TopicPartition) -> Traffic:
        """That of one partition, from now on."""
        return self._by_topic.setdefault(key.topic, {}).setdefault(key.partition, Traffic())

    def forget(self, topic: str) -> None:
        """The topic is gone: only the sum keeps its counts."""
        for traffic in self._by_topic.pop(topic, {}).values():
            self.unnamed.add(traffic)

    def of_topic(self, topic: str) -> Traffic:
        """The sum over its partitions, as it is now."""
        total = Traffic()
        for traffic in self._by_topic.get(topic, {}).values():
            total.add(traffic)
        return total

    def by_topic(self) -> Iterator[tuple[str, Traffic] | None]:
        """The sum of each topic, in the order of their names; None after each of many steps on the way."""
        for topic in sorted(self._by_topic):
            total = Traffic()
            for count, traffic in enumerate(list(self._by_topic.get(topic, {}).values()), 1):
                total.add(traffic)
                if count % _PARTITIONS_A_STEP == 0:
                    yield None
            if topic in self._by_topic:
                yield topic, total
