"""What has gone in and out of topics on this broker, as plain numbers that only rise.

All partitions of a topic share one `TopicTraffic`, so a request adds to it without a look-up. `TrafficTable` keeps those of topics that
exist, so their number is bounded; what topics counted that are gone since stays in the sum over all.

Words are those of Kafka's `BrokerTopicMetrics`.
"""

from __future__ import annotations

from collections import Counter


class TopicTraffic:
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

    def add(self, other: TopicTraffic) -> None:
        """Count what another one has counted."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class TrafficTable:
    """The traffic of the topics with partitions here."""

    def __init__(self) -> None:
        self.by_topic: dict[str, TopicTraffic] = {}
        self.errors: Counter[tuple[str, int]] = Counter()
        """Partitions of requests that were answered with an error, by API and error code."""
        self.unnamed = TopicTraffic()
        """That of topics that are gone, and of requests that name none that exists."""

    def of(self, topic: str) -> TopicTraffic:
        """That of one topic, from now on."""
        return self.by_topic.setdefault(topic, TopicTraffic())

    def forget(self, topic: str) -> None:
        """The topic is gone: only the sum keeps its counts."""
        traffic = self.by_topic.pop(topic, None)
        if traffic is not None:
            self.unnamed.add(traffic)

    def total(self) -> TopicTraffic:
        """The sum over all topics, those that are gone included."""
        total = TopicTraffic()
        for traffic in (self.unnamed, *self.by_topic.values()):
            total.add(traffic)
        return total
