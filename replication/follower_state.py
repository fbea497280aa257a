"""What a leader knows of one follower: where its log ends and starts, under which registration, and how lately it fetched.

A fetch session implies a fetch of each of its partitions, also of those that it doesn't name. So the time of a session's last request is
kept once for all of them (`FetchTimes`), and what is idle is not visited.

Guards: what a follower reported counts only for the registration under which it did; a new one begins with nothing known.
Source: Kafka's `Replica`; KIP-903 for broker epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.protocol.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, BrokerEpoch, BrokerId, LeaderEpoch, Offset

if TYPE_CHECKING:
    from lowtide.metadata.store import Revision

UNKNOWN_BROKER_EPOCH: Final[BrokerEpoch] = -1
NEVER_MS: Final = -(1 << 62)


class FetchTimes(msgspec.Struct):
    """When a follower's fetch session was used last, on the monotonic clock."""

    last_ms: int = NEVER_MS


class FollowerFetch(msgspec.Struct):
    """One partition of a follower's fetch. `fetch_offset` is its log end; the log start is -1 where the version doesn't tell it.

    `times` are those of its session, None without one.
    """

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    fetch_offset: Offset
    log_start_offset: Offset = UNKNOWN_OFFSET
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    last_fetched_epoch: LeaderEpoch = NO_LEADER_EPOCH
    times: FetchTimes | None = None


class FollowerState(msgspec.Struct):
    """One follower, in one leader epoch. Offsets and the broker epoch are -1 while unknown.

    `matches`: no record of it can be another one than the leader's of that offset. `told_log_start` is the log start that it was sent last.
    `leader_end_offset` is where the leader's log ended at the fetch that was noted last. `unseen_epoch` is the newest registration that the
    leader's image didn't show when a fetch had it; the last such fetch came at `unseen_ms`.
    """

    broker_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH
    log_end_offset: Offset = UNKNOWN_OFFSET
    log_start_offset: Offset = UNKNOWN_OFFSET
    matches: bool = False
    told_log_start: Offset = UNKNOWN_OFFSET
    leader_end_offset: Offset = UNKNOWN_OFFSET
    noted_fetch_ms: int = NEVER_MS
    caught_up_ms: int = NEVER_MS
    unseen_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH
    unseen_ms: int = NEVER_MS
    session: FetchTimes | None = None

    @property
    def last_fetch_ms(self) -> int:
        """When it fetched last, or counted as if it had."""
        session = self.session
        return self.noted_fetch_ms if session is None else max(self.noted_fetch_ms, session.last_ms)

    def has_fetched_within(self, limit_ms: int, now_ms: int) -> bool:
        """Whether it fetched lately."""
        return now_ms - self.last_fetch_ms <= limit_ms

    def is_caught_up(self, leader_end_offset: Offset, limit_ms: int, now_ms: int) -> bool:
        """Whether it has all that the leader has, or had it at some moment within the last `limit_ms`. Source: KIP-16."""
        return self.log_end_offset == leader_end_offset or now_ms - self.caught_up_ms <= limit_ms

    def note_fetch(self, fetch: FollowerFetch, *, leader_end_offset: Offset, matches: bool, now_ms: int) -> None:
        """Take over what an accepted fetch says."""
        if fetch.broker_epoch != self.broker_epoch:
            self.forget()
            self.broker_epoch = fetch.broker_epoch
        before_ms = self.noted_fetch_ms if self.session is None else self.last_fetch_ms
        if fetch.fetch_offset >= leader_end_offset:
            self.caught_up_ms = now_ms
        elif fetch.fetch_offset >= self.leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, before_ms)
        self.leader_end_offset = max(leader_end_offset, self.leader_end_offset)
        self.noted_fetch_ms = now_ms
        self.log_end_offset, self.log_start_offset = fetch.fetch_offset, fetch.log_start_offset
        self.matches = matches
        if fetch.times is not None and fetch.times is not self.session:
            # Who begins a session has perhaps lost what it was sent before.
            self.told_log_start = min(self.told_log_start, fetch.log_start_offset)
        self.session = fetch.times

    def note_unseen(self, broker_epoch: BrokerEpoch, limit_ms: int, now_ms: int) -> None:
        """It fetches under a registration that the image doesn't show: that is all that is kept of it, for anybody can invent one."""
        if now_ms - self.unseen_ms > limit_ms:
            self.unseen_epoch = UNKNOWN_BROKER_EPOCH
        self.unseen_epoch, self.unseen_ms = max(broker_epoch, self.unseen_epoch), now_ms

    def may_have_registered(self, revision: Revision, limit_ms: int, now_ms: int) -> bool:
        """Whether it may have a registration that an image of this revision doesn't show."""
        return self.unseen_epoch > revision and now_ms - self.unseen_ms <= limit_ms

    def note_idle_until_now(self) -> None:
        """The leader's log moves on; up to its session's last fetch this follower had all of it."""
        if self.session is not None:
            self.caught_up_ms = max(self.caught_up_ms, self.session.last_ms)

    def leave_session(self) -> None:
        """Its session doesn't speak for it any more."""
        self.noted_fetch_ms, self.session = self.last_fetch_ms, None

    def forget(self) -> None:
        """Its registration is over: nothing of what it reported counts. When it fetched last still does."""
        self.leave_session()
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.log_end_offset = self.log_start_offset = UNKNOWN_OFFSET
        self.told_log_start = self.leader_end_offset = UNKNOWN_OFFSET
        self.matches = False
        self.caught_up_ms = NEVER_MS
