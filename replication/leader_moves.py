"""How a leader makes another member of the ISR the leader: one transaction, with all that it relies on compared.

The leader writes it, as it writes the ISR, so the controller has no part in it; its own registration is the session's
fence. Compared are the partition's record, the registrations of the other members, and that the receiver doesn't want
to stop (KIP-841). So the new leader has all that was committed, as after the election of a preferred replica, and
whatever else changes the partition at the same time wins or loses as a whole.

Where the receiver comes behind the leader in the order of the replicas, the two change places: what was preferred stays
preferred, but for the leader, whose place the receiver has now. So the controller finds nothing to bring back
(`auto.leader.rebalance.enable`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.metadata import keys
from lowtide.metadata.changes import Step
from lowtide.metadata.records import encode
from lowtide.metadata.store import ABSENT, Compare, Put
from lowtide.replication.elections import is_well, steady_epochs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
    from lowtide.protocol.types import BrokerEpoch, BrokerId


def can_receive(
    image: MetadataImage, topic: TopicImage, number: int, receiver: BrokerId, steady: Mapping[BrokerId, BrokerEpoch]
) -> bool:
    """Whether a member of the ISR may lead instead of the leader. `steady` is `steady_epochs` of the image.

    Not while anything is to be done for the partition: a reassignment, a member that comes, goes or wants to stop.
    """
    partition = topic.partitions[number]
    if receiver == partition.leader or receiver not in partition.isr or not is_well(partition, steady):
        return False
    epoch = partition.isr_epochs[partition.isr.index(receiver)]
    return not image.is_stale(receiver, topic.topic_id, number, epoch)


def plan_leader_move(
    image: MetadataImage, leader: BrokerId, topic: TopicImage, number: int, receiver: BrokerId
) -> Step | None:
    """The transaction that has `receiver` lead a partition of `leader`, which writes it; None where that may not be."""
    partition = topic.partitions[number]
    if partition.leader != leader or not can_receive(image, topic, number, receiver, steady_epochs(image)):
        return None
    record = partition.changed(
        replicas=_replicas(partition, receiver), leader=receiver, leader_epoch=partition.leader_epoch + 1
    )
    key = keys.partition(topic.topic_id, number)
    compares = [
        Compare(key, "modify", "==", partition.modify_revision),
        Compare(keys.shutdown(receiver), "create", "==", ABSENT),
    ]
    for member, epoch in zip(partition.isr, partition.isr_epochs, strict=True):
        if member != leader:
            compares.append(Compare(keys.broker(member), "create", "==", epoch))
    return Step((Put(key, encode(record)),), tuple(compares))


def _replicas(partition: PartitionImage, receiver: BrokerId) -> tuple[BrokerId, ...]:
    """The order of the replicas in which the receiver isn't behind the leader."""
    replicas = list(partition.replicas)
    ours, theirs = replicas.index(partition.leader), replicas.index(receiver)
    if theirs > ours:
        replicas[ours], replicas[theirs] = replicas[theirs], replicas[ours]
    return tuple(replicas)
