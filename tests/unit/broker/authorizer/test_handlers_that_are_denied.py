"""Responses of a handler when the authorizer refuses: Kafka's codes, and no change."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.authorizer.authorizer import ALLOW_ALL, Audit, Requester, allowed_topics
from lowtide.broker.authorizer.resources import CLUSTER, Operation, Resource, ResourceType, topic
from lowtide.broker.guards.guard import guarded
from lowtide.broker.handlers import (
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_topics,
    elect_leaders,
    fetch,
    list_partition_reassignments,
)
from lowtide.broker.security.principal import ANONYMOUS
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
from lowtide.replication.topic_traffic import TrafficTable

ID = b"1" * 16
SOMEBODY: Any = SimpleNamespace(principal=ANONYMOUS, client_address="127.0.0.1")
DENIED, CLUSTER_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class Only:
    """Allows exactly these."""

    allows_all = False
    audits_allowed = False

    def __init__(self, *allowed: tuple[Operation, Resource]) -> None:
        self.allowed = allowed
        self.asked: list[tuple[Requester, Operation, Resource]] = []

    def authorize(
        self, requester: Requester, operation: Operation, resource: Resource, audit: Audit = Audit.BOTH
    ) -> bool:
        self.asked.append((requester, operation, resource))
        return (operation, resource) in self.allowed

    def write_grants(self, requester: Requester) -> None:
        return None

    def authorize_by_resource_type(self, requester: Requester, operation: Operation, kind: ResourceType) -> bool:
        return any(allowed == operation and resource.type == kind for allowed, resource in self.allowed)


def administrator(authorizer: Only) -> Any:
    """Stands for a broker's parts; any use beyond reading fails."""
    known = TopicImage("t", ID, (PartitionImage((0,), (0,), (1,), 0, 0, 0, 1),), {}, 1)
    image = MetadataImage(revision=1, topics={"t": known}, topic_names={ID: "t"})
    config = SimpleNamespace(
        num_partitions=1, delete_topic_enable=True, fetch_max_bytes=1, values={"replica.selector.class": None}
    )
    broker = SimpleNamespace(authorizer=authorizer, config=config, metadata=SimpleNamespace(image=image), sessions=None)
    broker.replicas = SimpleNamespace(traffic=TrafficTable())
    broker.clock = SimpleNamespace(monotonic_ms=lambda: 0)
    return SimpleNamespace(broker=broker, limits=None, resolve=lambda wanted: resolve_deletions(image, wanted))


def answer(handler: Any, request: Any, version: int | None = None, broker: Any = None) -> Any:
    """From a handler, behind its guard if it has one."""
    if broker is not None:
        handler = guarded(handler, handler.guard, broker)
    context = SimpleNamespace(
        api_version=type(request).VERSIONS.high if version is None else version,
        principal=ANONYMOUS,
        client_id="c",
        forwarded=False,
    )
    if handler.handle is not None:
        return handler.handle(request, context)
    return asyncio.run(handler.handle_later(request, context))


def test_topics_are_not_created_or_grown() -> None:
    authorizer = Only()
    parts = administrator(authorizer)
    wanted = CreatableTopic(name="n", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    (row,) = answer(
        create_topics.handler(parts),
        CreateTopicsRequest(topics=[wanted], timeout_ms=1, validate_only=False),
        broker=parts.broker,
    ).topics
    assert (row.name, row.error_code) == ("n", DENIED)
    growth = CreatePartitionsTopic(name="t", count=2, assignments=None)
    request = CreatePartitionsRequest(topics=[growth], timeout_ms=1, validate_only=False)
    (row,) = answer(create_partitions.handler(parts), request, broker=parts.broker).results
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
    """Only an authorized client learns whether the topic exists, and its name."""
    request = DeleteTopicsRequest(topics=[wanted], topic_names=[], timeout_ms=1)
    parts = administrator(Only(*allowed))
    (row,) = answer(delete_topics.handler(parts), request, broker=parts.broker).responses
    name, topic_id, code = told
    assert (row.name, row.error_code) == (name, code)
    assert row.topic_id in {topic_id, ID if name == "t" and wanted.name == "t" and allowed else topic_id}


def test_the_cluster_is_not_changed() -> None:
    parts = administrator(Only())
    elections = ElectLeadersRequest(topic_partitions=[ElectLeadersTopicPartitions(topic="t", partitions=[0])])
    assert answer(elect_leaders.handler(parts), elections, broker=parts.broker).error_code == CLUSTER_DENIED
    moves = [ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0, replicas=[1])])]
    changed = answer(
        alter_partition_reassignments.handler(parts),
        AlterPartitionReassignmentsRequest(topics=moves),
        broker=parts.broker,
    )
    assert (changed.error_code, changed.responses[0].partitions[0].error_code) == (CLUSTER_DENIED, CLUSTER_DENIED)
    assert (
        answer(
            list_partition_reassignments.handler(parts.broker), ListPartitionReassignmentsRequest(), broker=parts.broker
        ).error_code
        == CLUSTER_DENIED
    )


def test_an_unauthorized_client_is_no_replica() -> None:
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


def test_where_nothing_is_forbidden_the_authorizer_is_not_called() -> None:
    """Every broker has this configuration now."""
    assert allowed_topics(ALLOW_ALL, SOMEBODY, Operation.DELETE, ["a", "b"]) == {"a", "b"}
    assert ALLOW_ALL.authorize(SOMEBODY, Operation.ALTER, CLUSTER)
    assert allowed_topics(Only((Operation.DELETE, topic("a"))), SOMEBODY, Operation.DELETE, ["a", "b"]) == {"a"}
