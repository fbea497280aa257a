"""The admin client while brokers hang and fail: a delete follows the leader, and a timeout reports the truth."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lowtide import AdminClient, TopicPartition
from lowtide.admin import DeletedRecords, DeleteRecordsError, DeleteStage, NewTopic
from lowtide.protocol.errors import ErrorCode
from tests.etcd import missing

from .asking import PRODUCE_VERSION, only_row, produce_request
from .cluster_processes import ClusterProcesses
from .moving import elect_preferred
from .serving import run_to_end

LIMIT_S = 300.0
PATIENT = {"request.timeout.ms": "600000", "default.api.timeout.ms": "900000"}
"""The time for a client that waits for a silent broker, longer than a busy machine takes for others."""

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

TOPIC = "administered"
FIRST = TopicPartition(TOPIC, 0)
VALUES = [b"value %d" % number for number in range(10)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterProcesses]:
    """Broker 1 leads and misses the fetches of follower 3, which stays in the ISR: deletes stay parked."""
    async with ClusterProcesses(tmp_path, "replica.lag.time.max.ms=60000", links=True) as made:
        await made.create_topic(TOPIC, [[2, 1, 3]])
        await made.kill(2)
        await made.until_partition(TOPIC, lambda row: row.leader_id == 1)
        await made.start(2)
        await made.until_in_sync(TOPIC)
        assert (
            only_row(await made.ask(1, produce_request(TOPIC, 0, VALUES), PRODUCE_VERSION)).error_code == ErrorCode.NONE
        )
        assert made.links is not None
        made.links[3, 1].hold_requests()
        yield made
        made.check_no_faults()


async def deleting(
    cluster: ClusterProcesses, admin: AdminClient, offset: int
) -> asyncio.Task[DeletedRecords | DeleteRecordsError]:
    """Returns a delete that waits at broker 1 for the silent follower."""

    async def delete() -> DeletedRecords | DeleteRecordsError:
        return (await admin.delete_records({FIRST: offset}))[FIRST]

    task = asyncio.get_running_loop().create_task(delete())

    async def accepted() -> bool:
        return await cluster.bounds(1, TOPIC) == (offset, len(VALUES))

    await cluster.until("the leader's own log start is moved", accepted)
    assert not task.done()
    return task


@pytest.mark.slow
async def test_a_delete_while_the_cluster_is_in_trouble(cluster: ClusterProcesses) -> None:
    """One after the other: a silent follower, a leader that hands over, and one that fails."""
    async with AdminClient(cluster.bootstrap) as admin:
        result = (await admin.delete_records({FIRST: 2}, leader_only=True))[FIRST]
        assert isinstance(result, DeletedRecords)
        assert result.leader_log_start_offset == 2
        assert result.low_watermark <= 2

        error = (await admin.delete_records({FIRST: 3}, timeout=3))[FIRST]
        assert isinstance(error, DeleteRecordsError)
        assert (error.stage, error.code, error.leader_done) == (DeleteStage.WAITING, ErrorCode.REQUEST_TIMED_OUT, True)
        assert error.facts.leader_log_start_offset == 3

        task = await deleting(cluster, admin, 5)
        await elect_preferred(cluster, TOPIC)
        assert await task == DeletedRecords(5, 5)
        await cluster.until_partition(TOPIC, lambda row: row.leader_id == 2)

        assert cluster.links is not None
        cluster.links[3, 1].mend()
        await cluster.until_in_sync(TOPIC)
        await cluster.kill(2)
        assert (await admin.delete_records({FIRST: 7}))[FIRST] == DeletedRecords(7, 7)
        await cluster.start(2)
        await cluster.until_in_sync(TOPIC)


@pytest.mark.slow
async def test_no_call_waits_for_a_broker_that_it_does_not_need(tmp_path: Path) -> None:
    """Broker 3 is frozen with open connections, then the controller too.

    A delete at a live leader once took 30 seconds.
    """
    async with (
        ClusterProcesses(tmp_path) as cluster,
        AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT}) as admin,
    ):
        await cluster.create_topic(TOPIC, [[1, 2]])
        await cluster.until_partition(TOPIC, lambda row: row.leader_id == 1)
        assert (
            only_row(await cluster.ask(1, produce_request(TOPIC, 0, VALUES), PRODUCE_VERSION)).error_code
            == ErrorCode.NONE
        )
        for broker_id in (1, 2, 3):  # Open a connection to each.
            await admin.describe_log_dirs([broker_id])
        cluster.freeze(3)
        async with asyncio.timeout(LIMIT_S):
            for offset in range(1, 6):
                result = (await admin.delete_records({FIRST: offset}, leader_only=True))[FIRST]
                assert isinstance(result, DeletedRecords)
            created = (await admin.create_topics([NewTopic(name="created", partitions=1, replication_factor=1)]))[
                "created"
            ]
            assert not isinstance(created, Exception)
        cluster.thaw(3)
        cluster.check_no_faults()


@pytest.mark.slow
async def test_the_status_of_a_cluster_shows_a_silent_broker_and_does_not_wait_for_it(tmp_path: Path) -> None:
    """It once took a minute, and showed the outdated state: healthy."""
    async with ClusterProcesses(tmp_path) as cluster:
        await cluster.create_topic(TOPIC, [[1, 2]])
        cluster.freeze(3)
        command = [
            sys.executable,
            "-m",
            "lowtide.cli.main",
            "cluster",
            "status",
            "-b",
            cluster.bootstrap,
            "--output",
            "json",
        ]
        shown = await asyncio.to_thread(run_to_end, [*command, "--timeout", "900"], limit_s=LIMIT_S)
        assert shown.returncode == 1
        assert 3 in [row["broker"] for row in json.loads(shown.stdout)["brokers"] if row["fenced"]]
        assert not shown.stderr or "log directories of broker 3 is unknown" in shown.stderr, (
            "the command asks a fenced broker for nothing"
        )
        cluster.thaw(3)
        cluster.check_no_faults()
