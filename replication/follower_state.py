"""What the leader knows of one follower of a partition: its position, its log start, when it was last caught up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.protocol.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, BrokerEpoch, BrokerId, LeaderEpoch, Offset

if TYPE_CHECKING:
    from lowtide.metadata.broker_image import BrokerImage
    from lowtide.metadata.store import Revision

UNKNOWN_BROKER_EPOCH: Final[BrokerEpoch] = -1

NEVER_MS: Final = -(1 << 62)


class FetchTimes(msgspec.Struct):
    """When a follower's fetch session was last used, on the monotonic clock.

    A fetch in a session covers all its partitions, also those that it doesn't name.
    """

    last_ms: int = NEVER_MS


class FollowerFetch(msgspec.Struct):
    """One partition of a follower's fetch.

    `fetch_offset` is its log end. The log start is -1 if the version doesn't report it.
    `times` belongs to its session, None without one.
    """

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    fetch_offset: Offset
    log_start_offset: Offset = UNKNOWN_OFFSET
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    last_fetched_epoch: LeaderEpoch = NO_LEADER_EPOCH
    times: FetchTimes | None = None


class FollowerState(msgspec.Struct):
    """One follower, in one leader epoch. Offsets and the broker epoch are -1 while unknown."""

    broker_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH
    log_end_offset: Offset = UNKNOWN_OFFSET
    log_start_offset: Offset = UNKNOWN_OFFSET
    matches: bool = False
    """Whether each of its records is known to be the leader's record at that offset."""
    sent_log_start: Offset = UNKNOWN_OFFSET
    """The log start that it was last sent."""
    leader_end_offset: Offset = UNKNOWN_OFFSET
    """The leader's log end at the last fetch."""
    goal_offset: Offset = UNKNOWN_OFFSET
    """The leader's log end at an earlier fetch, at `goal_ms`; the follower has not reached it since."""
    goal_ms: int = NEVER_MS
    noted_fetch_ms: int = NEVER_MS
    caught_up_ms: int = NEVER_MS
    unseen_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH
    """The newest registration that a fetch had and the image didn't show, at `unseen_ms`."""
    unseen_ms: int = NEVER_MS
    session: FetchTimes | None = None

    @property
    def last_fetch_ms(self) -> int:
        """When it last fetched, or when its session was last used."""
        session = self.session
        return self.noted_fetch_ms if session is None else max(self.noted_fetch_ms, session.last_ms)

    def last_heard_ms(self, broker: BrokerImage | None) -> int:
        """Returns when it last fetched, including fetches under a registration that our image shows only now.

        Nothing else is known of such a fetch, but its answer may allow the follower to serve consumers (rule DR7).
        """
        before_ms = self.last_fetch_ms
        return before_ms if broker is None or self.unseen_epoch < broker.epoch else max(before_ms, self.unseen_ms)

    def has_fetched_within(self, limit_ms: int, now_ms: int) -> bool:
        """Returns whether it fetched within the last `limit_ms`."""
        return now_ms - self.last_fetch_ms <= limit_ms

    def is_caught_up(self, leader_end_offset: Offset, limit_ms: int, now_ms: int) -> bool:
        """Returns whether it has everything, or had at some moment within the last `limit_ms` (KIP-16)."""
        return self.log_end_offset == leader_end_offset or now_ms - self.caught_up_ms <= limit_ms

    def note_fetch(self, fetch: FollowerFetch, *, leader_end_offset: Offset, matches: bool, now_ms: int) -> None:
        """Records an accepted fetch.

        A follower was last caught up when the leader's log ended where the follower's ends now.
        """
        if fetch.broker_epoch != self.broker_epoch:
            if self.broker_epoch != UNKNOWN_BROKER_EPOCH:
                self.forget()
            self.broker_epoch = fetch.broker_epoch
        before_ms = self.noted_fetch_ms if self.session is None else self.last_fetch_ms
        end = fetch.fetch_offset
        if end >= leader_end_offset:
            self.caught_up_ms = now_ms
        elif UNKNOWN_OFFSET < self.leader_end_offset <= end:
            # Nothing precedes the first fetch: a follower that is far behind must not hold up the high watermark.
            self.caught_up_ms = max(self.caught_up_ms, before_ms)
        elif UNKNOWN_OFFSET < self.goal_offset <= end:  # It needed several fetches, as when many producers write.
            self.caught_up_ms = max(self.caught_up_ms, self.goal_ms)
        if end >= self.goal_offset:
            self.goal_offset, self.goal_ms = leader_end_offset, now_ms
        self.leader_end_offset, self.noted_fetch_ms = max(leader_end_offset, self.leader_end_offset), now_ms
        self.log_end_offset, self.log_start_offset, self.matches = end, fetch.log_start_offset, matches
        if fetch.times is not None and fetch.times is not self.session:
            # A follower that starts a session may have lost what it was sent before.
            self.sent_log_start = min(self.sent_log_start, fetch.log_start_offset)
        self.session = fetch.times

    def note_unseen(self, broker_epoch: BrokerEpoch, limit_ms: int, now_ms: int) -> None:
        """Records a fetch under a registration that the image doesn't show. Nothing else is kept: it may be forged."""
        if now_ms - self.unseen_ms > limit_ms:
            self.unseen_epoch = UNKNOWN_BROKER_EPOCH
        self.unseen_epoch, self.unseen_ms = max(broker_epoch, self.unseen_epoch), now_ms

    def may_have_registered(self, revision: Revision, limit_ms: int, now_ms: int) -> bool:
        """Returns whether it may have a registration that an image of this revision doesn't show."""
        return self.unseen_epoch > revision and now_ms - self.unseen_ms <= limit_ms

    def note_idle_until_now(self) -> None:
        """Records that this follower was caught up at its session's last fetch, before the log grows."""
        if self.session is not None:
            self.caught_up_ms = max(self.caught_up_ms, self.session.last_ms)

    def leave_session(self) -> None:
        """Detaches it from its fetch session."""
        self.noted_fetch_ms, self.session = self.last_fetch_ms, None

    def forget(self) -> None:
        """Drops what it reported under a registration that has ended, except the time of its last fetch."""
        self.leave_session()
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.log_end_offset = self.log_start_offset = self.sent_log_start = self.leader_end_offset = (
            self.goal_offset
        ) = UNKNOWN_OFFSET
        self.matches = False
        self.caught_up_ms = self.goal_ms = NEVER_MS
