"""Log directories and producers in responses: kafka-python is the only Python client with most of them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lowtide import BlockingAdminClient, TopicPartition
from lowtide.admin import ConfigChange, ConfigResource, ConfigResourceType, CreatedTopic, NewTopic
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from lowtide.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersTopicRequest
from lowtide.simulation.client import WireClient
from lowtide.testing.cluster import LowtideCluster

from .conftest import NOT_YET
from .driver import Driver, OutgoingRecord, until
from .driver_confluent import Confluent
from .driver_kafka_python import KafkaPython

PARTITIONS = 4


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two log directories."""
    folder = tmp_path_factory.mktemp("disks")
    return [folder / "one", folder / "two"]


@pytest.fixture(scope="module")
def cluster(disks: list[Path]) -> Iterator[LowtideCluster]:
    """A separate broker, with two log directories."""
    with LowtideCluster(config={"log.dirs": ",".join(map(str, disks))}) as running:
        yield running


@pytest.fixture
def spread(cluster: LowtideCluster, lowtide_topic: str) -> str:
    """A usable topic over both directories."""
    driver = Confluent(cluster.bootstrap)
    driver.create_topic(lowtide_topic, PARTITIONS, {})
    until(
        lambda: driver.offsets(lowtide_topic, range(PARTITIONS)) == dict.fromkeys(range(PARTITIONS), (0, 0)),
        but=NOT_YET,
    )
    return lowtide_topic


def sizes(rows: list[dict[str, Any]], topic: str) -> dict[int, int]:
    return {
        partition["partition_index"]: partition["partition_size"]
        for row in rows
        for entry in row["topics"]
        if entry["name"] == topic
        for partition in entry["partitions"]
    }


def ask(cluster: LowtideCluster, request: Any, version: int) -> Any:
    async def once() -> Any:
        client = await WireClient.connect(cluster.host, cluster.port)
        try:
            return await client.request(request, version)
        finally:
            client.close()

    return asyncio.run(once())


def test_directories_are_described_with_their_partitions_and_the_bytes_of_the_volume(
    cluster: LowtideCluster, disks: list[Path], spread: str
) -> None:
    client = KafkaPython(cluster.bootstrap)
    client.produce(spread, [OutgoingRecord(b"k", b"x" * 1000)], partition=2)
    rows = client.log_directories(None)
    assert [row["log_dir"] for row in rows] == [str(disk) for disk in disks]
    for row, disk in zip(rows, disks, strict=True):
        assert row["error_code"] == ErrorCode.NONE
        assert not row["is_cordoned"]
        volume = shutil.disk_usage(disk)
        assert row["total_bytes"] == volume.total
        assert 0 < row["usable_bytes"] <= volume.total
        [entry] = [entry for entry in row["topics"] if entry["name"] == spread]
        assert len(entry["partitions"]) == PARTITIONS // 2
        for partition in entry["partitions"]:
            segments = (disk / f"{spread}-{partition['partition_index']}").glob("*.log")  # None yet without records.
            assert partition["partition_size"] == sum(segment.stat().st_size for segment in segments)
    found = sizes(rows, spread)
    assert found[2] > 1000
    assert {size for number, size in found.items() if number != 2} == {0}


def test_only_requested_rows_are_returned(cluster: LowtideCluster, spread: str) -> None:
    client = KafkaPython(cluster.bootstrap)
    assert sorted(sizes(client.log_directories({spread: [1, 3, 77], "unknown": [0]}), spread)) == [1, 3]
    assert all(row["topics"] == [] for row in client.log_directories({}))


def test_a_size_falls_with_the_log_start(cluster: LowtideCluster, lowtide_topic: str) -> None:
    """Within a segment too, by whole batches: what is deleted becomes a hole."""
    driver: Driver = Confluent(cluster.bootstrap)
    client = KafkaPython(cluster.bootstrap)
    driver.create_topic(lowtide_topic, 1, {"segment.bytes": "1048576"})
    until(lambda: driver.offsets(lowtide_topic, [0]) == {0: (0, 0)}, but=NOT_YET)
    for _ in range(5):
        driver.produce(lowtide_topic, [OutgoingRecord(b"k", b"x" * 400_000)])

    def size() -> int:
        (found,) = sizes(client.log_directories({lowtide_topic: [0]}), lowtide_topic).values()
        return found

    whole = size()
    assert whole > 2_000_000
    for deleted in (1, 4):
        driver.delete_records(lowtide_topic, {0: deleted})
        until(lambda deleted=deleted: size() < whole - deleted * 390_000)
        assert size() > (5 - deleted) * 400_000


@pytest.fixture
def cordons(cluster: LowtideCluster) -> Iterator[Callable[[str], None]]:
    """Sets `cordoned.log.dirs`; none is cordoned afterwards."""
    broker = ConfigResource(ConfigResourceType.BROKER, "0")
    with BlockingAdminClient(cluster.bootstrap) as admin:

        def set_to(text: str) -> None:
            assert admin.alter_configs({broker: [ConfigChange("cordoned.log.dirs", text)]}) == {broker: None}

        yield set_to
        set_to("")


def test_a_cordoned_directory_receives_no_new_partitions(
    cluster: LowtideCluster, disks: list[Path], spread: str, cordons: Callable[[str], None]
) -> None:
    """KIP-1066: nothing changes for those that it has; with all cordoned nothing new is created."""
    one, two = map(str, disks)
    cordons(two)
    with BlockingAdminClient(cluster.bootstrap) as admin:
        described = admin.describe_log_dirs()[0]
        assert not isinstance(described, Exception)
        assert {path: each.is_cordoned for path, each in described.items()} == {one: False, two: True}
        held = {key for key in described[two].replicas if key.topic == spread}
        name = f"{spread}-cordoned"
        assert isinstance(admin.create_topics([NewTopic(name=name, partitions=3)])[name], CreatedTopic)
        [key, *_] = held
        moved = admin.alter_replica_log_dirs({(0, TopicPartition(name, 0)): two, (0, key): two})
        assert getattr(moved[0, TopicPartition(name, 0)], "name", "") == "INVALID_REPLICA_ASSIGNMENT"
        assert moved[0, key] is None
        described = admin.describe_log_dirs()[0]
        assert not isinstance(described, Exception)
        assert sum(key.topic == name for key in described[one].replicas) == 3
        assert {key for key in described[two].replicas if key.topic == spread} == held
        names = (f"{name}-{number}" for number in count())  # Until the controller knows, a topic is still created.
        cordons("*")
        until(lambda: _creation_error(admin, next(names)) == "INVALID_REPLICATION_FACTOR")
        cordons("")
        until(lambda: _creation_error(admin, next(names)) is None)
        # All of them are in one directory: the next test's topic would be spread unevenly.
        added = [each for each in admin.list_topics() if each.startswith(name)]
        assert not any(admin.delete_topics(added).values())


def _creation_error(admin: BlockingAdminClient, name: str) -> str | None:
    outcome = admin.create_topics([NewTopic(name=name)])[name]
    return None if isinstance(outcome, CreatedTopic) else getattr(outcome, "name", str(outcome))


def test_every_version_has_its_fields(cluster: LowtideCluster, spread: str) -> None:
    """Other topics may be created meanwhile: those of coordinators are, when a client first looks for one."""
    by_version = {version: ask(cluster, DescribeLogDirsRequest(topics=None), version) for version in range(1, 6)}
    told = {
        version: [[topic for topic in row.topics if topic.name == spread] for row in response.results]
        for version, response in by_version.items()
    }
    assert all(told[5])
    for version, response in by_version.items():
        assert response.error_code == ErrorCode.NONE
        assert told[version] == told[5]
        assert all((row.total_bytes > 0) is (version >= 4) for row in response.results)


def test_producers_are_described_with_their_last_batch(cluster: LowtideCluster, spread: str) -> None:
    client = KafkaPython(cluster.bootstrap)
    assert client.producers(spread, 1) == []
    client.produce(spread, [OutgoingRecord(b"k", b"v", 1_700_000_000_000)] * 3, partition=1, idempotent=True)
    client.produce(spread, [OutgoingRecord(b"k", b"v")], partition=1)
    [producer] = client.producers(spread, 1)
    assert producer.producer_id >= 0
    assert (producer.producer_epoch, producer.last_sequence, producer.last_timestamp) == (0, 2, 1_700_000_000_000)
    assert (producer.coordinator_epoch, producer.current_transaction_start_offset) == (-1, -1)
    request = DescribeProducersRequest(topics=[DescribeProducersTopicRequest(name=spread, partition_indexes=[0, 1, 9])])
    rows = ask(cluster, request, 0).topics[0].partitions
    assert [(row.error_code, len(row.active_producers)) for row in rows] == [
        (ErrorCode.NONE, 0),
        (ErrorCode.NONE, 1),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
    ]
