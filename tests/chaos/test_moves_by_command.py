"""`lowtide cluster` moves replicas of real brokers: one is drained, returns, is replaced and forgotten."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tests.etcd import missing

from .cluster_processes import LIMIT_S, ClusterProcesses
from .working_clients import working_clients

pytestmark = [pytest.mark.slowest, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

TOPIC, PARTITIONS = "moved", 4


async def lowtide(cluster: ClusterProcesses, *words: object, code: int = 0) -> Any:
    """Returns the document that the command prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "lowtide.cli.main",
        "cluster",
        *map(str, words),
        *("--bootstrap-server", cluster.bootstrap, "--output", "json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == code, (words, out, err)
    return json.loads(out)


class Load:
    """A producer that is acknowledged by all, and a consumer: neither may report an error."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.written: list[bytes] = []
        self.stopping = asyncio.Event()
        self.stopped = asyncio.Event()
        """All that is written is in `written`."""

    async def produce(self) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True) as producer:
            while not self.stopping.is_set():
                value = b"%d" % len(self.written)
                await producer.send_and_wait(TOPIC, value, partition=len(self.written) % PARTITIONS)
                self.written.append(value)
        self.stopped.set()

    async def read_all(self) -> None:
        consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=self.bootstrap, auto_offset_reset="earliest")
        async with consumer, asyncio.timeout(LIMIT_S):
            seen: list[bytes] = []
            while not (self.stopped.is_set() and set(seen) >= set(self.written)):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    seen += [record.value for record in records]
        assert len(seen) == len(self.written), "something was written twice"


async def until_on(cluster: ClusterProcesses, *brokers: int, topics: Iterable[str] = (TOPIC,)) -> None:
    """Returns when each partition has its replicas there, as the broker that is asked sees them."""

    async def are_there() -> bool:
        answer = await cluster.metadata(cluster.awake[0], *topics)
        return all(sorted(row.replica_nodes) == list(brokers) for topic in answer.topics for row in topic.partitions)

    await cluster.until(f"the replicas are on {brokers}", are_there)


async def test_a_broker_is_drained_returns_and_is_replaced(tmp_path: Path) -> None:
    undo = tmp_path / "undo.json"
    async with ClusterProcesses(tmp_path / "brokers", brokers=4) as cluster:
        await cluster.create_topic(TOPIC, [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]])
        load = Load(cluster.bootstrap)
        async with asyncio.TaskGroup() as clients:
            clients.create_task(load.produce())
            clients.create_task(load.read_all())
            try:
                rehearsed = await lowtide(cluster, "drain", 1, "--dry-run")
                assert [row["to"] for row in rehearsed["moves"] if row["topic"] == TOPIC] == [
                    [4, 2, 3],
                    [2, 3, 4],
                    [3, 4, 2],
                    [4, 2, 3],
                ]
                drained = await lowtide(
                    cluster, "drain", 1, "--yes", "--undo", undo, "--throttle", 50_000_000, "--at-once", 2
                )
                assert drained["moves"] == rehearsed["moves"]
                await until_on(cluster, 2, 3, 4)
                assert (await lowtide(cluster, "drain", 1, "--yes"))["moves"] == []

                await lowtide(cluster, "move", "--file", undo, "--yes")
                await until_on(cluster, 1, 2, 3)
                await lowtide(cluster, "elect")
                described = await lowtide(cluster, "status")
                assert (described["without_leader"], described["under_replicated"], described["reassignments"]) == (
                    [],
                    [],
                    [],
                )

                refused = await lowtide(cluster, "unregister", 1, "--yes", code=1)
                assert "broker 1 has replicas of" in refused["error"]["message"]
                await cluster.kill(1)
                await lowtide(cluster, "replace", 1, 4, "--yes")
                await until_on(cluster, 2, 3, 4)
                await lowtide(cluster, "unregister", 1, "--yes")
                assert [row["broker"] for row in (await lowtide(cluster, "status"))["brokers"]] == [2, 3, 4]
            finally:
                load.stopping.set()


async def test_no_client_meets_an_error_while_a_broker_is_drained_replaced_and_returns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Broker 1 leads all partitions, and coordinates groups.

    It is drained, stopped, started with an empty disk, and gets all back.
    """
    caplog.set_level(logging.CRITICAL, logger="kafka")
    caplog.set_level(logging.CRITICAL, logger="aiokafka")
    undo = tmp_path / "undo.json"
    async with ClusterProcesses(tmp_path / "brokers", "offsets.topic.num.partitions=3", brokers=4) as cluster:
        async with working_clients(cluster, groups=True) as clients:
            topics = clients.topics.values()
            await lowtide(cluster, "drain", 1, "--yes", "--undo", undo, "--throttle", 50_000_000)
            await until_on(cluster, 2, 3, 4, topics=topics)
            await clients.go_on()
            assert await cluster.terminate(1) == 0
            await clients.go_on()
            shutil.rmtree(cluster.directories[1])
            await cluster.start(1)
            await lowtide(cluster, "move", "--file", undo, "--yes", "--throttle", 50_000_000)
            await until_on(cluster, 1, 2, 3, topics=topics)
            await lowtide(cluster, "elect")
            for topic in topics:
                assert (await cluster.until_in_sync(topic)).leader_id == 1
            await clients.go_on()
        await clients.check_ends(cluster)
        cluster.check_no_faults()
