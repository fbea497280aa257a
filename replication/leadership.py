"""What the leader of a partition with several replicas keeps while it leads: its followers, the ISR and changes of it, the floor.

It begins with the leader epoch and ends with it: what followers reported to an earlier one isn't known here. The only replica of a
partition needs none of it.

Guards: epoch, registration and range of a follower's fetch are checked before anything that is known of it changes; what a follower
reported counts only for the registration under which it did, and a new one begins with nothing known. It decides; who writes to the
store, answers and wakes is the broker's part. Who is in sync, and how high the high watermark may be, is in `in_sync_replicas`.

The low watermark is how far deletes have reached every replica that must have them (rule DR3): every live one and every member of the
maximal ISR. Live is a replica whose broker is registered, isn't about to stop, whose log directory works, and that has fetched from this
leader within `replica.lag.time.max.ms`. What counts is a log start that was reported in a fetch of this leader epoch and of the broker's
present registration; unknown is -1, so that nothing is acknowledged with it.

A fetch session implies a fetch of each of its partitions, also of those that it doesn't name. So the time of a session's last request is
kept once for all of them (`FetchTimes`), and what is idle is not visited.

Sources: KIP-107, which asks live brokers only, and any report; Kafka's `Replica`; KIP-903 for broker epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, BrokerEpoch, BrokerId, LeaderEpoch, Offset

if TYPE_CHECKING:
    from lowtide.metadata.broker_image import BrokerImage
    from lowtide.metadata.image import MetadataImage, PartitionImage
    from lowtide.metadata.store import Revision
    from lowtide.protocol.types import TopicId
    from lowtide.storage.log.log import Log

UNKNOWN_BROKER_EPOCH: Final[BrokerEpoch] = -1
NEVER_MS: Final = -(1 << 62)


class FetchTimes(msgspec.Struct):
    """When a follower's fetch session was used last, on the monotonic clock."""

    last_ms: int = NEVER_MS


class FollowerFetch(msgspec.Struct):
    """One partition of a follower's fetch.

    `fetch_offset` is its log end; the log start is -1 where the version doesn't tell it.
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
    `leader_end_offset` is where the leader's log ended at the last fetch, `goal_offset` where it ended at an earlier one, at `goal_ms`: the
    follower hasn't reached it since. `unseen_epoch` is the newest registration that a fetch had and the image didn't
    show, at `unseen_ms`.
    """

    broker_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH
    log_end_offset: Offset = UNKNOWN_OFFSET
    log_start_offset: Offset = UNKNOWN_OFFSET
    matches: bool = False
    told_log_start: Offset = UNKNOWN_OFFSET
    leader_end_offset: Offset = UNKNOWN_OFFSET
    goal_offset: Offset = UNKNOWN_OFFSET
    goal_ms: int = NEVER_MS
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

    def last_heard_ms(self, broker: BrokerImage | None) -> int:
        """When it fetched last, under the present registration of its broker also before our image showed that.

        Nothing else is known of such a fetch; but it was answered, and by the answer the follower may serve consumers
        (rule DR7).
        """
        before_ms = self.last_fetch_ms
        return before_ms if broker is None or self.unseen_epoch < broker.epoch else max(before_ms, self.unseen_ms)

    def has_fetched_within(self, limit_ms: int, now_ms: int) -> bool:
        """Whether it fetched lately."""
        return now_ms - self.last_fetch_ms <= limit_ms

    def is_caught_up(self, leader_end_offset: Offset, limit_ms: int, now_ms: int) -> bool:
        """Whether it has all that the leader has, or had it at some moment within the last `limit_ms`.

        Source: KIP-16.
        """
        return self.log_end_offset == leader_end_offset or now_ms - self.caught_up_ms <= limit_ms

    def note_fetch(self, fetch: FollowerFetch, *, leader_end_offset: Offset, matches: bool, now_ms: int) -> None:
        """Take over what an accepted fetch says.

        A follower was caught up at the last moment at which the leader ended where it is now.
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
            # Of the first fetch nothing is known before: a follower that is far behind must not hold up the high
            # watermark.
            self.caught_up_ms = max(self.caught_up_ms, before_ms)
        elif (
            UNKNOWN_OFFSET < self.goal_offset <= end
        ):  # It needed several fetches, as where many producers write at once.
            self.caught_up_ms = max(self.caught_up_ms, self.goal_ms)
        if end >= self.goal_offset:
            self.goal_offset, self.goal_ms = leader_end_offset, now_ms
        self.leader_end_offset, self.noted_fetch_ms = max(leader_end_offset, self.leader_end_offset), now_ms
        self.log_end_offset, self.log_start_offset, self.matches = end, fetch.log_start_offset, matches
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
        self.log_end_offset = self.log_start_offset = self.told_log_start = self.leader_end_offset = (
            self.goal_offset
        ) = UNKNOWN_OFFSET
        self.matches = False
        self.caught_up_ms = self.goal_ms = NEVER_MS


class IsrProposal(msgspec.Struct, eq=False):
    """An ISR that was proposed in place of the one of `base`. Compared by identity: the same wish may come twice.

    `decided_at` is the revision of the image on which it was decided. `elr` are the eligible leaders beside it (KIP-966).
    """

    base: PartitionImage
    decided_at: Revision
    isr: tuple[BrokerId, ...]
    isr_epochs: tuple[BrokerEpoch, ...]
    elr: tuple[BrokerId, ...] = ()
    elr_epochs: tuple[BrokerEpoch, ...] = ()


class Leadership:
    """The followers, the ISR and the floor of one partition in one leader epoch.

    `state` is the partition as the image shows it; `number` its number within the topic.
    """

    __slots__ = (
        "broker_id",
        "elected_ms",
        "epoch_start_offset",
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
        """A leadership that begins now (monotonic).

        Every replica that the image shows unfenced counts as having fetched just now.
        """
        self.broker_id = broker_id
        self.topic_id = topic_id
        self.number = number
        self.log = log
        self.state = state
        self.lag_time_max_ms = lag_time_max_ms
        self.elected_ms = now_ms
        self.epoch_start_offset = log.log_end_offset
        self.floor = log.log_start_offset
        """The least log start of who joins the ISR: ours when we were elected, or the largest delete that we have acknowledged since."""
        self.proposal: IsrProposal | None = None
        self.refused_at: Revision = -1
        """The revision of the image on which a proposal was decided that conflicted: nothing is decided on that one again."""
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
        """The topic's `min.insync.replicas`, or all replicas where they are fewer."""
        return min(self.log.config.min_insync_replicas, len(self.state.replicas))

    # What the metadata say

    def follow(self, state: PartitionImage) -> None:
        """The partition has changed within the leader epoch: whatever was proposed is decided by that."""
        if state.modify_revision != self.state.modify_revision:
            self.proposal = None
        self.state = state
        for gone in [other for other in self.followers if other not in state.replicas]:
            del self.followers[gone]
        for other in state.replicas:
            if other != self.broker_id and other not in self.followers:
                self.followers[other] = FollowerState()
        self._count_isr()

    def follow_broker(self, broker_id: BrokerId, image: MetadataImage) -> bool:
        """A broker came, went or registered again: what it reported under an earlier registration is forgotten.

        Returns whether it has fetched before its registration was known here: the next fetch counts.
        """
        follower = self.followers.get(broker_id)
        present = image.broker_epoch(broker_id)
        if follower is None or present is None:
            return False
        if UNKNOWN_BROKER_EPOCH < follower.broker_epoch < present:
            follower.forget()
        return follower.unseen_epoch == present

    # The ISR

    def propose(self, proposal: IsrProposal) -> None:
        """The change is about to be written; from now on its members count too."""
        assert self.proposal is None
        self.proposal = proposal
        self._count_isr()

    def on_refused(self, proposal: IsrProposal, *, conflicted: bool) -> bool:
        """The store has not taken the change, and won't. Returns whether that was the one under way."""
        if self.proposal is not proposal:
            return False
        self.proposal = None
        if conflicted:
            self.refused_at = proposal.decided_at
        self._count_isr()
        return True

    def _count_isr(self) -> None:
        proposed = self.proposal.isr if self.proposal is not None else ()
        self.maximal_isr = frozenset((*self.state.isr, *proposed))

    # Fetches of followers

    def check_fetch(self, fetch: FollowerFetch, image: MetadataImage) -> ErrorCode:
        """Whether a follower's fetch may be served. Its leader epoch, if it has one, is ours.

        Errors: UNKNOWN_LEADER_EPOCH, or NOT_LEADER_OR_FOLLOWER without an epoch, for who isn't a replica;
        NOT_LEADER_OR_FOLLOWER for a registration that is over or isn't given. Source: Kafka's
        `Partition.followerReplicaOrThrow` and `Replica`.
        """
        follower = self.followers.get(fetch.broker_id)
        if follower is None:
            return not_a_replica(fetch)
        if fetch.leader_epoch == NO_LEADER_EPOCH and image.log_start_reporting:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if (
            not may_be_registered(fetch.broker_id, fetch.broker_epoch, image)
            or fetch.broker_epoch < follower.broker_epoch
        ):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not -1 <= fetch.log_start_offset <= fetch.fetch_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        return ErrorCode.NONE

    def note_fetch(self, fetch: FollowerFetch, image: MetadataImage, now_ms: int) -> FollowerState | None:
        """Take over what a fetch says that was checked, is in range and doesn't diverge.

        None if the image doesn't show the registration: then deletes wait for it (rule DR3), and nothing else changes.
        It may be invented.
        """
        follower = self.followers[fetch.broker_id]
        if fetch.broker_epoch > image.revision:
            follower.note_unseen(fetch.broker_epoch, self.lag_time_max_ms, now_ms)
            return None
        follower.note_fetch(
            fetch, leader_end_offset=self.log.log_end_offset, matches=self.matches(fetch), now_ms=now_ms
        )
        return follower

    def matches(self, fetch: FollowerFetch) -> bool:
        """Whether nothing of the follower's log can be other than ours, given that the fetch didn't diverge.

        We have no epochs below our log start. A follower that ends just there, and starts below, may have its last
        records of a lost leadership, unless their epoch is the one of our last deleted record, or a later one that we
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

    # Deletes

    def low_watermark(self, image: MetadataImage, now_ms: int) -> Offset:
        """The smallest log start of all that must have a delete; -1 while one of them hasn't reported its own.

        Also while other replicas are eligible as leaders: they need not have what is deleted now (rule DR3).
        """
        if self.state.elr:
            return UNKNOWN_OFFSET
        lowest = self.log.log_start_offset
        for broker_id, follower in self.followers.items():
            if broker_id in self.maximal_isr or self.is_live(broker_id, follower, image, now_ms):
                lowest = min(lowest, self.reported_log_start(broker_id, follower, image, now_ms))
        return lowest

    def is_live(self, broker_id: BrokerId, follower: FollowerState, image: MetadataImage, now_ms: int) -> bool:
        """Whether this replica may lead by now, or believe that it still leads, as far as we know.

        A registration that our image doesn't show yet counts as live. So does a broker that is about to stop and hasn't
        fetched in this leader epoch: the step that took its leadership took it out of the ISR, and until it sees that,
        it answers.
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
        """What this replica has reported under its present registration, else -1."""
        present = image.brokers.get(broker_id)
        if present is not None and follower.broker_epoch < present.epoch:
            return UNKNOWN_OFFSET
        if follower.unseen_epoch > image.revision and follower.may_have_registered(
            image.revision, self.lag_time_max_ms, now_ms
        ):
            return UNKNOWN_OFFSET
        return follower.log_start_offset

    def slow_at_ms(self, image: MetadataImage, now_ms: int) -> int | None:
        """When the first live replica outside the maximal ISR, or registration that isn't shown, will have been silent for too long.

        That is no event of its own: what waits for the low watermark must look again then (rule DR4). None without any.
        """
        limit_ms, times = self.lag_time_max_ms, []
        for broker_id, follower in self.followers.items():
            if follower.may_have_registered(image.revision, limit_ms, now_ms):
                times.append(follower.unseen_ms)
            elif broker_id not in self.maximal_isr and self.is_live(broker_id, follower, image, now_ms):
                times.append(follower.last_heard_ms(image.brokers.get(broker_id)))
        return min(times) + limit_ms + 1 if times else None

    def note_acknowledged(self, offset: Offset) -> None:
        """A delete to `offset` was acknowledged, not to the leader alone."""
        self.floor = max(self.floor, offset)


def assumed_epoch(broker_id: BrokerId, image: MetadataImage) -> BrokerEpoch:
    """The registration of a follower whose version reports none: the one that the image shows, while decisions need no report."""
    present = image.brokers.get(broker_id)
    return UNKNOWN_BROKER_EPOCH if present is None or image.log_start_reporting else present.epoch


def not_a_replica(fetch: FollowerFetch) -> ErrorCode:
    """What is answered to who isn't a replica here: with a leader epoch it may know more than we do, and is to try again."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if fetch.leader_epoch == NO_LEADER_EPOCH else ErrorCode.UNKNOWN_LEADER_EPOCH


def may_be_registered(broker_id: BrokerId, broker_epoch: BrokerEpoch, image: MetadataImage) -> bool:
    """Whether a registration may be in force: the image shows it, or is too old to know it.

    An epoch is the revision that made it.
    """
    broker = image.brokers.get(broker_id)
    return (broker is not None and broker.epoch == broker_epoch) or broker_epoch > image.revision
