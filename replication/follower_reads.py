"""Decides whether a follower may answer consumers (rule DR7), and which replica a consumer should read from (KIP-392).

A deleted record must not be read from a follower that doesn't know of the delete yet. So a follower serves only while
its own visible log start has reached the leader's. The leader must have reported it recently, in this leader epoch, in
an answer to a fetch sent under the follower's present registration. In a fetch session a partition that an answer
doesn't name is unchanged, so the time of the session's last answered fetch is kept once for all its partitions
(`AnsweredFetches`).

Time is passed in. Sources: KIP-392; Kafka's `RackAwareReplicaSelector` and `ReplicaManager.findPreferredReadReplica`.
Rule DR7 is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.protocol.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, BrokerEpoch, LeaderEpoch, Offset
from lowtide.replication.leadership import NEVER_MS

if TYPE_CHECKING:
    from lowtide.metadata.image import MetadataImage
    from lowtide.protocol.types import BrokerId
    from lowtide.replication.leadership import Leadership
    from lowtide.storage.log.log import Log
    from lowtide.storage.log.offsets import LogOffsets

NO_REPLICA: Final[BrokerId] = -1


class AnsweredFetches(msgspec.Struct):
    """When the last answered fetch of a session was sent, on the monotonic clock."""

    sent_ms: int = NEVER_MS


class FollowerReads(msgspec.Struct):
    """What one follower has received from its leader."""

    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    broker_epoch: BrokerEpoch = -1
    leader_log_start_offset: Offset = UNKNOWN_OFFSET
    heard_ms: int = NEVER_MS
    session: AnsweredFetches | None = None

    def note_answer(
        self,
        *,
        leader_epoch: LeaderEpoch,
        broker_epoch: BrokerEpoch,
        leader_log_start_offset: Offset,
        sent_ms: int,
        session: AnsweredFetches | None = None,
    ) -> None:
        """Records the leader's log start from the answer to a fetch sent at `sent_ms`, in this leader and broker epoch.

        While the partition stays in `session`, each answer that doesn't name it repeats the same value. A leader that
        reports no log start (-1, an old version) makes it unknown.
        """
        self.leader_epoch, self.broker_epoch = leader_epoch, broker_epoch
        self.leader_log_start_offset = leader_log_start_offset
        self.heard_ms, self.session = sent_ms, session

    def leave_session(self) -> None:
        """Ignores what the session receives from now on."""
        if self.session is not None:
            self.heard_ms, self.session = max(self.heard_ms, self.session.sent_ms), None

    def may_serve(
        self, offsets: LogOffsets, leader_epoch: LeaderEpoch, broker_epoch: BrokerEpoch, now_ms: int, limit_ms: int
    ) -> bool:
        """Returns whether consumers may be answered now, in this leader epoch and under this registration.

        `limit_ms` is the longest acceptable age of the leader's last answer. `offsets` are the log's.
        """
        if self.leader_epoch != leader_epoch or self.broker_epoch != broker_epoch or self.leader_log_start_offset < 0:
            return False
        heard_ms = self.heard_ms if self.session is None else max(self.heard_ms, self.session.sent_ms)
        if now_ms - heard_ms > limit_ms:
            return False
        return (
            offsets.log_start_offset >= self.leader_log_start_offset
            and offsets.log_start_pending == offsets.log_start_offset
        )


def lacks_erasures(log: Log) -> bool:
    """Returns whether a log may lack an erasure that was acknowledged: an unclean election or an old disk lost it.

    A log that has the batch before the erasure's end, of the same leader epoch, has everything before it.
    """
    end_offset, leader_epoch = log.erasures.acknowledged
    return log.log_start_offset < end_offset and (
        log.log_end_offset < end_offset or log.leader_epochs.epoch_at(end_offset - 1) != leader_epoch
    )


def preferred_read_replica(leadership: Leadership, image: MetadataImage, rack: str, fetch_offset: Offset) -> BrokerId:
    """Returns the replica in that rack to read from, -1 for the leader.

    It is an in-sync replica that has the offset and has reported a log start that has reached ours; others would refuse
    the read (rule DR7). A leader in the same rack is preferred, then the replica with the highest log end.
    """
    own = image.brokers.get(leadership.broker_id)
    if own is not None and own.rack == rack:
        return NO_REPLICA
    log_start_offset = leadership.log.log_start_offset
    best, best_end = NO_REPLICA, -1
    for broker_id, follower in leadership.followers.items():
        broker = image.brokers.get(broker_id)
        if (
            broker is None
            or broker.rack != rack
            or broker_id not in leadership.state.isr
            or broker.epoch != follower.broker_epoch
        ):
            continue
        has_it = follower.log_end_offset >= fetch_offset and follower.log_start_offset >= log_start_offset
        if has_it and follower.log_end_offset > best_end:
            best, best_end = broker_id, follower.log_end_offset
    return best
