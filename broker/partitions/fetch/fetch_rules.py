"""What one fetch asks for, its limits, and what one pass over its partitions has read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from lowtide.broker.partitions.fetch.fetch_session import CONSUMER, FetchSession, FetchTarget
from lowtide.broker.partitions.fetch.fetch_session_slots import NO_SESSION
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import ZERO_TOPIC_ID, BrokerEpoch, BrokerId
from lowtide.replication.follower_state import UNKNOWN_BROKER_EPOCH

if TYPE_CHECKING:
    from lowtide.broker.partitions.fetch.fetch_session import TargetKey
    from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData
    from lowtide.replication.topic_traffic import Traffic


class FetchRules(msgspec.Struct, kw_only=True):
    """The limits of one fetch, and its reader."""

    api_version: int
    read_committed: bool
    is_follower: bool
    minimum_bytes: int
    maximum_bytes: int
    maximum_wait_ms: int
    replica_id: BrokerId = CONSUMER
    broker_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH
    rack: str = ""
    """The rack in which a consumer prefers to read, if the broker selects replicas."""


class FetchOutcome(msgspec.Struct):
    """What one pass over the partitions read. `noted` counts the partitions whose follower's position was noted.

    `unsent` are bytes that count as sent only with the response: the fetch may wait and read again.
    """

    answers: list[tuple[FetchTarget, PartitionData]]
    read_bytes: int
    ends_wait: bool
    waitable: int
    noted: int = 0
    unsent: dict[Traffic, int] | None = None

    def count_sent(self, rules: FetchRules) -> None:
        """Counts the `unsent` bytes: the response is sent."""
        for traffic, size in (self.unsent or {}).items():
            if rules.is_follower:
                traffic.replication_bytes_out += size
            else:
                traffic.bytes_out += size


class FetchPlan(msgspec.Struct, kw_only=True):
    """What one request fetches: `targets` in order. With `incremental`, only partitions with news are answered."""

    error_code: int = ErrorCode.NONE
    session_id: int = NO_SESSION
    targets: Iterable[FetchTarget] = ()
    session: FetchSession | None = None
    incremental: bool = False

    @property
    def has_idle(self) -> bool:
        """Whether some partitions of the session have not changed and need no visit."""
        return self.session is not None and len(self.session.targets) > len(self.session.changed)


def requested_targets(request: FetchRequest) -> dict[TargetKey, FetchTarget]:
    """Returns the partitions of a request, in its order. If one is listed twice, the last entry wins, as in Kafka."""
    targets: dict[TargetKey, FetchTarget] = {}
    for topic in request.topics:
        collect(topic, topic.partitions, targets)
    return targets


def collect(topic: FetchTopic, rows: Iterable[FetchPartition], targets: dict[TargetKey, FetchTarget]) -> None:
    """Adds rows of a topic to `targets`."""
    name, topic_id = topic.topic, topic.topic_id
    of = name if topic_id == ZERO_TOPIC_ID else topic_id
    for row in rows:
        targets[(of, row.partition)] = FetchTarget(
            topic=name,
            topic_id=topic_id,
            partition=row.partition,
            fetch_offset=row.fetch_offset,
            partition_max_bytes=row.partition_max_bytes,
            current_leader_epoch=row.current_leader_epoch,
            last_fetched_epoch=row.last_fetched_epoch,
            log_start_offset=row.log_start_offset,
        )


def forgotten(topics: Iterable[ForgottenTopic]) -> Iterator[TargetKey]:
    """Yields the partitions that a request removes from its session."""
    for topic in topics:
        name = topic.topic if topic.topic_id == ZERO_TOPIC_ID else topic.topic_id
        yield from [(name, partition) for partition in topic.partitions]
