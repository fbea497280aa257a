"""Clients add partitions, which all can use at once, and describe the cluster; refusals have Kafka's code."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.testing.cluster import LowtideCluster

from .conftest import CLIENTS
from .driver import Driver, OutgoingRecord, until
from .growing import GROWERS, Cluster, Grower, KafkaPythonGrower, kcat_cluster


@pytest.fixture(params=list(GROWERS))
def grower(request: pytest.FixtureRequest, lowtide: SimpleNamespace) -> Grower:
    """Each client that can add partitions, in turn."""
    return GROWERS[request.param](lowtide.bootstrap)


@pytest.fixture
def own_id(lowtide: SimpleNamespace) -> int:
    """The broker's id."""
    return GROWERS["aiokafka"](lowtide.bootstrap).cluster().controller_id


def test_new_partitions_can_be_used_at_once(grower: Grower, client: Driver, topic: str) -> None:
    """Records can be written and read; the topic's older partitions keep theirs."""
    client.produce(topic, [OutgoingRecord(b"k", b"before")], partition=2)
    assert grower.grow(topic, 5) == ErrorCode.NONE
    until(lambda: client.partition_count(topic) == 5)
    client.produce(topic, [OutgoingRecord(b"k", b"after")] * 2, partition=4)
    assert client.offsets(topic, range(5)) == {0: (0, 0), 1: (0, 0), 2: (0, 1), 3: (0, 0), 4: (0, 2)}
    with client.reader(topic, 4, 0) as reader:
        assert [record.value for record in reader.read(2)] == [b"after"] * 2
    with client.reader(topic, 2, 0) as reader:
        assert [record.value for record in reader.read(1)] == [b"before"]


def test_replicas_may_be_chosen(grower: Grower, topic: str, other: Driver, own_id: int) -> None:
    assert grower.grow(topic, 5, [[own_id], [own_id]]) == ErrorCode.NONE
    until(lambda: other.partition_count(topic) == 5)
    assert other.offsets(topic, [4]) == {4: (0, 0)}


def test_what_is_only_validated_is_not_done(grower: Grower, topic: str, other: Driver) -> None:
    assert grower.grow(topic, 5, validate_only=True) == ErrorCode.NONE
    assert grower.grow(topic, 2, validate_only=True) == ErrorCode.INVALID_PARTITIONS
    assert other.partition_count(topic) == 3


def test_refusals(grower: Grower, topic: str, other: Driver, own_id: int) -> None:
    """Each has its code, and the topic does not change."""
    assert grower.grow(f"{topic}-missing", 2) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert grower.grow(topic, 3) == ErrorCode.INVALID_PARTITIONS
    assert grower.grow(topic, 1) == ErrorCode.INVALID_PARTITIONS
    assert grower.grow(topic, 4, [[own_id + 1]]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grower.grow(topic, 5, [[own_id], [own_id, own_id]]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grower.grow(topic, 20_000) == ErrorCode.POLICY_VIOLATION
    assert other.partition_count(topic) == 3


def test_partitions_survive_a_restart() -> None:
    """With their records."""
    with LowtideCluster() as cluster:
        confluent = CLIENTS["confluent-kafka"](cluster.bootstrap)
        confluent.create_topic("t", 1, {})
        assert GROWERS["kafka-python"](cluster.bootstrap).grow("t", 6) == ErrorCode.NONE
        confluent.produce("t", [OutgoingRecord(b"k", b"v")] * 3, partition=5)
        cluster.restart()
        assert confluent.partition_count("t") == 6
        assert confluent.offsets("t", [0, 5]) == {0: (0, 0), 5: (0, 3)}


def test_the_cluster_is_described(grower: Grower, lowtide: SimpleNamespace) -> None:
    """One broker, at the clients' address, which is the controller."""
    found = grower.cluster()
    host, port = lowtide.bootstrap.rsplit(":", 1)
    assert found.brokers == ((found.controller_id, host, int(port)),)
    told = {kind(lowtide.bootstrap).cluster().cluster_id for kind in GROWERS.values()} - {None}
    assert len(told) == 1
    assert found.cluster_id in {*told, None}


def test_kcat_lists_the_cluster(lowtide: SimpleNamespace) -> None:
    if shutil.which("kcat") is None and not os.environ.get("CI"):
        pytest.skip("kcat is not installed")
    known = GROWERS["kafka-python"](lowtide.bootstrap).cluster()
    assert kcat_cluster(lowtide.bootstrap) == Cluster(None, known.controller_id, known.brokers)


def test_topics_are_described_page_by_page(lowtide: SimpleNamespace, topic: str) -> None:
    """The next page has the rows that did not fit."""
    client = KafkaPythonGrower(lowtide.bootstrap)
    missing = f"{topic}-missing"
    assert client.page([missing, topic], 2000) == (
        {topic: (0, [0, 1, 2]), missing: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])},
        None,
    )
    assert client.page([topic], 2) == ({topic: (0, [0, 1])}, (topic, 2))
    assert client.page([topic], 2, (topic, 2)) == ({topic: (0, [2])}, None)
    seen: list[tuple[str, int]] = []
    cursor = None
    while True:
        rows, cursor = client.page([], 2, cursor)
        seen += [(name, number) for name, (_, numbers) in rows.items() for number in numbers]
        if cursor is None:
            break
    assert seen == sorted(seen)
    assert [number for name, number in seen if name == topic] == [0, 1, 2]
