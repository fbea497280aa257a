"""Every client sends requests about one broker to that broker: its configuration, its log directories."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from lowtide import LowtideCluster
from lowtide.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from lowtide.simulation.client import WireClient

from .driver import until
from .driver_confluent import Confluent


@pytest.fixture(scope="module")
def three() -> Iterator[LowtideCluster]:
    with LowtideCluster(brokers=3) as cluster:
        yield cluster


def test_a_brokers_configuration_is_described_and_changed_at_that_broker(three: LowtideCluster) -> None:
    admin = AdminClient({"bootstrap.servers": three.address(1), "log_level": 0})

    def described(broker_id: int) -> dict[str, str]:
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker_id))
        return {name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(120).items()}

    assert [described(broker_id)["node.id"] for broker_id in (1, 2, 3)] == ["1", "2", "3"]
    changed = ConfigResource(ConfigResource.Type.BROKER, "2")
    changed.add_incremental_config(
        ConfigEntry("log.retention.ms", "12345", incremental_operation=AlterConfigOpType.SET)
    )
    admin.incremental_alter_configs([changed])[changed].result(120)
    until(lambda: described(2)["log.retention.ms"] == "12345")
    assert described(1)["log.retention.ms"] != "12345"


def test_every_broker_describes_its_own_log_directories(three: LowtideCluster) -> None:
    topic = "everywhere"
    Confluent(three.bootstrap).create_topic(topic, 2, {}, replicas=3)

    async def held(broker_id: int) -> dict[str, list[int]]:
        host, _, port = three.address(broker_id).partition(":")
        client = await WireClient.connect(host, int(port))
        answer = await client.send(DescribeLogDirsRequest(topics=None), 4)
        client.close()
        return {
            row.log_dir: [partition.partition_index for topic in row.topics for partition in topic.partitions]
            for row in answer.results
        }

    for broker_id in (1, 2, 3):
        directory = f"{three.data_directory}/broker-{broker_id}"
        until(lambda broker_id=broker_id, directory=directory: asyncio.run(held(broker_id)) == {directory: [0, 1]})
