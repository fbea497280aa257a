"""Plans a change of leader by the current leader: one transaction, with everything it relies on compared.

The leader writes it, as it writes the ISR, without the controller. The session's fence compares its own registration.
The transaction compares the partition's record, the registrations of the other members, and that the receiver isn't
about to stop (KIP-841). So the new leader has everything committed, as after the election of a preferred replica, and a
concurrent change of the partition wins or loses as a whole.

If the receiver comes after the leader in the replica list, the two swap places. The preferred leader then is the
receiver, and the controller finds nothing to rebalance (`auto.leader.rebalance.enable`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.metadata import keys
from lowtide.metadata.changes import Step
from lowtide.metadata.records import encode
from lowtide.metadata.store import ABSENT, Compare, Put
from lowtide.replication.elections import is_healthy, steady_epochs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
    from lowtide.protocol.types import BrokerEpoch, BrokerId


def can_receive(
    image: MetadataImage, topic: TopicImage, number: int, receiver: BrokerId, steady: Mapping[BrokerId, BrokerEpoch]
) -> bool:
    """Returns whether an ISR member may replace the leader. `steady` is `steady_epochs` of the image.

    Not while the partition has pending work: a reassignment, or a member that comes, goes or is about to stop.
    """
    partition = topic.partitions[number]
    if receiver == partition.leader or receiver not in partition.isr or not is_healthy(partition, steady):
        return False
    epoch = partition.isr_epochs[partition.isr.index(receiver)]
    return not image.is_stale(receiver, topic.topic_id, number, epoch)


def plan_leader_move(
    image: MetadataImage, leader: BrokerId, topic: TopicImage, number: int, receiver: BrokerId
) -> Step | None:
    """Returns the transaction that makes `receiver` the leader, written by `leader`; None if it isn't allowed."""
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
    """Returns the replicas in an order in which the receiver isn't behind the leader."""
    replicas = list(partition.replicas)
    ours, theirs = replicas.index(partition.leader), replicas.index(receiver)
    if theirs > ours:
        replicas[ours], replicas[theirs] = replicas[theirs], replicas[ours]
    return tuple(replicas)
