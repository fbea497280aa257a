"""Brokers with two listeners: every response gives clients the addresses of the listener that they use."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lowtide.broker.config.broker_config import Setting
from lowtide.broker.lifecycle.local_cluster import LocalCluster
from lowtide.broker.lifecycle.logger import quiet_logger
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.describe_cluster import DescribeClusterRequest
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.simulation.client import WireClient

HOST = "127.0.0.1"
BROKERS = (1, 2, 3)
LIMIT_S = 120.0
ASSIGNMENTS = [CreatableReplicaAssignment(partition_index=each - 1, broker_ids=[each]) for each in BROKERS]


def configuration(directory: Path, broker_id: int) -> dict[str, Setting]:
    """Two listeners: only a proxy knows the outer name, and broker 3 does not advertise it."""
    advertised = f"INSIDE://{HOST}:0" if broker_id == 3 else f"INSIDE://{HOST}:0,OUTSIDE://tide-{broker_id}.example:443"
    settings = {
        "node.id": str(broker_id),
        "log.dirs": f"{directory}/{broker_id}",
        "listeners": f"INSIDE://{HOST}:0,OUTSIDE://{HOST}:0",
        "advertised.listeners": advertised,
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
    }
    return {name: Setting(text, "test") for name, text in settings.items()}


async def led(cluster: LocalCluster) -> None:
    """Waits until the controller has made broker 1 leader again."""
    async with asyncio.timeout(LIMIT_S):
        client = await WireClient.connect(HOST, cluster.brokers[1].ports["INSIDE"])
        while True:
            metadata = await client.send(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12)
            if [row.leader_id for row in metadata.topics[0].partitions].count(-1) == 0:
                return client.close()
            await asyncio.sleep(0.01)


async def told(cluster: LocalCluster, listener_name: str) -> None:
    """The responses of broker 1 to clients of one of its listeners."""
    inside = {each: f"{HOST}:{cluster.brokers[each].ports['INSIDE']}" for each in BROKERS}
    expected = inside if listener_name == "INSIDE" else {1: "tide-1.example:443", 2: "tide-2.example:443"}
    client = await WireClient.connect(HOST, cluster.brokers[1].ports[listener_name])
    described = await client.send(DescribeClusterRequest(include_cluster_authorized_operations=False), 1)
    assert {each.broker_id: f"{each.host}:{each.port}" for each in described.brokers} == expected
    metadata = await client.send(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12)
    assert {each.node_id: f"{each.host}:{each.port}" for each in metadata.brokers} == expected
    rows = sorted(metadata.topics[0].partitions, key=lambda row: row.partition_index)
    if listener_name == "INSIDE":
        assert [(row.error_code, row.leader_id, row.offline_replicas) for row in rows] == [
            (0, each, []) for each in BROKERS
        ]
    else:
        assert [(row.error_code, row.leader_id) for row in rows] == [(0, 1), (0, 2), (ErrorCode.LISTENER_NOT_FOUND, -1)]
        assert rows[2].offline_replicas == [3]
    fetch = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        topics=[
            FetchTopic(
                topic_id=metadata.topics[0].topic_id,
                partitions=[FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1024)],
            )
        ],
    )
    refused = await client.send(fetch, 16)
    assert refused.responses[0].partitions[0].current_leader.leader_id == 2
    assert {each.node_id: f"{each.host}:{each.port}" for each in refused.node_endpoints} == {2: expected[2]}
    client.close()


def test_clients_of_each_listener_receive_its_own_addresses(tmp_path: Path) -> None:
    async def run() -> None:
        cluster = LocalCluster(
            [configuration(tmp_path, each) for each in BROKERS], str(tmp_path), lambda _broker_id: quiet_logger()
        )
        await cluster.start()
        try:
            client = await WireClient.connect(HOST, cluster.brokers[1].ports["OUTSIDE"])
            topic = CreatableTopic(
                name="t", num_partitions=-1, replication_factor=-1, assignments=ASSIGNMENTS, configs=[]
            )
            made = await client.send(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
            assert made.topics[0].error_code == ErrorCode.NONE, made.topics[0].error_message
            client.close()
            await led(cluster)
            await told(cluster, "INSIDE")
            await told(cluster, "OUTSIDE")
            await cluster.stop_broker(1)
            await cluster.start_broker(1)
            await led(cluster)
            await told(cluster, "OUTSIDE")
        finally:
            await cluster.stop()

    asyncio.run(run())
