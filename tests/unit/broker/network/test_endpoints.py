"""What clients of each listener receive about a cluster: brokers, leaders and offline replicas, by Kafka's rules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.handlers.metadata import handler
from lowtide.broker.network.endpoints import controller_for, endpoints_for
from lowtide.broker.turns import Turns
from lowtide.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.records import Listener
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from lowtide.protocol.types import TopicPartition

ONE_SLICE: Any = Turns(None, SimpleNamespace(monotonic_ms=lambda: 0))
"""No time passes: each response is there at once."""

TOPIC_ID = b"t" * 16


def broker(number: int, *names: str) -> BrokerImage:
    return BrokerImage(
        number, number + 10, tuple(Listener(name, f"{name.lower()}-{number}", 9092) for name in names), f"rack-{number}"
    )


def partition(leader: int, in_sync: tuple[int, ...] = (1, 2, 3)) -> PartitionImage:
    return PartitionImage((1, 2, 3), in_sync, tuple(10 + member for member in in_sync), leader, 4, 7, 3)


def cluster(*states: PartitionImage, **changes: Any) -> MetadataImage:
    """Broker 3 has no listener OUTSIDE, and is controller."""
    brokers = {1: broker(1, "OUTSIDE", "INSIDE"), 2: broker(2, "INSIDE", "OUTSIDE"), 3: broker(3, "INSIDE")}
    topic = TopicImage("t", TOPIC_ID, states, {}, 3)
    image = MetadataImage(9, "c", 3, 1, brokers, {"t": topic}, {TOPIC_ID: "t"})
    return msgspec.structs.replace(image, **changes)


class Asked:
    """The handler of broker 1."""

    def __init__(self, image: MetadataImage) -> None:
        self.session = SimpleNamespace(image=image)
        self.replicas = SimpleNamespace(broker_id=1, offline=SimpleNamespace(keys=frozenset()))
        context: Any = SimpleNamespace(
            metadata=self.session, replicas=self.replicas, config=load_config(), turns=ONE_SLICE, log=None
        )
        handle = handler(context, SimpleNamespace()).handle
        assert handle is not None
        self._handle = handle

    def answer(self, listener_name: str, version: int = 12, name: str | None = "t") -> MetadataResponse:
        topics = None if name is None else [MetadataRequestTopic(name=name)]
        context = SimpleNamespace(api_version=version, connection=SimpleNamespace(listener_name=listener_name))
        answer = self._handle(MetadataRequest(topics=topics), context)
        assert isinstance(answer, MetadataResponse)
        return answer

    def rows(self, listener_name: str, version: int = 12) -> list[MetadataResponsePartition]:
        return self.answer(listener_name, version).topics[0].partitions


def addresses(answer: MetadataResponse) -> dict[int, str]:
    return {each.node_id: each.host for each in answer.brokers}


def test_each_listener_has_its_own_addresses() -> None:
    image = cluster()
    assert {each: endpoint.host for each, endpoint in endpoints_for(image, "INSIDE").items()} == {
        1: "inside-1",
        2: "inside-2",
        3: "inside-3",
    }
    assert {each: endpoint.host for each, endpoint in endpoints_for(image, "OUTSIDE").items()} == {
        1: "outside-1",
        2: "outside-2",
    }
    assert endpoints_for(image, "MISSING") == {}


def test_a_controller_that_cannot_be_reached_is_left_out() -> None:
    image = cluster()
    assert controller_for(image, endpoints_for(image, "INSIDE")) == 3
    assert controller_for(image, endpoints_for(image, "OUTSIDE")) == -1


def test_metadata_has_the_addresses_of_the_listener_of_the_request() -> None:
    """The listeners alternate: a response cached for one is not sent to the other."""
    asked = Asked(cluster(partition(1)))
    for _ in range(2):
        assert addresses(asked.answer("OUTSIDE")) == {1: "outside-1", 2: "outside-2"}
        assert addresses(asked.answer("INSIDE")) == {1: "inside-1", 2: "inside-2", 3: "inside-3"}
        assert asked.rows("INSIDE")[0].offline_replicas == []
        assert asked.rows("OUTSIDE")[0].offline_replicas == [3]


@pytest.mark.parametrize(("version", "error"), [(12, ErrorCode.LISTENER_NOT_FOUND), (6, ErrorCode.LISTENER_NOT_FOUND)])
def test_a_leader_without_that_listener_is_reported_as_such(version: int, error: ErrorCode) -> None:
    row = Asked(cluster(partition(3))).rows("OUTSIDE", version)[0]
    assert (row.error_code, row.leader_id, row.leader_epoch) == (error, -1, 4)
    assert (row.replica_nodes, row.isr_nodes, row.offline_replicas) == ([1, 2, 3], [1, 2, 3], [3])


def test_older_clients_receive_an_error_that_they_know() -> None:
    asked = Asked(cluster(partition(3)))
    assert [asked.rows("OUTSIDE", version)[0].error_code for version in (6, 5, 1, 6)] == [
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.LISTENER_NOT_FOUND,
    ]


def test_the_first_version_leaves_out_brokers_that_are_gone() -> None:
    gone = cluster(partition(1)).brokers
    row = Asked(cluster(partition(1), brokers={1: gone[1], 2: gone[2]})).rows("INSIDE", 0)[0]
    assert (row.error_code, row.leader_id) == (ErrorCode.REPLICA_NOT_AVAILABLE, 1)
    assert (row.replica_nodes, row.isr_nodes) == ([1, 2], [1, 2])


@pytest.mark.parametrize("leader", [-1, 2])
def test_a_partition_whose_leader_is_gone_has_none(leader: int) -> None:
    """This holds also while the metadata still has it as leader."""
    image = cluster(partition(leader, (2,)))
    row = Asked(msgspec.structs.replace(image, brokers={1: image.brokers[1], 3: image.brokers[3]})).rows("INSIDE")[0]
    assert (row.error_code, row.leader_id, row.offline_replicas) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, [2])


def test_replicas_in_failed_log_directories_are_offline() -> None:
    """Those of any broker by the metadata, and those of this broker at once by its own state."""
    asked = Asked(cluster(partition(3), partition(3), offline_replicas={2: {TOPIC_ID: frozenset({0})}}))
    assert [row.offline_replicas for row in asked.rows("INSIDE")] == [[2], []]
    asked.replicas.offline.keys = frozenset({TopicPartition("t", 1)})
    assert [row.offline_replicas for row in asked.rows("INSIDE")] == [[2], [1]]
    assert [row.isr_nodes for row in asked.rows("INSIDE")] == [[1, 2, 3], [2, 3]]


def test_a_cached_response_is_dropped_when_a_broker_ends() -> None:
    image = cluster(partition(1))
    asked = Asked(image)
    assert asked.rows("INSIDE")[0].offline_replicas == []
    asked.session.image = msgspec.structs.replace(
        image, revision=10, brokers={1: image.brokers[1], 3: image.brokers[3]}
    )
    assert asked.rows("INSIDE")[0].offline_replicas == [2]
    assert addresses(asked.answer("INSIDE", name=None)) == {1: "inside-1", 3: "inside-3"}
    asked.session.image = msgspec.structs.replace(image, revision=11, offline_replicas={3: {TOPIC_ID: frozenset({0})}})
    assert asked.rows("INSIDE")[0].offline_replicas == [3]
