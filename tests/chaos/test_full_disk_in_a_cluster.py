"""A disk that is full, on the leader and then on a follower, over a small file system in memory, where the machine
allows a mount.

A full disk is no failure: a leader refuses appends and serves its records, a follower falls behind, and both continue
when there is space.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lowtide.protocol.errors import ErrorCode
from tests.clients.command_lines import run_process
from tests.etcd import missing
from tests.small_disk import Ballast, missing_mounts, small_disk

from .cluster_processes import ClusterProcesses

DISK_BYTES = 24 << 20
ROOM_BYTES = 300_000
RECORD = b"x" * 20_000
TOPIC = "full"


REASON = missing() or missing_mounts()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The mount point of a file system of `DISK_BYTES`."""
    with small_disk(tmp_path / "disk", DISK_BYTES) as made:
        yield made


async def produce_one(cluster: ClusterProcesses, leader: int) -> tuple[ErrorCode, int]:
    row = await cluster.produce(leader, TOPIC, [RECORD], timeout_ms=5000)
    return ErrorCode(row.error_code), row.base_offset


async def until_acknowledged(cluster: ClusterProcesses, leader: int) -> int:
    """Produces until it works; returns the offset."""
    offsets: list[int] = []

    async def acknowledged() -> bool:
        error, offset = await produce_one(cluster, leader)
        offsets.append(offset)
        return error == ErrorCode.NONE

    await cluster.until("a record is acknowledged", acknowledged)
    return offsets[-1]


@pytest.mark.slow
async def test_a_full_disk_on_the_leader(tmp_path: Path, disk: Path) -> None:
    """Appends are refused, records are served and deleted, and when there is space the same leader continues."""
    cluster = ClusterProcesses(tmp_path)
    cluster.directories[1] = disk / "log"
    async with cluster:
        await cluster.create_topic(TOPIC, [[1, 2, 3]])
        ballast = Ballast(disk)
        ballast.drop_in(ROOM_BYTES)
        acknowledged = []
        for _ in range(2 * ROOM_BYTES // len(RECORD)):
            error, offset = await produce_one(cluster, 1)
            if error != ErrorCode.NONE:
                break
            acknowledged.append(offset)
        assert error == ErrorCode.KAFKA_STORAGE_ERROR, error
        assert acknowledged == list(range(len(acknowledged)))
        row, records = await cluster.fetch(1, TOPIC, 0)
        assert row.error_code == ErrorCode.NONE
        assert records
        assert await cluster.bounds(1, TOPIC) == (0, len(acknowledged))
        assert (await cluster.delete(1, TOPIC, 1)).error_code == ErrorCode.NONE
        assert (await cluster.until_in_sync(TOPIC)).leader_id == 1
        ballast.fill_up()
        told = await until_told(cluster, 1, "log directory has no room")
        assert told["largest_topics"].keys() == {TOPIC}
        await check_commands(cluster, disk / "log")
        ballast.throw_out()
        assert await until_acknowledged(cluster, 1) == len(acknowledged)
        assert (await until_told(cluster, 1, "log directory has room again"))["directory"] == told["directory"]
        cluster.check_no_faults()


async def until_told(cluster: ClusterProcesses, broker_id: int, event: str) -> dict[str, Any]:
    """Returns the first such line of a broker's log."""
    found: list[dict[str, Any]] = []

    async def told() -> bool:
        found.extend(line for line in cluster.brokers[broker_id].lines if line.get("event") == event)
        return bool(found)

    await cluster.until(f"broker {broker_id} says: {event}", told)
    return found[0]


async def check_commands(cluster: ClusterProcesses, directory: Path) -> None:
    """Both commands show it, and what uses the space, as text and as JSON."""
    for words, code in ((("cluster", "status"), 1), (("log-dirs",), 0)):
        ran = await asyncio.to_thread(run_process, *words, bootstrap=cluster.bootstrap, code=code)
        assert "Log directories without room:" in ran.stdout, ran.stdout
        assert str(directory) in ran.stdout
        assert TOPIC in ran.stdout
        assert "lowtide records delete" in ran.stdout
    ran = await asyncio.to_thread(
        run_process, "cluster", "status", "--output", "json", bootstrap=cluster.bootstrap, code=1
    )
    (row,) = json.loads(ran.stdout)["full_log_dirs"]
    assert (row["broker"], row["path"], TOPIC in row["largest_topics"]) == (1, str(directory), True)
    assert row["usable_bytes"] < 1 << 20 <= row["total_bytes"]


@pytest.mark.slow
async def test_a_full_disk_on_a_follower(tmp_path: Path, disk: Path) -> None:
    """It leaves the ISR, the others continue, and when there is space it catches up."""
    cluster = ClusterProcesses(tmp_path)
    cluster.directories[3] = disk / "log"
    async with cluster:
        await cluster.create_topic(TOPIC, [[1, 2, 3]])
        ballast = Ballast(disk)
        ballast.drop_in(ROOM_BYTES)
        end = 0
        for _ in range(2 * ROOM_BYTES // len(RECORD)):
            end = await until_acknowledged(cluster, 1) + 1
        await cluster.until_in_sync(TOPIC, members={1, 2})
        row = await cluster.delete(1, TOPIC, 3)
        assert row.error_code == ErrorCode.NONE, cluster.tail()
        ballast.throw_out()
        await cluster.until_in_sync(TOPIC)

        async def served() -> bool:
            row, records = await cluster.fetch(3, TOPIC, end - 1)
            return row.error_code == ErrorCode.NONE and end - 1 in records

        await cluster.until("broker 3 serves all of it", served)
        cluster.check_no_faults()


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.slow
async def test_a_delete_passes_the_log_end_of_a_follower_whose_disk_is_full(
    tmp_path: Path, disk: Path, *, restarts: bool
) -> None:
    """Its log restarts at the leader's log start, which needs an epochs file and checkpoints: they are written when
    there is space.

    A start on the full disk, after SIGKILL, finds all of it too.
    """
    cluster = ClusterProcesses(tmp_path)
    cluster.directories[3] = disk / "log"
    async with cluster:
        await cluster.create_topic(TOPIC, [[1, 2, 3]])
        ballast = Ballast(disk)
        ballast.drop_in(ROOM_BYTES)
        end = 0
        for _ in range(2 * ROOM_BYTES // len(RECORD)):
            end = await until_acknowledged(cluster, 1) + 1
        await cluster.until_in_sync(TOPIC, members={1, 2})
        ballast.fill_up()
        assert (await cluster.delete(1, TOPIC, end)).error_code == ErrorCode.NONE, cluster.tail()

        async def begins_again() -> bool:
            return any(
                line.get("event") == "log starts over where its leader's does" for line in cluster.brokers[3].lines
            )

        await cluster.until("broker 3 empties its log", begins_again)
        cluster.check_no_faults()
        if restarts:
            await cluster.kill(3)
            await cluster.start(3)
        ballast.throw_out()
        end = await until_acknowledged(cluster, 1) + 1
        await cluster.until_in_sync(TOPIC)

        async def served() -> bool:
            row, records = await cluster.fetch(3, TOPIC, end - 1)
            return row.error_code == ErrorCode.NONE and list(records) == [end - 1]

        await cluster.until("broker 3 serves the later records", served)
        cluster.check_no_faults()
