"""Plans the creation of a topic.

Pure: an image and a request go in, a plan or a refusal comes out. Guards: a topic becomes visible with all its
partitions or not at all. The caller authorizes and checks configuration values. Sources: Kafka's
`ReplicationControlManager.createTopics`, `ControllerApis.createTopics`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan, Step, step_sized
from lowtide.metadata.records import TopicRecord, encode
from lowtide.metadata.store import ABSENT, Compare, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import random_uuid, topic_id_text
from lowtide.replication.placement import (
    brokers_unchanged,
    check_replicas,
    check_somebody_stays,
    new_partition_record,
    new_partition_records,
    place_replicas,
)
from lowtide.replication.refusal import Refusal
from lowtide.replication.steps import MAX_STEP_COMPARES
from lowtide.replication.topic_names import CLUSTER_METADATA_TOPIC, check_topic_name, find_collision

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lowtide.metadata.image import MetadataImage
    from lowtide.protocol.types import BrokerId, ProducerId, TopicId
    from lowtide.runtime.random import Random

MAX_REQUEST_PARTITIONS: Final = 10_000
"""The most partitions in one CreateTopics or CreatePartitions. Source: Kafka's `MAX_PARTITIONS_PER_BATCH`."""

BROKER_DEFAULT: Final = -1
"""In a request: the broker's default number of partitions, or replicas."""


class TopicSpec(msgspec.Struct, frozen=True):
    """A topic to create.

    `assignments`: (partition, replicas) as listed by the client; empty leaves them to the broker.
    """

    name: str
    partition_count: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignments: Sequence[tuple[int, Sequence[BrokerId]]] = ()
    configs: Mapping[str, str] = {}


class TopicCreation(msgspec.Struct, frozen=True):
    """The plan that creates a topic, and the values of the response."""

    plan: ChangePlan
    topic_id: TopicId
    partition_count: int
    replication_factor: int


def check_new_topics(topics: Sequence[TopicSpec], *, default_partition_count: int) -> Refusal | None:
    """Returns a refusal if a request asks for too many partitions in total; then none of its topics is created."""
    total = 0
    for topic in topics:
        count = default_partition_count if topic.partition_count == BROKER_DEFAULT else max(0, topic.partition_count)
        total += len(topic.assignments) or count
    if total > MAX_REQUEST_PARTITIONS:
        return Refusal(
            ErrorCode.POLICY_VIOLATION, f"{total} partitions in one request are more than {MAX_REQUEST_PARTITIONS}"
        )
    return None


def plan_create_topic(
    image: MetadataImage,
    topic: TopicSpec,
    *,
    default_partition_count: int,
    default_replication_factor: int,
    random: Random,
    config_refusal: Refusal | None = None,
) -> TopicCreation | Refusal:
    """Plans a topic. Checks in Kafka's order: name, collision, existence, configuration, partitions and replicas.

    `config_refusal` is the caller's verdict on `topic.configs`. Errors: TOPIC_AUTHORIZATION_FAILED for Kafka's own
    metadata topic, INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, the caller's, INVALID_REQUEST,
    INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR, INVALID_PARTITIONS.
    """
    refusal = _check_new_name(image, topic.name) or config_refusal
    if refusal is not None:
        return refusal
    if topic.assignments:
        placed = _check_assignments(image, topic)
    else:
        placed = _place(image, topic, default_partition_count, default_replication_factor, random)
    if isinstance(placed, Refusal):
        return placed
    topic_id = random_uuid(random.randbytes)
    assert topic_id not in image.topic_names, f"the random source repeats itself: {topic_id.hex()}"
    return TopicCreation(_creation_plan(image, topic, topic_id, placed), topic_id, len(placed), len(placed[0]))


def _check_new_name(image: MetadataImage, name: str) -> Refusal | None:
    if name == CLUSTER_METADATA_TOPIC:
        return Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{name} belongs to the broker")
    if name in image.topics or image.hides_topic(name):
        return Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists")
    reason = check_topic_name(name)
    if reason is not None:
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
    other = find_collision(image, name)
    if other is not None:
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with the existing topic '{other}'")
    return None


def _check_assignments(image: MetadataImage, topic: TopicSpec) -> list[tuple[BrokerId, ...]] | Refusal:
    """Returns the replicas that the client chose, by partition."""
    if topic.replication_factor != BROKER_DEFAULT:
        return Refusal(ErrorCode.INVALID_REQUEST, "With an assignment of replicas the replication factor must be -1")
    if topic.partition_count != BROKER_DEFAULT:
        return Refusal(ErrorCode.INVALID_REQUEST, "With an assignment of replicas the number of partitions must be -1")
    found: dict[int, tuple[BrokerId, ...]] = {}
    for number, replicas in topic.assignments:
        if number in found:
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partition {number} is assigned twice")
        reason = check_replicas(image, number, replicas, len(next(iter(found.values()), replicas)))
        reason = reason or check_somebody_stays(image, number, replicas)
        if reason is not None:
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
        found[number] = tuple(replicas)
    if sorted(found) != list(range(len(found))):
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions must be numbered from 0 without a gap")
    return [found[number] for number in range(len(found))]


def _place(
    image: MetadataImage,
    topic: TopicSpec,
    default_partition_count: int,
    default_replication_factor: int,
    random: Random,
) -> list[tuple[BrokerId, ...]] | Refusal:
    count, factor = topic.partition_count, topic.replication_factor
    if factor < BROKER_DEFAULT or factor == 0:
        return Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{factor} replicas; the factor must be positive, or -1 for the default",
        )
    if count < BROKER_DEFAULT or count == 0:
        return Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"The number of partitions is {count}; it must be positive, or -1 for the default",
        )
    count = default_partition_count if count == BROKER_DEFAULT else count
    factor = default_replication_factor if factor == BROKER_DEFAULT else factor
    return place_replicas(image, count, factor, random)


def _creation_plan(
    image: MetadataImage, topic: TopicSpec, topic_id: TopicId, placed: Sequence[tuple[BrokerId, ...]]
) -> ChangePlan:
    records = new_partition_records(image, placed)
    puts = [Put(key, value) for key, value in zip(keys.partitions(topic_id, range(len(placed))), records, strict=True)]
    record = TopicRecord(topic_id_text(topic_id), len(placed))
    head = [Put(keys.topic(topic.name), encode(record)), Put(keys.topic_id(topic_id), topic.name.encode())]
    if topic.configs:
        head.append(Put(keys.topic_config(topic.name), encode(dict(topic.configs))))
    compares = [Compare(keys.topic(topic.name), "create", "==", ABSENT), *brokers_unchanged(image, placed)]
    return _in_steps(puts, head, compares)


def plan_adoption(
    image: MetadataImage,
    name: str,
    topic_id: TopicId,
    leader_epochs: Sequence[int],
    broker_id: BrokerId,
    configs: Mapping[str, str],
) -> ChangePlan:
    """Plans a topic for logs found on this broker's disk: one replica each, in the given leader epochs.

    For a directory written by Apache Kafka and opened by a broker with new metadata. `leader_epochs` are above all
    epochs in the logs. The caller has checked `configs`.
    """
    epoch = image.brokers[broker_id].epoch
    epochs = {broker_id: epoch}
    puts = [
        Put(
            keys.partition(topic_id, number),
            new_partition_record((broker_id,), (broker_id,), epochs, leader_epoch=leader_epoch),
        )
        for number, leader_epoch in enumerate(leader_epochs)
    ]
    head = [
        Put(keys.topic(name), encode(TopicRecord(topic_id_text(topic_id), len(puts)))),
        Put(keys.topic_id(topic_id), name.encode()),
    ]
    if configs:
        head.append(Put(keys.topic_config(name), encode(dict(configs))))
    return _in_steps(puts, head, (Compare(keys.topic(name), "create", "==", ABSENT),))


def plan_producer_ids_from(producer_id: ProducerId) -> ChangePlan:
    """Plans that no producer id below `producer_id` is allocated: the found logs know those.

    For metadata without any allocation yet.
    """
    unused = Compare(keys.NEXT_PRODUCER_ID, "create", "==", ABSENT)
    return ChangePlan((Step((Put(keys.NEXT_PRODUCER_ID, b"%d" % producer_id),), (unused,)),))


def _in_steps(partitions: Sequence[Put], head: Sequence[Put], compares: Sequence[Compare]) -> ChangePlan:
    """Plans partitions in chunks, and the topic's record with the last chunk: until then nothing is visible."""
    chunks = step_sized(partitions)
    last = Step((*head, *chunks[-1]), tuple(compares[:MAX_STEP_COMPARES]))
    return ChangePlan((*(Step(chunk) for chunk in chunks[:-1]), last))
