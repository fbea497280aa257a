"""What a handler answers when its question is answered no: Kafka's codes, and nothing is done."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.authorizer import ALLOW_ALL, CLUSTER, Operation, Resource, allowed_topics, topic
from lowtide.broker.handlers import (
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_topics,
    elect_leaders,
    fetch,
    list_partition_reassignments,
)
from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from lowtide.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lowtide.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersTopicPartitions
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from lowtide.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.replication.deletions import resolve_deletions

ID = b"1" * 16
DENIED, CLUSTER_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class Only:
    """Allows exactly these."""

    allows_all = False

    def __init__(self, *allowed: tuple[Operation, Resource]) -> None:
        self.allowed = allowed
        self.asked: list[tuple[str, Operation, Resource]] = []

    def authorize(self, principal: str, operation: Operation, resource: Resource) -> bool:
        self.asked.append((principal, operation, resource))
        return (operation, resource) in self.allowed


def administrator(authorizer: Only) -> Any:
    """Stands for a broker's parts; whatever is done with it beyond looking fails."""
    known = TopicImage("t", ID, (PartitionImage((0,), (0,), (1,), 0, 0, 0, 1),), {}, 1)
    image = MetadataImage(revision=1, topics={"t": known}, topic_names={ID: "t"})
    config = SimpleNamespace(num_partitions=1, delete_topic_enable=True, fetch_max_bytes=1, values={"replica.selector.class": None})
    broker = SimpleNamespace(authorizer=authorizer, config=config, metadata=SimpleNamespace(image=image), replicas=None, sessions=None)
    broker.clock = SimpleNamespace(monotonic_ms=lambda: 0)
    return SimpleNamespace(broker=broker, limits=None, resolve=lambda wanted: resolve_deletions(image, wanted))


def answer(handler: Any, request: Any, version: int | None = None) -> Any:
    context = SimpleNamespace(api_version=type(request).VERSIONS.high if version is None else version, principal="User:ANONYMOUS")
    if handler.handle is not None:
        return handler.handle(request, context)
    return asyncio.run(handler.handle_later(request, context))


def test_topics_are_not_made_or_grown() -> None:
    authorizer = Only()
    parts = administrator(authorizer)
    wanted = CreatableTopic(name="n", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    (row,) = answer(create_topics.handler(parts), CreateTopicsRequest(topics=[wanted], timeout_ms=1, validate_only=False)).topics
    assert (row.name, row.error_code) == ("n", DENIED)
    growth = CreatePartitionsTopic(name="t", count=2, assignments=None)
    request = CreatePartitionsRequest(topics=[growth], timeout_ms=1, validate_only=False)
    (row,) = answer(create_partitions.handler(parts), request).results
    assert (row.name, row.error_code) == ("t", DENIED)
    assert [each[1:] for each in authorizer.asked] == [
        (Operation.CREATE, CLUSTER),
        (Operation.CREATE, topic("n")),
        (Operation.ALTER, topic("t")),
    ]


@pytest.mark.parametrize(
    ("allowed", "wanted", "told"),
    [
        ((), DeleteTopicState(name="t"), ("t", ZERO_TOPIC_ID, DENIED)),
        ((), DeleteTopicState(name="none"), ("none", ZERO_TOPIC_ID, DENIED)),
        ((), DeleteTopicState(name=None, topic_id=ID), (None, ID, DENIED)),
        (((Operation.DESCRIBE, topic("t")),), DeleteTopicState(name=None, topic_id=ID), ("t", ID, DENIED)),
        (
            ((Operation.DESCRIBE, topic("none")),),
            DeleteTopicState(name="none"),
            ("none", ZERO_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ),
    ],
)
def test_topics_are_not_deleted(allowed: tuple[Any, ...], wanted: DeleteTopicState, told: tuple[Any, ...]) -> None:
    """Whether there is such a topic, and how it is called, is told only to who may know."""
    request = DeleteTopicsRequest(topics=[wanted], topic_names=[], timeout_ms=1)
    (row,) = answer(delete_topics.handler(administrator(Only(*allowed))), request).responses
    name, topic_id, code = told
    assert (row.name, row.error_code) == (name, code)
    assert row.topic_id in {topic_id, ID if name == "t" and wanted.name == "t" and allowed else topic_id}


def test_the_cluster_is_not_changed() -> None:
    parts = administrator(Only())
    elections = ElectLeadersRequest(topic_partitions=[ElectLeadersTopicPartitions(topic="t", partitions=[0])])
    assert answer(elect_leaders.handler(parts), elections).error_code == CLUSTER_DENIED
    moves = [ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0, replicas=[1])])]
    changed = answer(alter_partition_reassignments.handler(parts), AlterPartitionReassignmentsRequest(topics=moves))
    assert (changed.error_code, changed.responses[0].partitions[0].error_code) == (CLUSTER_DENIED, CLUSTER_DENIED)
    assert answer(list_partition_reassignments.handler(parts.broker), ListPartitionReassignmentsRequest()).error_code == CLUSTER_DENIED


def test_nobody_is_a_replica_who_may_not_be() -> None:
    """A forged replica id gets no records."""
    authorizer = Only()
    row = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=2, replica_epoch=5),
        max_wait_ms=0,
        min_bytes=1,
        topics=[FetchTopic(topic_id=ID, partitions=[row])],
    )
    response = answer(fetch.handler(administrator(authorizer).broker), request, 17)
    assert response.responses[0].topic_id == ID
    assert response.responses[0].partitions[0].error_code == DENIED
    assert [each[1:] for each in authorizer.asked] == [(Operation.CLUSTER_ACTION, CLUSTER)]


def test_where_nothing_is_forbidden_nobody_is_asked() -> None:
    """That is what every broker has now."""
    assert allowed_topics(ALLOW_ALL, "User:x", Operation.DELETE, ["a", "b"]) == {"a", "b"}
    assert ALLOW_ALL.authorize("User:x", Operation.ALTER, CLUSTER)
    assert allowed_topics(Only((Operation.DELETE, topic("a"))), "User:x", Operation.DELETE, ["a", "b"]) == {"a"}
