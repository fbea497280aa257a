"""The leader's state of a partition with several replicas: its followers, the ISR and pending changes of it, the floor.

It lives for one leader epoch; what followers reported to an earlier leadership is unknown here. A partition with a
single replica doesn't need it.

Guards: epoch, registration and range of a follower's fetch are checked before anything changes. What a follower
reported is valid only for the registration under which it fetched; a new registration starts with nothing known. This
module decides; the broker writes to the store, answers and wakes. `in_sync_replicas` decides who is in sync and how far
the high watermark may rise.

The low watermark is how far deletes have reached every replica that must have them (rule DR3): every live replica and
every member of the maximal ISR. A replica is live if its broker is registered and not about to stop, its log directory
works, and it has fetched from this leader within `replica.lag.time.max.ms`. Only log starts that were reported in a
fetch of this leader epoch and of the broker's present registration are valid. An unknown one is -1 and blocks
acknowledgement.

Sources: KIP-107, which waits for live brokers only and accepts any report; Kafka's `Replica`; KIP-903 for broker
epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import (
    NO_LEADER_EPOCH,
    UNKNOWN_BROKER_EPOCH,
    UNKNOWN_OFFSET,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicId,
)

if TYPE_CHECKING:
    from lowtide.metadata.broker_image import BrokerImage
    from lowtide.metadata.image import MetadataImage, PartitionImage
    from lowtide.metadata.store import Revision
    from lowtide.replication.eligible_leaders import IsrProposal
    from lowtide.replication.erasure_search import ErasureSearch
    from lowtide.storage.log.log import Log

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
        end = fetch.fetch_offset
        if end >= leader_end_offset:
            self.caught_up_ms = now_ms
        elif UNKNOWN_OFFSET < self.leader_end_offset <= end:
            # Nothing precedes the first fetch: a follower that is far behind must not hold up the high watermark.
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
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
        """Drops what the follower reported under its former registration, except the time of its last fetch."""
        self.leave_session()
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.log_end_offset = self.log_start_offset = self.sent_log_start = UNKNOWN_OFFSET
        self.leader_end_offset = self.goal_offset = UNKNOWN_OFFSET
        self.matches = False
        self.caught_up_ms = self.goal_ms = NEVER_MS


class Leadership:
    """The followers, the ISR and the floor of one partition in one leader epoch.

    `state` is the partition as the image shows it; `number` is its number within the topic.
    """

    __slots__ = (
        "broker_id",
        "epoch_start_offset",
        "erasure_search",
        "erasures_end",
        "floor",
        "followers",
        "lag_time_max_ms",
        "log",
        "maximal_isr",
        "number",
        "proposal",
        "refused_at",
        "state",
        "topic_id",
    )

    def __init__(  # noqa: PLR0913  a state, by keyword
        self,
        *,
        broker_id: BrokerId,
        topic_id: TopicId,
        number: int,
        log: Log,
        state: PartitionImage,
        image: MetadataImage,
        lag_time_max_ms: int,
        now_ms: int,
    ) -> None:
        """Starts a leadership at `now_ms` (monotonic).

        Every replica that the image shows unfenced counts as having fetched just now.
        """
        self.broker_id = broker_id
        self.topic_id = topic_id
        self.number = number
        self.log = log
        self.state = state
        self.lag_time_max_ms = lag_time_max_ms
        self.epoch_start_offset = log.log_end_offset
        self.floor = log.log_start_offset
        """The lowest log start with which a replica may join the ISR: ours at the election, raised by acknowledged
        deletes."""
        self.erasure_search: ErasureSearch | None = None
        """The search for an erasure, if the log was compacted; one at a time."""
        self.erasures_end: Offset = 0
        """The end of the last erasure after such a search: no replica joins the ISR before it has it."""
        self.proposal: IsrProposal | None = None
        self.refused_at: Revision = -1
        """The image revision of the last proposal that conflicted: nothing is decided on that image again."""
        self.maximal_isr: frozenset[BrokerId] = frozenset(state.isr)
        self.followers: dict[BrokerId, FollowerState] = {}
        for other in state.replicas:
            if other != broker_id:
                follower = self.followers[other] = FollowerState()
                if image.broker_epoch(other) is not None:
                    follower.noted_fetch_ms = now_ms
                if other in state.isr:
                    follower.caught_up_ms = now_ms

    @property
    def min_insync_replicas(self) -> int:
        """The topic's `min.insync.replicas`, or the number of replicas if that is lower."""
        return min(self.log.config.min_insync_replicas, len(self.state.replicas))

    def follow(self, state: PartitionImage) -> None:
        """Adopts a change of the partition within the leader epoch, which settles any pending proposal."""
        if state.modify_revision != self.state.modify_revision:
            self.proposal = None
        self.state = state
        for gone in [other for other in self.followers if other not in state.replicas]:
            del self.followers[gone]
        for other in state.replicas:
            if other != self.broker_id and other not in self.followers:
                self.followers[other] = FollowerState()
        self.count_isr()

    def follow_broker(self, broker_id: BrokerId, image: MetadataImage) -> bool:
        """Handles a broker that came, went or registered again: reports under an earlier registration are forgotten.

        Returns whether it has already fetched under the registration that is new here, so that its next fetch counts.
        """
        follower = self.followers.get(broker_id)
        present = image.broker_epoch(broker_id)
        if follower is None or present is None:
            return False
        if UNKNOWN_BROKER_EPOCH < follower.broker_epoch < present:
            follower.forget()
        return follower.unseen_epoch == present

    def count_isr(self) -> None:
        """Counts the members of the ISR and of the pending proposal."""
        proposed = self.proposal.isr if self.proposal is not None else ()
        self.maximal_isr = frozenset((*self.state.isr, *proposed))

    def check_fetch(self, fetch: FollowerFetch, image: MetadataImage) -> ErrorCode:
        """Returns whether a follower's fetch may be served. Its leader epoch, if given, is ours.

        Errors: UNKNOWN_LEADER_EPOCH, or NOT_LEADER_OR_FOLLOWER without an epoch, if the broker is not a replica;
        NOT_LEADER_OR_FOLLOWER for a registration that has ended or is missing. Source: Kafka's
        `Partition.followerReplicaOrThrow` and `Replica`.
        """
        follower = self.followers.get(fetch.broker_id)
        if follower is None:
            return not_a_replica(fetch)
        if fetch.leader_epoch == NO_LEADER_EPOCH and image.log_start_reporting:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        epoch, broker = fetch.broker_epoch, image.brokers.get(fetch.broker_id)
        if epoch < follower.broker_epoch or ((broker is None or broker.epoch != epoch) and epoch <= image.revision):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not -1 <= fetch.log_start_offset <= fetch.fetch_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        return ErrorCode.NONE

    def note_fetch(self, fetch: FollowerFetch, image: MetadataImage, now_ms: int) -> FollowerState | None:
        """Records a fetch that was checked, is in range and doesn't diverge.

        Returns None if the image doesn't show the registration, which may be invented. Deletes then wait for it (rule
        DR3), and nothing else changes.
        """
        follower = self.followers[fetch.broker_id]
        if fetch.broker_epoch > image.revision:
            follower.note_unseen(fetch.broker_epoch, self.lag_time_max_ms, now_ms)
            return None
        matches = fetch.log_start_offset >= self.log.log_start_offset or self.matches(fetch)
        follower.note_fetch(fetch, leader_end_offset=self.log.log_end_offset, matches=matches, now_ms=now_ms)
        return follower

    def matches(self, fetch: FollowerFetch) -> bool:
        """Returns whether the follower's whole log is known to match ours, given that the fetch didn't diverge.

        We have no epochs below our log start. A follower that ends exactly there and starts below may have its last
        records from a lost leadership, unless their epoch is that of our last deleted record, or a later one that we
        know.
        """
        start = self.log.log_start_offset
        if fetch.log_start_offset >= start or fetch.fetch_offset > start:
            return True
        entries = self.log.leader_epochs.entries()
        if not entries:
            return False
        oldest, since = entries[0]
        return since <= start and fetch.last_fetched_epoch >= oldest

    def low_watermark(self, image: MetadataImage, now_ms: int) -> Offset:
        """Returns the lowest log start of all replicas that must have a delete; -1 while one of them is unknown.

        Also -1 while other replicas are eligible as leaders: they need not have new deletes (rule DR3).
        """
        if self.state.elr:
            return UNKNOWN_OFFSET
        lowest = self.log.log_start_offset
        for broker_id, follower in self.followers.items():
            if broker_id in self.maximal_isr or self.is_live(broker_id, follower, image, now_ms):
                lowest = min(lowest, self.reported_log_start(broker_id, follower, image, now_ms))
        return lowest

    def is_live(self, broker_id: BrokerId, follower: FollowerState, image: MetadataImage, now_ms: int) -> bool:
        """Returns whether this replica may lead by now, or may believe that it still leads.

        A registration that our image doesn't show yet counts as live. So does a broker that is about to stop and hasn't
        fetched in this leader epoch: the change that took its leadership also removed it from the ISR, and until it
        sees that, it answers clients.
        """
        if follower.may_have_registered(image.revision, self.lag_time_max_ms, now_ms):
            return True
        if now_ms - follower.last_heard_ms(image.brokers.get(broker_id)) > self.lag_time_max_ms:
            return False
        if follower.log_start_offset == UNKNOWN_OFFSET:
            return image.replica_is_online(broker_id, self.topic_id, self.number)
        return image.may_be_in_sync(broker_id, self.topic_id, self.number)

    def reported_log_start(
        self, broker_id: BrokerId, follower: FollowerState, image: MetadataImage, now_ms: int
    ) -> Offset:
        """Returns the log start that this replica has reported under its present registration, else -1."""
        present = image.brokers.get(broker_id)
        if present is not None and follower.broker_epoch < present.epoch:
            return UNKNOWN_OFFSET
        if follower.unseen_epoch > image.revision and follower.may_have_registered(
            image.revision, self.lag_time_max_ms, now_ms
        ):
            return UNKNOWN_OFFSET
        return follower.log_start_offset

    def slow_at_ms(self, image: MetadataImage, now_ms: int) -> int | None:
        """Returns when the first live replica outside the maximal ISR will count as silent; None if none will.

        Replicas whose registration may not be known yet count too. No event reports that time, so operations that wait
        for the low watermark must check again then (rule DR4).
        """
        limit_ms, times = self.lag_time_max_ms, []
        for broker_id, follower in self.followers.items():
            if follower.may_have_registered(image.revision, limit_ms, now_ms):
                times.append(follower.unseen_ms)
            elif broker_id not in self.maximal_isr and self.is_live(broker_id, follower, image, now_ms):
                times.append(follower.last_heard_ms(image.brokers.get(broker_id)))
        return min(times) + limit_ms + 1 if times else None

    def note_acknowledged(self, offset: Offset) -> None:
        """Raises the floor to a delete that was acknowledged by more than the leader."""
        self.floor = max(self.floor, offset)


def not_a_replica(fetch: FollowerFetch) -> ErrorCode:
    """Returns the error for a broker that isn't a replica; with a leader epoch it may have newer metadata."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if fetch.leader_epoch == NO_LEADER_EPOCH else ErrorCode.UNKNOWN_LEADER_EPOCH


def may_be_registered(broker_id: BrokerId, broker_epoch: BrokerEpoch, image: MetadataImage) -> bool:
    """Returns whether a registration may be valid: the image shows it, or is too old to show it.

    An epoch is the revision that created it.
    """
    broker = image.brokers.get(broker_id)
    return (broker is not None and broker.epoch == broker_epoch) or broker_epoch > image.revision
