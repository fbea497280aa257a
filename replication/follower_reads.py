"""Whether a follower may answer consumers: rule DR7.

A deleted record must not be read from a follower that doesn't know of the delete yet. So a follower serves only while
its own visible log start has reached the leader's, as an answer reported it in this leader epoch, to a fetch that it
sent under its present registration, not too long ago. A fetch session implies that what an answer doesn't name is
unchanged; so the time of a session's last answered fetch is kept once for all of its partitions (`AnsweredFetches`).

Asked at the moment of each answer. Time is passed in. Source: KIP-392 for reads from followers; the rest is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.protocol.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, BrokerEpoch, LeaderEpoch, Offset

if TYPE_CHECKING:
    from lowtide.storage.log.offsets import LogOffsets

NEVER_MS: Final = -(1 << 62)


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
        """An answer has the leader's log start; its fetch was sent at `sent_ms`, in this leader epoch, under this broker epoch.

        While the partition stays in `session`, each answer in which it isn't named says the same again. A leader that tells no log start
        (-1, an old version) makes it unknown.
        """
        self.leader_epoch, self.broker_epoch = leader_epoch, broker_epoch
        self.leader_log_start_offset = leader_log_start_offset
        self.heard_ms, self.session = sent_ms, session

    def leave_session(self) -> None:
        """What the session receives from now on doesn't concern this partition."""
        if self.session is not None:
            self.heard_ms, self.session = max(self.heard_ms, self.session.sent_ms), None

    def may_serve(
        self, offsets: LogOffsets, leader_epoch: LeaderEpoch, broker_epoch: BrokerEpoch, now_ms: int, limit_ms: int
    ) -> bool:
        """Whether consumers may be answered now, in this leader epoch and under this registration.

        `limit_ms` is how old the last word of the leader may be. `offsets` are the log's.
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
