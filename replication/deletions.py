"""Plans the deletion of topics, as many per transaction as fit.

Pure: an image and a request go in, a plan or refusals come out. One transaction per topic would cost a sync, and a
change of the image on every broker, for each.

Sources: Kafka's `ControllerApis.deleteTopics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan, Step, step_sized
from lowtide.metadata.image import MetadataImage, TopicImage
from lowtide.metadata.store import MAX_TRANSACTION_OPERATIONS, Compare, Delete, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId
from lowtide.replication.refusal import Refusal
from lowtide.replication.steps import MAX_STEP_COMPARES


class TopicDeletion(msgspec.Struct, frozen=True):
    """One row of a DeleteTopics answer: a topic to delete, or a refusal. Name and id are those for the client.

    `by_id`: the client named the topic by its id.
    """

    name: str | None
    topic_id: TopicId
    topic: TopicImage | None = None
    refusal: Refusal | None = None
    by_id: bool = False


def resolve_deletions(image: MetadataImage, wanted: Sequence[tuple[str | None, TopicId]]) -> list[TopicDeletion]:
    """Resolves the topics of a DeleteTopics, by name or by id: one row for each, in the order of the request.

    Errors: INVALID_REQUEST for neither or both of name and id, and for a topic listed twice (one row); for a missing
    topic UNKNOWN_TOPIC_OR_PARTITION by name and UNKNOWN_TOPIC_ID by id.
    """
    rows: list[TopicDeletion] = []
    counts = Counter(wanted)
    meant: set[TopicId] = set()
    for name, topic_id in dict.fromkeys(wanted):
        by_name, by_id = name is not None, topic_id != ZERO_TOPIC_ID
        if by_name == by_id:
            text = "Both name and id of a topic are given" if by_name else "Neither name nor id of a topic is given"
            rows += [TopicDeletion(name, topic_id, refusal=Refusal(ErrorCode.INVALID_REQUEST, text))] * counts[
                name, topic_id
            ]
            continue
        topic = image.topics.get(name) if name is not None else image.topic_by_id(topic_id)
        if counts[name, topic_id] > 1:
            rows.append(
                TopicDeletion(
                    name, topic_id, refusal=Refusal(ErrorCode.INVALID_REQUEST, "The topic is named more than once")
                )
            )
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
    return Refusal(
        ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no such topic"
    )


def plan_deletion(image: MetadataImage, deletion: TopicDeletion) -> ChangePlan | Refusal:
    """Plans the deletion of a row's topic, or returns its refusal; a topic deleted meanwhile counts as missing.

    A topic that was created again under the same name is a different topic and stays.
    """
    if deletion.refusal is not None:
        return deletion.refusal
    topic = image.topic_by_id(deletion.topic_id)
    if topic is None:
        return _no_such_topic(by_id=deletion.by_id)
    return plan_delete_topic(topic, image.loose_partitions.get(topic.topic_id, ()))


def plan_delete_topic(topic: TopicImage, leftovers: Iterable[int] = ()) -> ChangePlan:
    """Plans the deletion of a topic. The first step deletes its record, and with it the topic.

    Further steps delete its partitions.

    The same transaction writes the tombstone, without which no broker removes a log of the topic. `leftovers` are
    partition numbers beyond the topic's count, left by an unfinished growth.
    """
    numbers = (*range(len(topic.partitions)), *leftovers)
    chunks = step_sized([Delete(key) for key in keys.partitions(topic.topic_id, numbers)])
    record = keys.topic(topic.name)
    tombstone = Put(keys.deleted_topic(topic.topic_id), topic.name.encode())
    head = (Delete(record), Delete(keys.topic_id(topic.topic_id)), Delete(keys.topic_config(topic.name)), tombstone)
    unchanged = Compare(record, "modify", "==", topic.modify_revision)
    return ChangePlan((Step((*head, *chunks[0]), (unchanged,)), *(Step(chunk) for chunk in chunks[1:])))


class DeletionGroup(msgspec.Struct, frozen=True):
    """Topics that are deleted together, by the caller's numbers: all of them, or none if one has changed meanwhile."""

    members: tuple[int, ...]
    plan: ChangePlan


def plan_deletions(
    image: MetadataImage, wanted: Mapping[int, TopicDeletion]
) -> tuple[list[DeletionGroup], dict[int, Refusal]]:
    """Plans the deletion of topics and returns the refusals.

    A topic that needs several transactions is in a group of its own.
    """
    groups: list[DeletionGroup] = []
    refusals: dict[int, Refusal] = {}
    members: list[int] = []
    together: list[Step] = []

    def close() -> None:
        if members:
            operations = tuple(operation for step in together for operation in step.operations)
            compares = tuple(compare for step in together for compare in step.compares)
            groups.append(DeletionGroup(tuple(members), ChangePlan((Step(operations, compares),))))
            members.clear()
            together.clear()

    for number, deletion in wanted.items():
        plan = plan_deletion(image, deletion)
        if isinstance(plan, Refusal):
            refusals[number] = plan
        elif len(plan.steps) > 1:
            groups.append(DeletionGroup((number,), plan))
        else:
            (step,) = plan.steps
            if not _fits(together, step):
                close()
            members.append(number)
            together.append(step)
    close()
    return groups, refusals


def _fits(steps: list[Step], another: Step) -> bool:
    operations = sum(len(step.operations) for step in (*steps, another))
    compares = sum(len(step.compares) for step in (*steps, another))
    return operations <= MAX_TRANSACTION_OPERATIONS and compares <= MAX_STEP_COMPARES
