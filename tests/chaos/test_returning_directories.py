"""A broker that returns with an empty directory, with an old one, or with another broker's.

It never leads without the lost records, joins as a new replica, and the others keep all acknowledged records.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lowtide.protocol.errors import ErrorCode
from tests.etcd import missing

from .cluster_load import PartitionWork
from .cluster_processes import ClusterProcesses

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

TOPIC = "returned"
VALUES = [b"value %d" % number for number in range(10)]
X = 5


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterProcesses]:
    async with ClusterProcesses(tmp_path) as made:
        yield made


async def filled(cluster: ClusterProcesses) -> None:
    await cluster.create_topic(TOPIC, [[1, 2, 3]])
    row = await cluster.produce(1, TOPIC, VALUES)
    assert row.error_code == ErrorCode.NONE


async def all_agree(cluster: ClusterProcesses, start: int, end: int) -> None:
    """Each replica shows [start, end) and nothing below it."""

    async def agrees(broker_id: int) -> bool:
        row, records = await cluster.fetch(broker_id, TOPIC, start)
        _below, nothing = await cluster.fetch(broker_id, TOPIC, start - 1) if start else (None, {})
        assert not nothing, f"broker {broker_id} serves {nothing}"
        return (
            row.error_code == ErrorCode.NONE
            and sorted(records) == list(range(start, end))
            and row.log_start_offset == start
        )

    for broker_id in cluster.ids:
        await cluster.until(f"broker {broker_id} shows {start} to {end}", lambda broker_id=broker_id: agrees(broker_id))


@pytest.mark.slow
async def test_a_leader_back_at_once_with_an_empty_directory(cluster: ClusterProcesses) -> None:
    """Before any broker detected that it was gone. The leader then has everything."""
    await filled(cluster)
    await cluster.kill(1)
    shutil.rmtree(cluster.directories[1])
    await cluster.start(1)
    row = await cluster.until_in_sync(TOPIC)
    assert await cluster.bounds(row.leader_id, TOPIC) == (0, len(VALUES))
    await all_agree(cluster, 0, len(VALUES))
    cluster.check_no_faults()


@pytest.mark.slow
async def test_a_follower_back_with_an_empty_directory(cluster: ClusterProcesses) -> None:
    await filled(cluster)
    assert (await cluster.delete(1, TOPIC, X)).error_code == ErrorCode.NONE
    await cluster.kill(3)
    shutil.rmtree(cluster.directories[3])
    await cluster.start(3)
    await cluster.until_in_sync(TOPIC)
    await all_agree(cluster, X, len(VALUES))
    cluster.check_no_faults()


@pytest.mark.slow
async def test_a_broker_back_with_an_old_directory(cluster: ClusterProcesses, tmp_path: Path) -> None:
    """The directory is an old copy, without later records and a delete.

    It cannot lead alone: only a replica with all records may be elected.
    """
    await filled(cluster)
    assert await cluster.terminate(3) == 0
    old = tmp_path / "old"
    shutil.copytree(cluster.directories[3], old)
    await cluster.start(3)
    await cluster.until_in_sync(TOPIC)
    leader = (await cluster.until_in_sync(TOPIC)).leader_id
    more = [b"more %d" % number for number in range(5)]
    assert (await cluster.produce(leader, TOPIC, more)).error_code == ErrorCode.NONE
    assert (await cluster.delete(leader, TOPIC, X)).error_code == ErrorCode.NONE
    await cluster.kill(1, 2, 3)
    shutil.rmtree(cluster.directories[3])
    shutil.copytree(old, cluster.directories[3])
    await cluster.start(3)
    row = await cluster.partition(TOPIC, of=3)
    assert row is not None
    assert row.leader_id != 3, "its records are older than the acknowledged ones"
    await cluster.start(1, 2)
    row = await cluster.until_in_sync(TOPIC)
    await all_agree(cluster, X, len(VALUES) + len(more))
    cluster.check_no_faults()


@pytest.mark.slow
async def test_a_broker_with_another_brokers_directory(cluster: ClusterProcesses, tmp_path: Path) -> None:
    """It is refused at its start, and the directory is not changed."""
    await filled(cluster)
    await cluster.kill(2, 3)
    cluster.directories[3] = cluster.directories[2]
    before = sorted((path, path.stat().st_mtime_ns) for path in cluster.directories[2].rglob("*") if path.is_file())
    await cluster.launch(3)
    assert await cluster.brokers[3].ended() == 2
    assert any("2" in line and "3" in line for line in cluster.brokers[3].noise), cluster.brokers[3].noise
    assert [path for path, _ in before if not path.exists()] == []
    cluster.directories[3] = tmp_path / "broker-3"
    await cluster.start(2, 3)
    await cluster.until_in_sync(TOPIC)
    await all_agree(cluster, 0, len(VALUES))


@pytest.mark.slow
async def test_directories_are_swapped_under_load(cluster: ClusterProcesses) -> None:
    """A follower loses its directory repeatedly while clients work."""
    await cluster.create_topic(
        TOPIC, [[1, 2, 3]], configs={"internal.segment.bytes": "20000", "file.delete.delay.ms": "0"}
    )
    work = PartitionWork(cluster, TOPIC)
    work.start()
    try:
        for _ in range(2):
            await work.until("produced", 20)
            await work.until("deleted", 2)
            row = await cluster.until_in_sync(TOPIC)
            victim = next(broker_id for broker_id in row.isr_nodes if broker_id != row.leader_id)
            await cluster.kill(victim)
            shutil.rmtree(cluster.directories[victim])
            await cluster.start(victim)
            await cluster.until_in_sync(TOPIC)
    finally:
        await work.stop()
    await work.check()
    cluster.check_no_faults()
