"""Topics created while a broker is down: it is known, so it gets replicas, and catches up when it returns.

Real brokers, one process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lowtide import LowtideCluster
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.describe_cluster import DescribeClusterRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.messages.unregister_broker import UnregisterBrokerRequest
from lowtide.simulation.client import WireClient
from tests.etcd import missing

from . import asking
from .cluster_processes import ClusterProcesses

DEADLINE_S = 120.0


@pytest.fixture
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster(brokers=3) as running:
        yield running


def ask(cluster: LowtideCluster, broker_id: int, request: Any) -> Any:
    async def once() -> Any:
        host, _, port = cluster.address(broker_id).rpartition(":")
        client = await WireClient.connect(host, int(port))
        try:
            return await client.request(request, type(request).VERSIONS.high)
        finally:
            client.close()

    return asyncio.run(once())


def until(condition: Callable[..., bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"the condition does not hold after {DEADLINE_S} s"
        time.sleep(0.02)


def make(cluster: LowtideCluster, broker_id: int, name: str, *, partitions: int = 3) -> ErrorCode:
    """Returns a topic with three replicas."""
    row = CreatableTopic(name=name, num_partitions=partitions, replication_factor=3, assignments=[], configs=[])
    answer = ask(cluster, broker_id, CreateTopicsRequest(topics=[row], timeout_ms=20_000, validate_only=False))
    return ErrorCode(answer.topics[0].error_code)


def partitions_of(cluster: LowtideCluster, broker_id: int, name: str) -> list[Any]:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    return list(ask(cluster, broker_id, request).topics[0].partitions)


def brokers_of(cluster: LowtideCluster, broker_id: int, *, fenced: bool) -> dict[int, bool]:
    """Returns whether each broker is reported as fenced, by id."""
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=fenced)
    return {row.broker_id: row.is_fenced for row in ask(cluster, broker_id, request).brokers}


def grow(cluster: LowtideCluster, broker_id: int, name: str, count: int) -> ErrorCode:
    rows = [CreatePartitionsTopic(name=name, count=count, assignments=None)]
    answer = ask(cluster, broker_id, CreatePartitionsRequest(topics=rows, timeout_ms=20_000, validate_only=False))
    return ErrorCode(answer.results[0].error_code)


def unregister(cluster: LowtideCluster, asked: int, broker_id: int) -> ErrorCode:
    return ErrorCode(ask(cluster, asked, UnregisterBrokerRequest(broker_id=broker_id)).error_code)


def test_topics_get_replicas_on_a_broker_that_is_away(cluster: LowtideCluster) -> None:
    """So do the offsets topic, and added partitions. When the broker returns it joins all ISRs."""
    cluster.stop_broker(3)
    assert brokers_of(cluster, 1, fenced=True) == {1: False, 2: False, 3: True}
    assert brokers_of(cluster, 1, fenced=False) == {1: False, 2: False}
    assert make(cluster, 1, "t") == ErrorCode.NONE
    assert grow(cluster, 2, "t", 5) == ErrorCode.NONE
    found = ask(cluster, 2, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])).coordinators[0]
    until(lambda: len(partitions_of(cluster, 1, "__consumer_offsets")) > 0)
    assert found.error_code in {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    names = {"t": 5, "__consumer_offsets": len(partitions_of(cluster, 1, "__consumer_offsets"))}
    for name, count in names.items():
        rows = partitions_of(cluster, 1, name)
        assert [(sorted(row.replica_nodes), sorted(row.isr_nodes), row.offline_replicas) for row in rows] == [
            ([1, 2, 3], [1, 2], [3])
        ] * count
        assert {row.leader_id for row in rows} == {1, 2}
    cluster.start_broker(3)
    for name in names:
        until(lambda name=name: all(sorted(row.isr_nodes) == [1, 2, 3] for row in partitions_of(cluster, 3, name)))


def test_a_broker_that_does_not_come_back_is_unregistered(cluster: LowtideCluster) -> None:
    """It then does not count until it returns. A live broker cannot be unregistered, nor an unknown one."""
    assert [unregister(cluster, asked, 3) for asked in (1, 2)] == [ErrorCode.INVALID_REQUEST] * 2
    assert make(cluster, 1, "before") == ErrorCode.NONE
    cluster.stop_broker(3)
    assert unregister(cluster, 1, 3) == ErrorCode.NONE
    assert unregister(cluster, 2, 3) == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert brokers_of(cluster, 2, fenced=True) == {1: False, 2: False}
    assert make(cluster, 1, "t") == ErrorCode.INVALID_REPLICATION_FACTOR
    assert [sorted(row.replica_nodes) for row in partitions_of(cluster, 1, "before")] == [[1, 2, 3]] * 3
    cluster.start_broker(3)
    assert make(cluster, 1, "t") == ErrorCode.NONE
    until(lambda: all(sorted(row.isr_nodes) == [1, 2, 3] for row in partitions_of(cluster, 3, "before")))


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.slow
def test_a_topic_is_made_while_a_broker_is_dead(tmp_path: Path) -> None:
    """Processes on an etcd: one is killed, and its lease ends.

    When it returns it gets the records written meanwhile, and is in sync.
    """

    async def scenario() -> None:
        async with ClusterProcesses(tmp_path) as cluster:
            await cluster.kill(3)

            async def is_fenced() -> bool:
                return 3 not in {row.node_id for row in (await cluster.metadata(1)).brokers}

            await cluster.until("broker 3 is fenced", is_fenced)
            request = asking.topic_request("t", partitions=2, replicas=3)
            answer = await cluster.ask(1, request, asking.CREATE_TOPICS_VERSION)
            assert answer.topics[0].error_code == ErrorCode.NONE, answer
            for number in range(2):
                row = await cluster.until_in_sync("t", number, members={1, 2})
                assert sorted(row.replica_nodes) == [1, 2, 3]
                assert await cluster.append("t", [b"meanwhile"], partition=number) == 0
            await cluster.start(3)
            for number in range(2):
                await cluster.until_in_sync("t", number, members={1, 2, 3})

    asyncio.run(scenario())
