"""What the leader of a partition with several replicas keeps while it leads: its followers, the ISR and changes of it, the floor.

It begins with the leader epoch and ends with it: what followers reported to an earlier one isn't known here. The only replica of a
partition needs none of it.

Guards: epoch, registration and range of a follower's fetch are checked before anything that is known of it changes. It decides; who
writes to the store, answers and wakes is the broker's part.

The low watermark is how far deletes have reached every replica that must have them (rule DR3): every live one and every member of the
maximal ISR. Live is a replica whose broker is registered, isn't about to stop, whose log directory works, and that has fetched from this
leader within `replica.lag.time.max.ms`. What counts is a log start that was reported in a fetch of this leader epoch and of the broker's
present registration; unknown is -1, so that nothing is acknowledged with it. Source: KIP-107, which asks live brokers only, and any report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, BrokerEpoch, BrokerId, Offset
from lowtide.replication import in_sync_replicas
from lowtide.replication.follower_state import UNKNOWN_BROKER_EPOCH, FollowerFetch, FollowerState
from lowtide.replication.leadership_state import LeadershipState

if TYPE_CHECKING:
    from lowtide.metadata.image import MetadataImage, PartitionImage
    from lowtide.replication.leadership_state import IsrProposal


class Leadership(LeadershipState):
    """The followers, the ISR and the floor of one partition in one leader epoch."""

    __slots__ = ()

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

    def next_proposal(self, image: MetadataImage, now_ms: int) -> IsrProposal | None:
        """See `in_sync_replicas`. It becomes `proposal` when `propose` is called."""
        return in_sync_replicas.next_proposal(self, image, now_ms)

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

        Errors: UNKNOWN_LEADER_EPOCH, or NOT_LEADER_OR_FOLLOWER without an epoch, for who isn't a replica; NOT_LEADER_OR_FOLLOWER for a
        registration that is over or isn't given. Source: Kafka's `Partition.followerReplicaOrThrow` and `Replica`.
        """
        follower = self.followers.get(fetch.broker_id)
        if follower is None:
            return not_a_replica(fetch)
        if fetch.leader_epoch == NO_LEADER_EPOCH and image.log_start_reporting:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not may_be_registered(fetch.broker_id, fetch.broker_epoch, image) or fetch.broker_epoch < follower.broker_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not -1 <= fetch.log_start_offset <= fetch.fetch_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        return ErrorCode.NONE

    def note_fetch(self, fetch: FollowerFetch, image: MetadataImage, now_ms: int) -> FollowerState | None:
        """Take over what a fetch says that was checked, is in range and doesn't diverge.

        None if the image doesn't show the registration: then deletes wait for it (rule DR3), and nothing else changes. It may be invented.
        """
        follower = self.followers[fetch.broker_id]
        if fetch.broker_epoch > image.revision:
            follower.note_unseen(fetch.broker_epoch, self.lag_time_max_ms, now_ms)
            return None
        follower.note_fetch(fetch, leader_end_offset=self.log.log_end_offset, matches=self.matches(fetch), now_ms=now_ms)
        return follower

    def matches(self, fetch: FollowerFetch) -> bool:
        """Whether nothing of the follower's log can be other than ours, given that the fetch didn't diverge.

        We have no epochs below our log start. A follower that ends just there, and starts below, may have its last records of a lost
        leadership, unless their epoch is the one of our last deleted record, or a later one that we know.
        """
        start = self.log.log_start_offset
        if fetch.log_start_offset >= start or fetch.fetch_offset > start:
            return True
        entries = self.log.leader_epochs.entries()
        if not entries:
            return False
        oldest, since = entries[0]
        return since <= start and fetch.last_fetched_epoch >= oldest

    # Watermarks

    def high_watermark(self, image: MetadataImage, now_ms: int) -> Offset:
        """How far the high watermark may go; see `in_sync_replicas`."""
        return in_sync_replicas.high_watermark(self, image, now_ms)

    def low_watermark(self, image: MetadataImage, now_ms: int) -> Offset:
        """The smallest log start of all that must have a delete; -1 while one of them hasn't reported its own."""
        lowest = self.log.log_start_offset
        for broker_id, follower in self.followers.items():
            if broker_id in self.maximal_isr or self.is_live(broker_id, follower, image, now_ms):
                lowest = min(lowest, self.reported_log_start(broker_id, follower, image, now_ms))
        return lowest

    def is_live(self, broker_id: BrokerId, follower: FollowerState, image: MetadataImage, now_ms: int) -> bool:
        """Whether this replica may lead by now, as far as we know. A registration that our image doesn't show yet counts as live."""
        if follower.may_have_registered(image.revision, self.lag_time_max_ms, now_ms):
            return True
        return follower.has_fetched_within(self.lag_time_max_ms, now_ms) and image.may_be_in_sync(broker_id, self.topic_id, self.number)

    def reported_log_start(self, broker_id: BrokerId, follower: FollowerState, image: MetadataImage, now_ms: int) -> Offset:
        """What this replica has reported under its present registration, else -1."""
        present = image.brokers.get(broker_id)
        if present is not None and follower.broker_epoch < present.epoch:
            return UNKNOWN_OFFSET
        if follower.unseen_epoch > image.revision and follower.may_have_registered(image.revision, self.lag_time_max_ms, now_ms):
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
                times.append(follower.last_fetch_ms)
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
    """Whether a registration may be in force: the image shows it, or is too old to know it. An epoch is the revision that made it."""
    broker = image.brokers.get(broker_id)
    return (broker is not None and broker.epoch == broker_epoch) or broker_epoch > image.revision
