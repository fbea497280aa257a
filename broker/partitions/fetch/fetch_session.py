"""Incremental fetch sessions (KIP-227): the broker remembers the partitions of a client, which need not repeat them.

A session has an id, and an epoch that counts its requests. `fetch_session_cache` has all sessions of a broker.

A session knows which of its partitions have changed: it watches them between requests. A fetch visits only those and
the partitions that the request names. A partition is left alone when its reader knows all its offsets and has nothing
to read.

Guards: a response leaves out only what its reader is known to have. A reader uses nothing else of a response with an
error, a diverging epoch or another replica to read from. A follower has a log start when it reports that log start. It
has a high watermark that it was sent when it has more records in the same leader epoch, or does not name the partition
again.

Pure: time is passed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import PartitionData
from lowtide.protocol.types import UNKNOWN_OFFSET, ZERO_TOPIC_ID, BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicId
from lowtide.replication.follower_state import UNKNOWN_BROKER_EPOCH, FetchTimes
from lowtide.replication.partition import PartitionChange

if TYPE_CHECKING:
    from collections import OrderedDict

    from lowtide.replication.follower_state import FollowerState
    from lowtide.replication.partition import Partition
    from lowtide.replication.topic_traffic import Traffic

CONSUMER: Final[BrokerId] = -1
"""The replica id of a consumer."""

FINAL_EPOCH, INITIAL_EPOCH, _MAXIMUM_EPOCH = -1, 0, 2**31 - 1

TargetKey = tuple[str | TopicId, int]


class WaitingFetch(Protocol):
    """A fetch of a session that waits for changes."""

    def look(self) -> None:
        """Tests whether the fetch can be answered, after a partition changed."""

    def wake(self) -> None:
        """Answers the fetch now."""


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
    session: FetchSession | None = None
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
            len(answer.records or b"") > 0
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

    def ask(
        self,
        current_leader_epoch: LeaderEpoch,
        fetch_offset: Offset,
        last_fetched_epoch: LeaderEpoch,
        log_start_offset: Offset,
        partition_max_bytes: int,
    ) -> None:
        """Takes over the values of a request of the session.

        A follower that names the partition without more records in the same leader epoch may not have used the last
        response, or has lost what it used: it truncated its log, or follows a new leader. It is sent everything again.
        """
        is_continued = fetch_offset > self.fetch_offset and current_leader_epoch == self.current_leader_epoch
        if not is_continued and self.is_followed:
            self.sent_high_watermark = self.sent_log_start_offset = -1
        self.current_leader_epoch, self.fetch_offset, self.last_fetched_epoch = (
            current_leader_epoch,
            fetch_offset,
            last_fetched_epoch,
        )
        self.log_start_offset, self.partition_max_bytes = log_start_offset, partition_max_bytes

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


_WAKES_CONSUMERS: Final = frozenset({PartitionChange.HIGH_WATERMARK, PartitionChange.ROLE})
_WAKES_FOLLOWERS: Final = frozenset({PartitionChange.LOG_END, PartitionChange.LOG_START, PartitionChange.ROLE})
"""Not the high watermark: that causes half as many fetches again (KAFKA-9731)."""


class FetchSession:
    """The partitions of one session, and the `changed` ones, which the next fetch visits in this order.

    A partition that had records goes to the end. `waiting` is the parked fetch of this session.
    """

    __slots__ = (
        "_wakes",
        "broker_epoch",
        "changed",
        "epoch",
        "last_used_ms",
        "replica_id",
        "session_id",
        "targets",
        "times",
        "uses_topic_ids",
        "waiting",
    )

    def __init__(
        self,
        session_id: int,
        targets: dict[TargetKey, FetchTarget],
        now_ms: int,
        *,
        uses_topic_ids: bool,
        replica_id: BrokerId = CONSUMER,
        broker_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH,
    ) -> None:
        self.session_id, self.epoch = session_id, 1
        self.targets = targets
        self.changed: dict[FetchTarget, None] = dict.fromkeys(targets.values())
        self.uses_topic_ids = uses_topic_ids
        self.last_used_ms = now_ms
        self.replica_id = replica_id
        self.broker_epoch = broker_epoch
        self.times = FetchTimes()
        self.waiting: WaitingFetch | None = None
        self._wakes = _WAKES_CONSUMERS if replica_id < 0 else _WAKES_FOLLOWERS
        for target in targets.values():
            target.session, target.is_followed = self, replica_id >= 0

    def on_changed(self, target: FetchTarget, change: PartitionChange) -> None:
        """Visits this partition with the waiting fetch, or the next one."""
        target.at_end = False  # Also if a read that is not answered yet found the end.
        if target not in self.changed:
            self.changed[target] = None
            if target.follower is not None:
                target.follower.note_idle_until_now()
        if self.waiting is not None and change in self._wakes:
            self.waiting.look()

    def on_answered(self, target: FetchTarget, answer: PartitionData) -> None:
        """Leaves the partition alone until it changes, if this response has all there is. Called after `tell`."""
        if len(answer.records or b"") > 0:
            if self.changed.pop(target, self) is None:
                self.changed[target] = None
        elif (
            target.at_end
            and target.watched is not None
            and (target.follower is not None or self.replica_id < 0)
            and not target.has_news(answer)
        ):
            self.changed.pop(target, None)

    def leave_idle(self) -> None:
        """Visits only partitions with more records, or that changed since the read."""
        self.changed = {target: None for target in self.changed if not target.at_end and target.watched is not None}

    def visit_all(self) -> list[FetchTarget]:
        """Visits every partition, because earlier results are no longer reliable. Returns them."""
        self.changed = dict.fromkeys(self.targets.values())
        return list(self.changed)

    def advance(self, now_ms: int, among: OrderedDict[int, FetchSession]) -> None:
        """Continues the session with a request. It becomes the most recently used one of `among`."""
        self.epoch = 1 if self.epoch == _MAXIMUM_EPOCH else self.epoch + 1
        if self.waiting is not None:
            self.waiting.wake()  # The session now watches for the new request.
        self.last_used_ms = now_ms
        among.move_to_end(self.session_id)

    @property
    def followed_count(self) -> int:
        """The number of partitions with a known position of the follower."""
        return sum(target.follower is not None for target in self.targets.values())

    def add(self, key: TargetKey, target: FetchTarget) -> None:
        """Adds a partition."""
        self.targets[key] = target
        target.session, target.is_followed = self, self.replica_id >= 0
        self.changed[target] = None

    def remove(self, key: TargetKey) -> None:
        """Removes a partition, if the session has it."""
        target = self.targets.pop(key, None)
        if target is not None:
            self.changed.pop(target, None)
            target.unwatch()
            target.session = None

    def close(self) -> None:
        """Ends the session."""
        if self.waiting is not None:
            self.waiting.wake()
        for target in self.targets.values():
            target.unwatch()
            target.session = None
        self.changed.clear()
