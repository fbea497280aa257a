"""Elects leaders and reduces ISRs after brokers come, go, restart, or lose a log directory.

Pure: an image goes in, the new state of a partition comes out.

Guards: the ISR never becomes empty. A leader is elected among ISR members and eligible leader replicas, unless an
unclean election is allowed. A leadership never survives the registration under which it was won. A member that lost
data (stale) isn't elected cleanly, nor one that may lack records while another may have them all (`eligible_leaders`).

Only the leader adds members to an ISR, because it knows who has caught up. Sources: Kafka's `PartitionChangeBuilder`,
`ReplicationControlManager`; KIP-497, KIP-841, KIP-903, KIP-966; rule DR8 in docs/invariants.md.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata.records import NO_LEADER, PartitionRecord
from lowtide.protocol.types import BrokerEpoch, BrokerId, TopicId, TopicPartition  # Read at run time, by msgspec.
from lowtide.replication.eligible_leaders import eligible_leaders

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lowtide.metadata.image import ImageDelta, MetadataImage, PartitionImage


class Election(Enum):
    """Which replicas may be elected. Source: Kafka's `PartitionChangeBuilder.Election`."""

    ONLINE = "online"
    """An ISR member; the leader stays if it can."""
    PREFERRED = "preferred"
    """An ISR member; the first replica leads if it can."""
    UNCLEAN = "unclean"
    """Any online replica if no ISR member can lead. Records that it lacks are lost."""


class Assignment(msgspec.Struct, frozen=True):
    """The replicas of a partition, and which of them are being added or removed (KIP-455)."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas that remain after the reassignment."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)


class _Outcome(msgspec.Struct, frozen=True):
    leader: BrokerId
    isr: tuple[BrokerId, ...]
    is_clean: bool = True


def assignment_of(partition: PartitionImage) -> Assignment:
    """Returns the partition's current assignment."""
    return Assignment(partition.replicas, partition.adding, partition.removing)


def steady_epochs(image: MetadataImage) -> dict[BrokerId, BrokerEpoch]:
    """Returns the registrations of brokers without any problem: not about to stop, no offline replica."""
    return {
        broker_id: broker.epoch
        for broker_id, broker in image.brokers.items()
        if not broker.in_controlled_shutdown and broker_id not in image.offline_replicas
    }


def is_healthy(partition: PartitionImage, steady: Mapping[BrokerId, BrokerEpoch]) -> bool:
    """Returns whether a quick check shows that a partition is healthy; `steady` is `steady_epochs` of the image.

    False negatives are possible.
    """
    if partition.leader not in partition.isr or partition.adding or partition.removing:
        return False
    for member, epoch in zip(partition.isr, partition.isr_epochs, strict=True):  # noqa: SIM110 - thousands at a time; `all` is slower
        if steady.get(member) != epoch:
            return False
    return True


def elect(  # noqa: PLR0913  a partition, and how it is looked at, by keyword
    image: MetadataImage,
    topic_id: TopicId,
    number: int,
    partition: PartitionImage,
    *,
    min_insync_replicas: int = 1,
    election: Election = Election.ONLINE,
    assignment: Assignment | None = None,
) -> PartitionRecord | None:
    """Returns the new state of a partition for the live brokers, and a new assignment if given, or None.

    With fewer than `min_insync_replicas` members, replicas that left the ISR stay eligible as leaders. A reassignment
    whose whole target is in sync is completed.

    The leader epoch rises with every change of leader, when a leader returns under a new registration, and when a
    replica is removed. In the last case the removed replica's fetches are refused until it knows, even if it is a
    replica again by then. Otherwise it could join the ISR with a log that it is about to delete. Source: Kafka's
    `PartitionChangeBuilder`.
    """
    wanted = assignment or assignment_of(partition)
    voters = _Voters(image, topic_id, number, partition, wanted)
    if wanted.is_moving and wanted.target and set(wanted.target) <= set(voters.good):
        wanted = Assignment(wanted.target)
        voters = _Voters(image, topic_id, number, partition, wanted)
    outcome = voters.outcome(election)
    leader, isr = outcome.leader, outcome.isr
    stays = leader == partition.leader and (leader == NO_LEADER or leader in voters.steady)
    eligible = (
        eligible_leaders(image, topic_id, number, partition, isr, wanted.replicas, min_insync_replicas)
        if outcome.is_clean
        else {}
    )
    unchanged = isr == partition.isr and wanted == assignment_of(partition) and tuple(eligible) == partition.elr
    if stays and unchanged:
        return None
    return partition.changed(
        replicas=wanted.replicas,
        isr=isr,
        isr_epochs=tuple(
            voters.epochs[member] if leader == NO_LEADER else image.brokers[member].epoch for member in isr
        ),
        leader=leader,
        leader_epoch=partition.leader_epoch + (0 if stays and not _removes(partition, wanted) else 1),
        adding=wanted.adding,
        removing=wanted.removing,
        elr=tuple(eligible),
        elr_epochs=tuple(eligible.values()),
    )


def led_uncleanly(old: MetadataImage, delta: ImageDelta) -> dict[TopicPartition, BrokerId]:
    """Returns the changed partitions whose new leaders were neither in sync nor eligible: records they lack are lost.

    If one image has several changes of a partition, a replica that joined the ISR in between counts as out of sync.
    """
    found: dict[TopicPartition, BrokerId] = {}
    for topic in delta.topics_changed:
        before = old.topics.get(topic.name)
        if before is None or before.topic_id != topic.topic_id:
            continue
        for number in delta.partitions_of(before, topic):
            if number >= len(before.partitions):
                break
            was, leader = before.partitions[number], topic.partitions[number].leader
            if was.is_known and leader not in (NO_LEADER, was.leader) and leader not in was.members:
                found[TopicPartition(topic.name, number)] = leader
    return found


class _Voters:
    """The ISR members of a partition, by their condition."""

    def __init__(
        self, image: MetadataImage, topic_id: TopicId, number: int, partition: PartitionImage, assignment: Assignment
    ) -> None:
        self.epochs = dict(zip(partition.isr, partition.isr_epochs, strict=True))
        self.members = tuple(member for member in partition.isr if member in assignment.replicas)
        self.steady = tuple(
            member
            for member in self.members
            if image.broker_epoch(member) == self.epochs[member] and image.replica_is_online(member, topic_id, number)
        )
        """Online, under the registration of their membership."""
        self.good = tuple(member for member in self.steady if image.may_be_in_sync(member, topic_id, number))
        """Of these, the ones that aren't about to stop."""
        self._known = {member: epoch for member, epoch in partition.members.items() if member in assignment.replicas}
        self._image, self._topic_id, self._number = image, topic_id, number
        self._partition, self._replicas = partition, assignment.replicas

    def outcome(self, election: Election) -> _Outcome:
        """Returns the leader and the ISR.

        Members stay while their broker lives under the registration of their membership; others are dropped if such a
        member exists. A broker that is about to stop is dropped too, unless no other member lives. If no member lives
        but one has returned under a new registration, or an eligible replica is there, the first replica with
        everything committed leads alone. A replica that may lack records leads only if no member, alive or not, can
        have more. If no replica can lead, the ISR stays unchanged: its last members have what was acknowledged.
        """
        if self.good:
            if election is Election.PREFERRED and self._replicas[0] in self.good:
                return _Outcome(self._replicas[0], self.good)
            return _Outcome(self._first_of(self.good), self.good)
        if self.steady:
            return _Outcome(self._first_of(self.steady), self.steady)
        for candidates in (self._complete(), self._incomplete()):
            if candidates:
                leader = self._first_that_stays(candidates)
                return _Outcome(leader, (leader,))
        candidates = list(filter(self._is_online, self._replicas)) if election is Election.UNCLEAN else []
        if candidates:
            candidates.sort(key=lambda replica: replica not in self.members)
            leader = self._first_that_stays(candidates)
            return _Outcome(leader, (leader,), is_clean=False)
        return _Outcome(NO_LEADER, self.members)

    def _first_that_stays(self, candidates: Sequence[BrokerId]) -> BrokerId:
        """Returns the first candidate; one that is about to stop only if there is no other."""
        return next(
            (each for each in candidates if not self._image.brokers[each].in_controlled_shutdown), candidates[0]
        )

    def _first_of(self, pool: Sequence[BrokerId]) -> BrokerId:
        if self._partition.leader in pool:
            return self._partition.leader
        return next(replica for replica in self._replicas if replica in pool)

    def _complete(self) -> list[BrokerId]:
        """Returns online replicas with everything committed: returned ISR members first, then eligible replicas."""
        found = [replica for replica in self._replicas if self._has_all(replica) and self._is_online(replica)]
        return sorted(found, key=lambda replica: replica not in self.members)

    def _incomplete(self) -> list[BrokerId]:
        """Returns replicas that may lack unsynced records, if no known replica has everything."""
        if self._image.has_eligible_leaders and any(self._has_all(replica) for replica in self._known):
            return []
        found = [
            replica
            for replica in self._replicas
            if replica in self._known and self._is_online(replica) and not self._is_stale(replica)
        ]
        return sorted(found, key=lambda replica: replica not in self.members)

    def _has_all(self, replica: BrokerId) -> bool:
        """Returns whether a replica, online or not, has everything committed. An unregistered one is gone for good."""
        epoch = self._known.get(replica)
        return epoch is not None and self._image.has_all(replica, self._topic_id, self._number, epoch)

    def _is_stale(self, replica: BrokerId) -> bool:
        return self._image.is_stale(replica, self._topic_id, self._number, self._known[replica])

    def _is_online(self, replica: BrokerId) -> bool:
        return self._image.replica_is_online(replica, self._topic_id, self._number)


def _removes(partition: PartitionImage, wanted: Assignment) -> bool:
    return not set(partition.replicas) <= set(wanted.replicas)


def living_members(
    image: MetadataImage, topic_id: TopicId, number: int, partition: PartitionImage
) -> tuple[BrokerId, ...]:
    """Returns the ISR members that can serve and have not registered again since they joined the ISR."""
    return _Voters(image, topic_id, number, partition, assignment_of(partition)).steady


def is_relieved(image: MetadataImage, broker_id: BrokerId) -> bool:
    """Returns whether a broker that is about to stop leads nothing and is in no ISR that has another healthy member."""
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            if broker_id in partition.isr and any(
                member != broker_id
                and image.broker_epoch(member) == epoch
                and image.may_be_in_sync(member, topic.topic_id, number)
                for member, epoch in zip(partition.isr, partition.isr_epochs, strict=True)
            ):
                return False
    return True
