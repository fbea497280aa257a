"""Eligible leader replicas (KIP-966, rule DR9) with real brokers: the last member in sync loses its power."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from lowtide.storage.log_directory import PAGE_CACHE_NOTE
from tests.etcd import missing

from .cluster_processes import ClusterProcesses
from .serving import run_to_end

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

TOPIC = "eligible"
VALUES = [b"value %d" % number for number in range(10)]
DELETED = 4
NO_TIME_MS = 300


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterProcesses]:
    """Three brokers, of which two are to have a record before it is acknowledged."""
    async with ClusterProcesses(tmp_path) as made:
        yield made
        made.check_no_faults()


async def eligible(cluster: ClusterProcesses, broker_id: int) -> list[int]:
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=TOPIC)], response_partition_limit=10)
    answer = await cluster.ask(broker_id, request, 0)
    return sorted(answer.topics[0].partitions[0].eligible_leader_replicas)


def lose_power(directory: Path) -> None:
    """Simulates the death of the machine of a killed broker: another boot id, and no unsynced records."""
    (directory / PAGE_CACHE_NOTE).write_bytes(b"the life before\n")
    (segment,) = (directory / f"{TOPIC}-0").glob("*.log")
    segment.write_bytes(b"")


@pytest.mark.slow
async def test_the_last_member_loses_its_power(cluster: ClusterProcesses) -> None:
    """A broker alone without its records isn't elected; a member that left the ISR earlier leads on return."""
    await cluster.create_topic(TOPIC, [[1, 2, 3]])
    row = await cluster.produce(1, TOPIC, VALUES)
    assert row.error_code == ErrorCode.NONE
    assert (await cluster.delete(1, TOPIC, DELETED)).error_code == ErrorCode.NONE
    await cluster.kill(2)
    await cluster.until_partition(TOPIC, lambda row: set(row.isr_nodes) == {1, 3}, of=1)
    assert await eligible(cluster, 1) == [], "enough are in sync"
    await cluster.kill(3)
    await cluster.until_partition(TOPIC, lambda row: row.isr_nodes == [1] and row.leader_id == 1, of=1)
    assert await eligible(cluster, 1) == [3]
    assert (await cluster.produce(1, TOPIC, [b"refused"])).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert (
        await cluster.delete(1, TOPIC, DELETED + 1, timeout_ms=NO_TIME_MS)
    ).error_code == ErrorCode.REQUEST_TIMED_OUT
    await cluster.kill(1)
    lose_power(cluster.directories[1])
    await cluster.start(1)
    await cluster.until_partition(TOPIC, lambda row: row.leader_id == -1, of=1)
    await cluster.start(2)
    await cluster.until_partition(TOPIC, lambda row: set(row.offline_replicas) == {3}, of=1)
    row = await cluster.partition(TOPIC, of=1)
    assert row is not None
    assert row.leader_id == -1, "broker 2 left while others went on"
    await cluster.start(3)
    await cluster.until_partition(TOPIC, lambda row: row.leader_id == 3, of=1)
    await cluster.until_in_sync(TOPIC)
    assert await eligible(cluster, 1) == []
    assert await cluster.bounds(3, TOPIC) == (DELETED, len(VALUES))
    _, records = await cluster.fetch(3, TOPIC, DELETED)
    assert list(records.values()) == VALUES[DELETED:]


@pytest.mark.slow
async def test_a_member_whose_process_was_killed_leads_at_once(cluster: ClusterProcesses) -> None:
    """Its writes survive because its machine kept running, so it need not wait for another replica."""
    await cluster.create_topic(TOPIC, [[1, 2, 3]])
    assert (await cluster.produce(1, TOPIC, VALUES)).error_code == ErrorCode.NONE
    for broker_id in (2, 3):
        await cluster.kill(broker_id)
    await cluster.until_partition(TOPIC, lambda row: row.isr_nodes == [1] and row.leader_id == 1, of=1)
    await cluster.kill(1)
    await cluster.start(1)
    await cluster.until_partition(TOPIC, lambda row: row.leader_id == 1 and row.isr_nodes == [1], of=1)
    await cluster.start(2)
    await cluster.until_in_sync(TOPIC, members={1, 2})
    _, records = await cluster.fetch(1, TOPIC, 0)
    assert list(records.values()) == VALUES


async def recover(*words: str) -> tuple[int, str]:
    done = await asyncio.to_thread(run_to_end, [sys.executable, "-m", "lowtide.cli.main", "metadata", *words])
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
async def test_the_last_member_loses_its_power_and_the_metadata_are_lost(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    """The eligible replica leads after recovery. Without its log the command shows the loss, and changes nothing."""
    await cluster.create_topic(TOPIC, [[1, 2, 3]])
    assert (await cluster.produce(1, TOPIC, VALUES)).error_code == ErrorCode.NONE
    assert (await cluster.delete(1, TOPIC, DELETED)).error_code == ErrorCode.NONE
    await cluster.kill(2)
    await cluster.until_partition(TOPIC, lambda row: set(row.isr_nodes) == {1, 3}, of=1)
    await cluster.kill(3)
    await cluster.until_partition(TOPIC, lambda row: row.isr_nodes == [1] and row.leader_id == 1, of=1)
    await cluster.kill(1)
    lose_power(cluster.directories[1])
    await asyncio.to_thread(cluster.etcd.kill)
    shutil.rmtree(cluster.etcd.directory)
    await asyncio.to_thread(cluster.etcd.start)
    files = {broker_id: str(tmp_path / f"broker-{broker_id}.json") for broker_id in cluster.ids}
    for broker_id, file in files.items():
        assert (await recover("export", "--log-dirs", str(cluster.directories[broker_id]), file))[0] == 0
    words = ("recover", "--metadata", f"etcd://{cluster.etcd.endpoint}", "--yes")
    code, output = await recover(*words, files[1], files[2], "--without", "3")
    assert code == 1
    assert f"LOSS: {TOPIC}-0: " in output
    assert "nothing was changed" in output
    code, output = await recover(*words, files[1], files[2], "--without", "3", "--accept-loss", "--dry-run")
    assert (code, "LOSS" in output) == (0, True), output
    code, output = await recover(*words, *files.values())
    assert (code, "LOSS" in output) == (0, False), output
    await cluster.start(1, 2)
    await cluster.until_partition(TOPIC, lambda row: set(row.offline_replicas) == {3} and row.leader_id == -1, of=1)
    await cluster.start(3)
    await cluster.until_partition(TOPIC, lambda row: row.leader_id == 3, of=1)
    await cluster.until_in_sync(TOPIC)
    assert await cluster.bounds(3, TOPIC) == (DELETED, len(VALUES))
    _, records = await cluster.fetch(3, TOPIC, DELETED)
    assert list(records.values()) == VALUES[DELETED:]
