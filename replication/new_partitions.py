"""Plans more partitions for a topic.

Pure: an image and a request go in, a plan or a refusal comes out.

Guards: new partitions become visible together, when the topic's record counts them. Each step compares that record, so
of two concurrent growths, or a growth and a deletion, one succeeds and the other conflicts.

The caller authorizes. Sources: Kafka's `ReplicationControlManager.createPartitions`, `ControllerApis.createPartitions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan, Step, step_sized
from lowtide.metadata.records import TopicRecord, encode
from lowtide.metadata.store import Compare, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import topic_id_text
from lowtide.replication.elections import assignment_of
from lowtide.replication.new_topics import MAX_REQUEST_PARTITIONS
from lowtide.replication.placement import (
    brokers_unchanged,
    check_replicas,
    check_somebody_stays,
    new_partition_records,
    place_replicas,
)
from lowtide.replication.refusal import Refusal
from lowtide.replication.steps import MAX_STEP_COMPARES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.metadata.image import MetadataImage, TopicImage
    from lowtide.protocol.types import BrokerId
    from lowtide.runtime.random import Random


class NewPartitions(msgspec.Struct, frozen=True):
    """A topic to grow to `count` partitions.

    `assignments`: the replicas of each new one, in order; None leaves the choice to the broker.
    """

    name: str
    count: int
    assignments: Sequence[Sequence[BrokerId]] | None = None


class TopicGrowth(msgspec.Struct, frozen=True):
    """The plan that adds partitions to a topic, and their number."""

    plan: ChangePlan
    added: int


def plan_new_partitions(
    image: MetadataImage, wanted: NewPartitions, *, random: Random, room: int = MAX_REQUEST_PARTITIONS
) -> TopicGrowth | Refusal:
    """Plans new partitions. Checks in Kafka's order: existence, count, number of assignments, request size, replicas.

    `room` is how many partitions the request may still add. Each new partition has as many replicas as the topic's
    first. Errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR; POLICY_VIOLATION for more than `room`, where Kafka says UNKNOWN_SERVER_ERROR.
    """
    topic = image.topics.get(wanted.name)
    if topic is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no such topic")
    refusal = _check_counts(topic, wanted, room)
    if refusal is not None:
        return refusal
    have = len(topic.partitions)
    added = wanted.count - have
    factor = next((len(assignment_of(each).target) for each in topic.partitions if each.is_known), 1)
    if wanted.assignments is None:
        placed = place_replicas(image, added, factor, random)
    else:
        placed = _check_assignments(image, have, wanted.assignments, factor)
    if isinstance(placed, Refusal):
        return placed
    return TopicGrowth(_growth_plan(image, topic, placed), added)


def _check_counts(topic: TopicImage, wanted: NewPartitions, room: int) -> Refusal | None:
    have = len(topic.partitions)
    added = wanted.count - have
    if added == 0:
        return Refusal(ErrorCode.INVALID_PARTITIONS, f"Topic already has {have} partition(s).")
    if added < 0:
        text = f"The topic {topic.name} currently has {have} partition(s); {wanted.count} would not be an increase."
        return Refusal(ErrorCode.INVALID_PARTITIONS, text)
    if wanted.assignments is not None and len(wanted.assignments) != added:
        text = f"{added} new partition(s) need as many assignments; {len(wanted.assignments)} are given"
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    if added > room:
        return Refusal(
            ErrorCode.POLICY_VIOLATION, f"One request can't add more than {MAX_REQUEST_PARTITIONS} partitions"
        )
    return None


def _check_assignments(
    image: MetadataImage, first: int, assignments: Sequence[Sequence[BrokerId]], factor: int
) -> list[tuple[BrokerId, ...]] | Refusal:
    for number, replicas in enumerate(assignments, first):
        reason = check_replicas(image, number, replicas, factor) or check_somebody_stays(image, number, replicas)
        if reason is not None:
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
    return [tuple(replicas) for replicas in assignments]


def _growth_plan(image: MetadataImage, topic: TopicImage, placed: Sequence[tuple[BrokerId, ...]]) -> ChangePlan:
    """Plans partitions in chunks, and the new count with the last chunk, so an unfinished plan leaves nothing visible.

    Every step compares the topic's record. Otherwise a plan that lost the race to another growth would overwrite
    partitions that already have leaders.
    """
    have = len(topic.partitions)
    numbers = keys.partitions(topic.topic_id, range(have, have + len(placed)))
    puts = [Put(key, value) for key, value in zip(numbers, new_partition_records(image, placed), strict=True)]
    record = keys.topic(topic.name)
    unchanged = Compare(record, "modify", "==", topic.modify_revision)
    count = Put(record, encode(TopicRecord(topic_id_text(topic.topic_id), have + len(placed))))
    chunks = step_sized(puts)
    last = Step((count, *chunks[-1]), (unchanged, *brokers_unchanged(image, placed))[:MAX_STEP_COMPARES])
    return ChangePlan((*(Step(chunk, (unchanged,)) for chunk in chunks[:-1]), last))
