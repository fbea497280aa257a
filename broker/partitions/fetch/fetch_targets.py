"""What a fetch asks for: its partitions, with what the client knows of each, its limits, and what one pass has read.

Guards: a response leaves out only what its reader is known to have. A reader uses nothing else of a response with an
error, a diverging epoch or another replica to read from. A follower has a log start when it reports that log start. It
has a high watermark that it was sent when it has more records in the same leader epoch, or does not name the partition
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import PartitionData
from lowtide.protocol.types import UNKNOWN_BROKER_EPOCH, UNKNOWN_OFFSET, ZERO_TOPIC_ID, TopicId
from lowtide.replication.leadership import FetchTimes
from lowtide.replication.partition import PartitionChange

if TYPE_CHECKING:
    from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
    from lowtide.protocol.types import BrokerEpoch, BrokerId, LeaderEpoch, Offset
    from lowtide.replication.leadership import FollowerState
    from lowtide.replication.partition import Partition
    from lowtide.replication.topic_traffic import Traffic

CONSUMER: Final[BrokerId] = -1
"""The replica id of a consumer."""

READ_COMMITTED: Final = 1
"""The isolation level that leaves out open and aborted transactions."""

NO_RECORDS: Final = b""
"""Compared by identity."""

READ_AT_ONCE_BYTES: Final = 16 * 1024
"""Records up to this size are read when the response is made; more is read when the socket has room."""

TargetKey = tuple[str | TopicId, int]


class WatchingSession(Protocol):
    """The session of a target."""

    session_id: int
    times: FetchTimes

    def on_changed(self, target: FetchTarget, change: PartitionChange) -> None:
        """Visits this partition with the waiting fetch, or the next one."""


class FetchTarget(msgspec.Struct, kw_only=True, eq=False):
    """One partition that a client fetches, and what the client knows of it: -1 for an offset that it must be sent.

    `log_start_offset` is a follower's own one. In a session the target watches its partition. `at_end` says that the
    last read found nothing more to read, whatever its limits.
    """

    topic: str
    topic_id: TopicId
    partition: int
    fetch_offset: Offset
    partition_max_bytes: int
    current_leader_epoch: LeaderEpoch
    last_fetched_epoch: LeaderEpoch
    sent_high_watermark: Offset = -1
    sent_log_start_offset: Offset = -1
    log_start_offset: Offset = UNKNOWN_OFFSET
    session: WatchingSession | None = None
    is_followed: bool = False
    """Whether the session is a follower's."""
    watched: Partition | None = None
    follower: FollowerState | None = None
    at_end: bool = False
    read_bytes: int = 0
    traffic: Traffic | None = None
    """Where the records of the last read are counted when they are sent."""

    @property
    def key(self) -> TargetKey:
        """The key of this target in its session."""
        return (self.topic if self.topic_id == ZERO_TOPIC_ID else self.topic_id, self.partition)

    def has_news(self, answer: PartitionData) -> bool:
        """Returns whether an incremental response must list this partition."""
        return (
            answer.records is not NO_RECORDS
            or answer.error_code != ErrorCode.NONE
            or answer.high_watermark != self.sent_high_watermark
            or answer.log_start_offset != self.sent_log_start_offset
            or answer.diverging_epoch is not None
            or answer.preferred_read_replica >= 0
        )

    def watch(self, partition: Partition) -> None:
        """Watches the partition for changes."""
        if self.watched is not partition:
            self.unwatch()
            self.watched = partition
            partition.watchers[self] = None

    def unwatch(self) -> None:
        """Stops watching. A follower's state continues without the session."""
        if self.watched is not None:
            self.watched.watchers.pop(self, None)
            self.watched = None
        follower, self.follower = self.follower, None
        if follower is not None and self.session is not None and follower.session is self.session.times:
            follower.leave_session()

    def on_partition_changed(self, change: PartitionChange) -> None:
        """See `PartitionWatcher`."""
        if self.session is not None:
            self.session.on_changed(self, change)

    def ask(self, row: FetchPartition) -> None:
        """Takes over the values of a request of the session.

        A follower that names the partition without more records in the same leader epoch may not have used the last
        response, or has lost what it used: it truncated its log, or follows a new leader. It is sent everything again.
        """
        epoch, offset = row.current_leader_epoch, row.fetch_offset
        is_continued = offset > self.fetch_offset and epoch == self.current_leader_epoch
        if not is_continued and self.is_followed:
            self.sent_high_watermark = self.sent_log_start_offset = -1
        self.current_leader_epoch, self.fetch_offset, self.last_fetched_epoch = epoch, offset, row.last_fetched_epoch
        self.log_start_offset, self.partition_max_bytes = row.log_start_offset, row.partition_max_bytes

    def tell(self, answer: PartitionData) -> None:
        """Notes what the client knows after this response.

        Offsets that it does not use, or has not reported as a follower, are sent again.
        """
        if (
            answer.error_code != ErrorCode.NONE
            or answer.diverging_epoch is not None
            or answer.preferred_read_replica >= 0
        ):
            self.sent_high_watermark = self.sent_log_start_offset = -1
            return
        log_start = answer.log_start_offset
        self.sent_high_watermark = answer.high_watermark
        self.sent_log_start_offset = min(log_start, self.log_start_offset) if self.is_followed else log_start


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


def requested_targets(request: FetchRequest) -> dict[TargetKey, FetchTarget]:
    """Returns the partitions of a request, in its order. If one is listed twice, the last entry wins, as in Kafka."""
    targets: dict[TargetKey, FetchTarget] = {}
    for topic in request.topics:
        of = topic.topic if topic.topic_id == ZERO_TOPIC_ID else topic.topic_id
        targets.update({(of, row.partition): target_of(topic, row) for row in topic.partitions})
    return targets


def target_of(topic: FetchTopic, row: FetchPartition) -> FetchTarget:
    """Returns a partition that a request names."""
    return FetchTarget(
        topic=topic.topic,
        topic_id=topic.topic_id,
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


def read_records(answers: list[PartitionData]) -> None:
    """Reads records that are in the page cache now. Others are read when they are sent."""
    for answer in answers:
        part: Any = answer.records
        if part is NO_RECORDS:
            continue
        content = bytearray(part.size)
        try:
            if part.file.preadv([content], part.position, nowait=True) != part.size:
                return
        except OSError:  # BlockingIOError is one.
            return
        answer.records = content
