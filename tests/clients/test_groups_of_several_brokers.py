"""Groups in a cluster of three: the coordinator fails, and another broker continues with all committed offsets."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lowtide.testing.cluster import LowtideCluster

from .driver import DEADLINE_S, OutgoingRecord, until
from .driver_aiokafka import Aiokafka
from .driver_confluent import Confluent
from .group_members import ConfluentKeeper, member

COUNT = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    settings = {
        "offsets.topic.num.partitions": "3",
        "group.initial.rebalance.delay.ms": "0",
        "default.replication.factor": "3",
    }
    with LowtideCluster(brokers=3, config=settings) as running:
        yield running


@pytest.mark.parametrize("name", [Confluent.name, Aiokafka.name])
def test_a_group_survives_its_coordinator(cluster: LowtideCluster, name: str) -> None:
    topic, group = (f"{word}-{uuid.uuid4().hex[:8]}" for word in ("topic", "group"))
    addresses = ",".join(cluster.address(broker_id) for broker_id in cluster.broker_ids)
    other, keeper = Confluent(addresses), ConfluentKeeper(addresses)
    admin = AdminClient({"bootstrap.servers": addresses, "broker.address.family": "v4"})
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(DEADLINE_S)
    until(lambda: other.partition_count(topic) == 1)
    other.produce(topic, [OutgoingRecord(None, b"before")] * COUNT)
    with member(name, addresses, topic, group) as one:
        found: list[tuple[int, int]] = []
        until(lambda: found.extend(one.poll()) or len(found) == COUNT)
        one.commit()
        assert keeper.committed(group, topic) == {0: COUNT}
        coordinator = keeper.coordinator(group)
        cluster.kill_broker(coordinator)
        try:
            until(lambda: keeper.coordinator(group) != coordinator, but=(Exception,))
            assert keeper.committed(group, topic) == {0: COUNT}
            other.produce(topic, [OutgoingRecord(None, b"after")] * COUNT)
            until(lambda: found.extend(one.poll()) or len(found) == 2 * COUNT)
            assert [offset for _, offset in found] == list(range(2 * COUNT))
            one.commit()
            assert keeper.committed(group, topic) == {0: 2 * COUNT}
        finally:
            cluster.start_broker(coordinator)
