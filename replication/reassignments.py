"""Plans reassignments of partitions to other replicas (KIP-455).

A reassignment keeps the old replicas beside the new ones until the whole target is in sync; `elections` then completes
it. A second one replaces the first: replicas that the first was adding leave at once, or together with the old replicas
while no other in-sync replica is alive.

Pure: an image and a request go in, a plan and an outcome for each partition come out. Guards: cancelling or replacing a
reassignment never empties an ISR, and elects uncleanly only where that is allowed. Sources: KIP-455, KIP-860
(replication factor), Kafka's `ReplicationControlManager.alterPartitionReassignments`. Unlike Kafka, cancelling a
replaced reassignment restores the replicas from before the first one, as the KIP says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.replication.controller import ControllerSettings, elects_unclean, min_insync_replicas
from lowtide.replication.elections import Assignment, Election, assignment_of, elect, living_members
from lowtide.replication.placement import check_replicas
from lowtide.replication.refusal import Refusal
from lowtide.replication.steps import PartitionChanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.metadata.changes import ChangePlan
    from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
    from lowtide.metadata.records import PartitionRecord
    from lowtide.protocol.types import BrokerId


class Reassignment(msgspec.Struct, frozen=True):
    """A partition and its target replicas; None cancels the reassignment in progress."""

    topic: str
    number: int
    replicas: tuple[BrokerId, ...] | None


class PartitionsPlan(msgspec.Struct, frozen=True):
    """A plan for several partitions, and the outcome of each in the order of the request; None means success."""

    plan: ChangePlan
    outcomes: Sequence[Refusal | None]


def plan_reassignments(
    image: MetadataImage,
    wanted: Sequence[Reassignment],
    settings: ControllerSettings,
    *,
    may_change_factor: bool = True,
) -> PartitionsPlan:
    """Plans the start and the cancellation of reassignments. If a partition is listed twice, the last entry wins.

    Errors: UNKNOWN_TOPIC_OR_PARTITION, NO_REASSIGNMENT_IN_PROGRESS, INVALID_REPLICATION_FACTOR,
    INVALID_REPLICA_ASSIGNMENT.
    """
    changes = PartitionChanges(image)
    outcomes: list[Refusal | None] = []
    planned: dict[tuple[str, int], PartitionRecord | None] = {}
    for wish in wanted:
        outcome = _decide(image, wish, settings, may_change_factor=may_change_factor)
        if isinstance(outcome, Refusal):
            outcomes.append(outcome)
        else:
            planned[wish.topic, wish.number] = outcome
            outcomes.append(None)
    for (name, number), record in planned.items():
        if record is not None:
            topic = image.topics[name]
            changes.add(topic.topic_id, number, topic.partitions[number], record)
    return PartitionsPlan(changes.plan(), outcomes)


def find_partition(image: MetadataImage, name: str, number: int) -> tuple[TopicImage, PartitionImage] | Refusal:
    """Returns a partition by its topic's name.

    Errors: UNKNOWN_TOPIC_OR_PARTITION; INVALID_REQUEST if its record can't be read.
    """
    topic = image.topics.get(name)
    if topic is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= number < len(topic.partitions):
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{number}.")
    if not topic.partitions[number].is_known:
        return Refusal(
            ErrorCode.INVALID_REQUEST, f"The state of partition {name}:{number} can't be read from the metadata store."
        )
    return topic, topic.partitions[number]


def _decide(
    image: MetadataImage, wish: Reassignment, settings: ControllerSettings, *, may_change_factor: bool
) -> PartitionRecord | Refusal | None:
    found = find_partition(image, wish.topic, wish.number)
    if isinstance(found, Refusal):
        return found
    topic, partition = found
    if wish.replicas is None:
        return _cancel(image, topic, wish.number, partition, settings)
    if not may_change_factor and (refusal := _check_factor(partition, wish.replicas)) is not None:
        return refusal
    reason = check_replicas(image, wish.number, wish.replicas, None, known=partition.replicas)
    if reason is not None:
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
    assignment = _reassigned(image, topic, wish.number, partition, wish.replicas)
    least = min_insync_replicas(topic, settings)
    return elect(image, topic.topic_id, wish.number, partition, min_insync_replicas=least, assignment=assignment)


def _check_factor(partition: PartitionImage, replicas: Sequence[BrokerId]) -> Refusal | None:
    have = len(assignment_of(partition).target)
    if have == len(replicas):
        return None
    return Refusal(
        ErrorCode.INVALID_REPLICATION_FACTOR, f"The replication factor is changed from {have} to {len(replicas)}"
    )


def _reassigned(
    image: MetadataImage, topic: TopicImage, number: int, partition: PartitionImage, target: tuple[BrokerId, ...]
) -> Assignment:
    """Returns the assignment that leads to the target: the target, followed by the replicas to remove."""
    original = [replica for replica in partition.replicas if replica not in partition.adding]
    given_up = [replica for replica in partition.adding if replica not in target]
    if any(member not in given_up for member in living_members(image, topic.topic_id, number, partition)):
        given_up = []
    coming = [replica for replica in target if replica not in original]
    going = [replica for replica in original if replica not in target]
    return Assignment((*target, *going, *given_up), tuple(sorted(coming + given_up)), tuple(sorted(going + given_up)))


def _cancel(
    image: MetadataImage, topic: TopicImage, number: int, partition: PartitionImage, settings: ControllerSettings
) -> PartitionRecord | Refusal | None:
    """Restores the original replicas; those being added leave, also from the ISR."""
    if not assignment_of(partition).is_moving:
        return Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    original = tuple(replica for replica in partition.replicas if replica not in partition.adding)
    unclean = elects_unclean(topic, settings)
    if not set(original) & set(partition.isr) and not unclean:
        text = (
            f"Unable to revert partition assignment for {topic.name}:{number} because it would require an unclean "
            "leader election."
        )
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    election = Election.UNCLEAN if unclean else Election.ONLINE
    least = min_insync_replicas(topic, settings)
    record = elect(
        image,
        topic.topic_id,
        number,
        partition,
        min_insync_replicas=least,
        election=election,
        assignment=Assignment(original),
    )
    if record is not None and not record.isr:
        text = f"Unable to revert partition assignment for {topic.name}:{number} because none of its replicas is alive."
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return record
