"""What the controller decides: which topics come and go, and who leads each partition.

Pure: an image and a wish go in, a plan of changes or a refusal comes out. The plans carry every comparison that they rely on, so that
one which was decided on an image that is no longer true conflicts in the store and does no harm.

Guards: a topic becomes visible with all its partitions or not at all; a leader is elected only among in-sync replicas whose broker is
alive; the in-sync set never becomes empty; a leadership never survives the registration under which it was won.

Does not do: checking the values of configurations, authorisation (both are the caller's), replacing replicas.
Sources: Kafka's `ReplicationControlManager`, `ControllerApis`, `Topic`; KIP-497, KIP-841, KIP-903.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.changes import FENCES, NO_CHANGE, STEP_PARTITIONS, ChangePlan, Step
from lowtide.metadata.records import NO_LEADER, PartitionRecord, TopicRecord, encode
from lowtide.metadata.store import ABSENT, MAX_TRANSACTION_OPERATIONS, Compare, Delete, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import ZERO_TOPIC_ID, topic_id_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
    from lowtide.protocol.types import BrokerEpoch, BrokerId, ProducerId, TopicId
    from lowtide.runtime.random import Random

MAX_TOPIC_NAME_LENGTH: Final = 249
"""So that `<topic>-<partition>.<uuid>-delete` is a file name. Source: Kafka's `Topic`."""

MAX_REQUEST_PARTITIONS: Final = 10_000
"""Partitions that one CreateTopics, or one CreatePartitions, may ask for. Source: Kafka's `MAX_PARTITIONS_PER_BATCH`."""

BROKER_DEFAULT: Final = -1
"""Stands in a request for the broker's own number of partitions, or replicas."""

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
"""Kafka's own metadata log. Not to be created, here neither: tools take it for what it is in Kafka."""

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)

MAX_STEP_COMPARES: Final = MAX_TRANSACTION_OPERATIONS - FENCES
"""Comparisons that a step may have of its own."""


MAX_MESSAGE_CHARACTERS: Final = 2000
"""A refusal's sentence may quote what a client sent, and a text on the wire has at most 32,767 bytes."""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why something is not done: the code for the answer, and one sentence, cut where it is very long."""

    error_code: ErrorCode
    message: str

    def __post_init__(self) -> None:
        if len(self.message) > MAX_MESSAGE_CHARACTERS:
            msgspec.structs.force_setattr(self, "message", f"{self.message[:MAX_MESSAGE_CHARACTERS]}...")


class NewTopic(msgspec.Struct, frozen=True):
    """A topic to be made. `assignments`: (partition, its replicas), as the client lists them, or empty to leave that to the broker."""

    name: str
    partition_count: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignments: Sequence[tuple[int, Sequence[BrokerId]]] = ()
    configs: Mapping[str, str] = {}


class TopicCreation(msgspec.Struct, frozen=True):
    """How a topic is made, and what the client is told of it."""

    plan: ChangePlan
    topic_id: TopicId
    partition_count: int
    replication_factor: int


class TopicDeletion(msgspec.Struct, frozen=True):
    """One row of a DeleteTopics answer: a topic to delete, or a refusal. Name and id as they are told to the client.

    `by_id`: the client named the topic by its id.
    """

    name: str | None
    topic_id: TopicId
    topic: TopicImage | None = None
    refusal: Refusal | None = None
    by_id: bool = False


# Names


def check_topic_name(name: str) -> str | None:
    """What is wrong with a topic's name, or None."""
    if not name:
        return "Topic name is invalid: it is empty"
    if name in {".", ".."}:
        return f"Topic name is invalid: {name!r} is not allowed"
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        return f"Topic name is invalid: {len(name)} characters are more than {MAX_TOPIC_NAME_LENGTH}"
    if not _LEGAL_NAME.fullmatch(name):
        return f"Topic name is invalid: {name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def find_collision(image: MetadataImage, name: str) -> str | None:
    """An existing other topic whose name differs from `name` only in `.` against `_`: metrics can't tell the two apart."""
    if "." not in name and "_" not in name:
        return None
    unified = name.replace(".", "_")
    return next((other for other in image.topics if other != name and other.replace(".", "_") == unified), None)


def new_topic_id(random: Random) -> TopicId:
    """A random id (UUID version 4) whose text doesn't begin with a dash, for tools take that for an option. Source: Kafka's `Uuid`."""
    while True:
        value = bytearray(random.randbytes(16))
        value[6] = value[6] & 0x0F | 0x40
        value[8] = value[8] & 0x3F | 0x80
        if not topic_id_text(bytes(value)).startswith("-"):
            return bytes(value)


# Creating topics


def check_new_topics(topics: Sequence[NewTopic], *, default_partition_count: int) -> Refusal | None:
    """Whether a request asks for too many partitions in all; then none of its topics is made."""
    total = 0
    for topic in topics:
        count = default_partition_count if topic.partition_count == BROKER_DEFAULT else max(0, topic.partition_count)
        total += len(topic.assignments) or count
    if total > MAX_REQUEST_PARTITIONS:
        return Refusal(ErrorCode.POLICY_VIOLATION, f"{total} partitions in one request are more than {MAX_REQUEST_PARTITIONS}")
    return None


def repeated_names(names: Iterable[str]) -> frozenset[str]:
    """Names that a request has more than once: each is answered by one row with INVALID_REQUEST, and not made."""
    return frozenset(name for name, count in Counter(names).items() if count > 1)


def plan_create_topic(
    image: MetadataImage,
    topic: NewTopic,
    *,
    default_partition_count: int,
    default_replication_factor: int,
    random: Random,
    config_refusal: Refusal | None = None,
) -> TopicCreation | Refusal:
    """How to make `topic`, checked in Kafka's order: name, collision, existence, configuration, partitions and replicas.

    `config_refusal` is what the caller found wrong with the values of `topic.configs`.
    Refusals: TOPIC_AUTHORIZATION_FAILED for Kafka's own metadata topic, INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, the caller's,
    INVALID_REQUEST, INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR, INVALID_PARTITIONS.
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
    topic_id = new_topic_id(random)
    assert topic_id not in image.topic_names, f"the random source repeats itself: {topic_id.hex()}"
    return TopicCreation(_creation_plan(image, topic, topic_id, placed), topic_id, len(placed), len(placed[0]))


def _check_new_name(image: MetadataImage, name: str) -> Refusal | None:
    if name == CLUSTER_METADATA_TOPIC:
        return Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{name} belongs to the broker")
    if name in image.topics:
        return Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists")
    reason = check_topic_name(name)
    if reason is not None:
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
    other = find_collision(image, name)
    if other is not None:
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with the existing topic '{other}'")
    return None


def _check_assignments(image: MetadataImage, topic: NewTopic) -> list[tuple[BrokerId, ...]] | Refusal:
    """The replicas that the client chose, by partition."""
    if topic.replication_factor != BROKER_DEFAULT:
        return Refusal(ErrorCode.INVALID_REQUEST, "With an assignment of replicas the replication factor must be -1")
    if topic.partition_count != BROKER_DEFAULT:
        return Refusal(ErrorCode.INVALID_REQUEST, "With an assignment of replicas the number of partitions must be -1")
    found: dict[int, tuple[BrokerId, ...]] = {}
    for number, replicas in topic.assignments:
        if number in found:
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partition {number} is assigned twice")
        reason = check_replicas(image, number, replicas, len(next(iter(found.values()), replicas)))
        if reason is not None:
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
        found[number] = tuple(replicas)
    if sorted(found) != list(range(len(found))):
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions must be numbered from 0 without a gap")
    return [found[number] for number in range(len(found))]


def check_replicas(image: MetadataImage, number: int, replicas: Sequence[BrokerId], factor: int) -> str | None:
    """What is wrong with the replicas that a client chose for a partition, or None. `factor` is how many the topic's others have."""
    if not replicas:
        return f"Partition {number} has an empty list of replicas"
    for broker_id in sorted(replicas):
        if broker_id not in image.brokers:
            return f"Partition {number} names broker {broker_id}, which is not registered"
        if list(replicas).count(broker_id) > 1:
            return f"Partition {number} names broker {broker_id} more than once"
    if len(replicas) != factor:
        return f"Partition {number} has {len(replicas)} replicas, those before it have {factor}"
    return None


def _place(
    image: MetadataImage, topic: NewTopic, default_partition_count: int, default_replication_factor: int, random: Random
) -> list[tuple[BrokerId, ...]] | Refusal:
    count, factor = topic.partition_count, topic.replication_factor
    if factor < BROKER_DEFAULT or factor == 0:
        return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, f"{factor} replicas; the factor must be positive, or -1 for the default")
    if count < BROKER_DEFAULT or count == 0:
        return Refusal(ErrorCode.INVALID_PARTITIONS, f"The number of partitions is {count}; it must be positive, or -1 for the default")
    count = default_partition_count if count == BROKER_DEFAULT else count
    factor = default_replication_factor if factor == BROKER_DEFAULT else factor
    return place_replicas(image, count, factor, random)


def place_replicas(image: MetadataImage, count: int, factor: int, random: Random) -> list[tuple[BrokerId, ...]] | Refusal:
    """Replicas for `count` partitions: leaders in turn over all live brokers from a random one, followers at growing distances.

    Refusals: INVALID_REPLICATION_FACTOR with fewer live brokers than `factor`.
    """
    live = sorted(image.brokers)
    if factor > len(live):
        return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, f"{factor} replicas can't be placed: {len(live)} brokers are alive")
    first = random.randrange(len(live))
    placed = []
    period = len(live) * max(len(live) - 1, 1)  # Then all combinations have come, and come again.
    for number in range(min(count, period)):
        leader = first + number
        # After each round over the brokers the followers move on by one, so that a dead broker's load falls on all others.
        shift = number // len(live)
        others = [1 + (shift + distance) % (len(live) - 1) for distance in range(factor - 1)]
        placed.append(tuple(live[(leader + distance) % len(live)] for distance in [0, *others]))
    return [placed[number % period] for number in range(count)]


def _creation_plan(image: MetadataImage, topic: NewTopic, topic_id: TopicId, placed: Sequence[tuple[BrokerId, ...]]) -> ChangePlan:
    epochs = {broker_id: broker.epoch for broker_id, broker in image.brokers.items()}
    records = {each: new_partition_record(each, epochs) for each in dict.fromkeys(placed)}
    puts = [Put(key, records[each]) for key, each in zip(keys.partitions(topic_id, range(len(placed))), placed, strict=True)]
    record = TopicRecord(topic_id_text(topic_id), len(placed))
    head = [Put(keys.topic(topic.name), encode(record)), Put(keys.topic_id(topic_id), topic.name.encode())]
    if topic.configs:
        head.append(Put(keys.topic_config(topic.name), encode(dict(topic.configs))))
    compares = [Compare(keys.topic(topic.name), "create", "==", ABSENT)]
    replicas = {broker_id for each in placed for broker_id in each}
    compares += [Compare(keys.broker(broker_id), "create", "==", epochs[broker_id]) for broker_id in sorted(replicas)]
    return _in_steps(puts, head, compares)


def new_partition_record(replicas: tuple[BrokerId, ...], epochs: Mapping[BrokerId, BrokerEpoch]) -> bytes:
    """The record of a partition that begins with all its replicas in sync, the first leading."""
    return encode(
        PartitionRecord(
            replicas=replicas,
            isr=replicas,
            isr_epochs=tuple(epochs[broker_id] for broker_id in replicas),
            leader=replicas[0],
            leader_epoch=0,
            partition_epoch=0,
        )
    )


def plan_adoption(
    image: MetadataImage, name: str, topic_id: TopicId, leader_epochs: Sequence[int], broker_id: BrokerId, configs: Mapping[str, str]
) -> ChangePlan:
    """How to take over a topic whose logs were found on this broker's disk: one replica each, in the leader epochs given.

    For a directory that Apache Kafka has written, opened by a broker whose metadata are new. `leader_epochs` are above all that the logs
    have seen. `configs` have been checked.
    """
    epoch = image.brokers[broker_id].epoch
    puts = [
        Put(
            keys.partition(topic_id, number),
            encode(
                PartitionRecord(
                    replicas=(broker_id,),
                    isr=(broker_id,),
                    isr_epochs=(epoch,),
                    leader=broker_id,
                    leader_epoch=leader_epoch,
                    partition_epoch=0,
                )
            ),
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
    """Hand out no producer id below `producer_id`: those below are known to logs that were found. For metadata without any yet."""
    unused = Compare(keys.NEXT_PRODUCER_ID, "create", "==", ABSENT)
    return ChangePlan((Step((Put(keys.NEXT_PRODUCER_ID, b"%d" % producer_id),), (unused,)),))


def _in_steps(partitions: Sequence[Put], head: Sequence[Put], compares: Sequence[Compare]) -> ChangePlan:
    """Partitions first, in chunks; the topic's record last, with the last chunk: until then nobody sees any of it."""
    chunks = [tuple(partitions[start : start + STEP_PARTITIONS]) for start in range(0, len(partitions), STEP_PARTITIONS)]
    last = Step((*head, *chunks[-1]), tuple(compares[:MAX_STEP_COMPARES]))
    return ChangePlan((*(Step(chunk) for chunk in chunks[:-1]), last))


# Deleting topics


def resolve_deletions(image: MetadataImage, wanted: Sequence[tuple[str | None, TopicId]]) -> list[TopicDeletion]:
    """Which topics a DeleteTopics means, by name or by id: one row for each, in the order of the request.

    Refusals: INVALID_REQUEST for neither or both of name and id, and for a topic that is meant twice (one row); for one that doesn't
    exist UNKNOWN_TOPIC_OR_PARTITION by name and UNKNOWN_TOPIC_ID by id.
    """
    rows: list[TopicDeletion] = []
    counts = Counter(wanted)
    meant: set[TopicId] = set()
    for name, topic_id in dict.fromkeys(wanted):
        by_name, by_id = name is not None, topic_id != ZERO_TOPIC_ID
        if by_name == by_id:
            text = "Both name and id of a topic are given" if by_name else "Neither name nor id of a topic is given"
            rows += [TopicDeletion(name, topic_id, refusal=Refusal(ErrorCode.INVALID_REQUEST, text))] * counts[name, topic_id]
            continue
        topic = image.topics.get(name) if name is not None else image.topic_by_id(topic_id)
        if counts[name, topic_id] > 1:
            rows.append(TopicDeletion(name, topic_id, refusal=Refusal(ErrorCode.INVALID_REQUEST, "The topic is named more than once")))
        elif topic is None:
            rows.append(TopicDeletion(name, topic_id, refusal=_no_such_topic(by_id=by_id), by_id=by_id))
        elif topic.topic_id in meant:
            text = "The topic is meant by its name and by its id"
            rows = [row for row in rows if row.topic is not topic]
            rows.append(TopicDeletion(topic.name, topic.topic_id, refusal=Refusal(ErrorCode.INVALID_REQUEST, text)))
        else:
            meant.add(topic.topic_id)
            rows.append(TopicDeletion(topic.name, topic.topic_id, topic, by_id=by_id))
    return rows


def _no_such_topic(*, by_id: bool) -> Refusal:
    return Refusal(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no such topic")


def plan_deletion(image: MetadataImage, deletion: TopicDeletion) -> ChangePlan | Refusal:
    """How to delete the topic that a row means, or the row's refusal; when it was deleted since, the one for a topic that doesn't exist.

    A topic that was made anew under the same name is another topic, and stays.
    """
    if deletion.refusal is not None:
        return deletion.refusal
    topic = image.topic_by_id(deletion.topic_id)
    if topic is None:
        return _no_such_topic(by_id=deletion.by_id)
    return plan_delete_topic(topic, image.loose_partitions.get(topic.topic_id, ()))


def plan_delete_topic(topic: TopicImage, leftovers: Iterable[int] = ()) -> ChangePlan:
    """How to delete a topic: its record goes first, and with it the topic; partitions beyond the first chunk follow.

    `leftovers` are numbers beyond the topic's count that an attempt to add partitions left behind.
    """
    partition_keys = [Delete(key) for key in keys.partitions(topic.topic_id, (*range(len(topic.partitions)), *leftovers))]
    chunks = [tuple(partition_keys[start : start + STEP_PARTITIONS]) for start in range(0, len(partition_keys), STEP_PARTITIONS)]
    record = keys.topic(topic.name)
    head = (Delete(record), Delete(keys.topic_id(topic.topic_id)), Delete(keys.topic_config(topic.name)))
    unchanged = Compare(record, "modify", "==", topic.modify_revision)
    return ChangePlan((Step((*head, *chunks[0]), (unchanged,)), *(Step(chunk) for chunk in chunks[1:])))


# Leaders


def plan_controller_work(image: MetadataImage) -> ChangePlan:
    """All that a controller has to do when brokers or the controller changed: leaders, and what an earlier controller left behind.

    Compares the whole image with what should be, so it may be asked at any time, and says nothing when all is well.
    """
    leaders, leftovers = plan_leaders(image), plan_sweep(image)
    return leaders if leftovers.is_empty else ChangePlan(leaders.steps + leftovers.steps)


def plan_leaders(image: MetadataImage) -> ChangePlan:
    """Give every partition the leader and the in-sync set that the live brokers allow.

    After the restart of a sole broker this raises every leader epoch by one: its registration is new, and no leadership survives one.
    """
    steps: list[Step] = []
    compares: dict[bytes, Compare] = {}
    operations: list[Put] = []
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            wanted = elect(image, partition)
            if wanted is None:
                continue
            key = keys.partition(topic.topic_id, number)
            needed = [Compare(key, "modify", "==", partition.modify_revision)]
            if wanted.leader != NO_LEADER:
                needed += [Compare(keys.broker(member), "create", "==", image.brokers[member].epoch) for member in wanted.isr]
            if len(operations) == STEP_PARTITIONS or len(compares) + len(needed) > MAX_STEP_COMPARES:
                steps.append(Step(tuple(operations), tuple(compares.values())))
                compares, operations = {}, []
            compares.update((compare.key, compare) for compare in needed)
            operations.append(Put(key, encode(wanted)))
    if operations:
        steps.append(Step(tuple(operations), tuple(compares.values())))
    return ChangePlan(tuple(steps)) if steps else NO_CHANGE


def elect(image: MetadataImage, partition: PartitionImage) -> PartitionRecord | None:
    """What a partition should become, given the live brokers; None if it is well.

    A member of the in-sync set counts as long as its broker lives under the epoch of its membership. While one such lives, the others
    are dropped, and a leader is chosen among those, in the order of the replicas. When none does, but a member has come back, the first
    of those leads alone. When nobody lives, nobody leads, and the set stays as it is: what its last members have is what was
    acknowledged. The leader epoch grows with every change of leader, and when a leader comes back under a new registration.
    """
    epochs = dict(zip(partition.isr, partition.isr_epochs, strict=True))
    steady = [member for member in partition.isr if (broker := image.brokers.get(member)) and broker.epoch == epochs[member]]
    if partition.leader in steady:
        leader, isr = partition.leader, steady
    elif steady:
        leader = next(replica for replica in partition.replicas if replica in steady)
        isr = steady
    else:
        leader = next((replica for replica in partition.replicas if replica in epochs and replica in image.brokers), NO_LEADER)
        isr = list(partition.isr) if leader == NO_LEADER else [leader]
    isr_epochs = tuple(epochs[member] if leader == NO_LEADER else image.brokers[member].epoch for member in isr)
    stays = leader == partition.leader and (leader == NO_LEADER or leader in steady)
    if stays and tuple(isr) == partition.isr:
        return None
    return PartitionRecord(
        replicas=partition.replicas,
        isr=tuple(isr),
        isr_epochs=isr_epochs,
        leader=leader,
        leader_epoch=partition.leader_epoch + (0 if stays else 1),
        partition_epoch=partition.partition_epoch + 1,
        adding=partition.adding,
        removing=partition.removing,
    )


def plan_sweep(image: MetadataImage) -> ChangePlan:
    """Delete partitions that no topic counts and that were written before this controller was elected: nobody is making them any more.

    A creation or growth by an earlier controller can't go on, for its fence is gone; one by this controller has newer revisions. Each is
    compared: a growth of its topic may write it again at any time.
    """
    leftovers = [
        (keys.partition(topic_id, number), partition.modify_revision)
        for topic_id, partitions in image.loose_partitions.items()
        for number, partition in partitions.items()
        if partition.modify_revision < image.controller_revision
    ]
    chunks = [leftovers[start : start + STEP_PARTITIONS] for start in range(0, len(leftovers), STEP_PARTITIONS)]
    steps = [
        Step(tuple(Delete(key) for key, _ in chunk), tuple(Compare(key, "modify", "==", revision) for key, revision in chunk))
        for chunk in chunks
    ]
    return ChangePlan(tuple(steps)) if steps else NO_CHANGE
