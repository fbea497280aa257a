"""A disk that is full, on the leader and then on a follower, over a small file system in memory, where the machine lets one be mounted.

Full is not broken: a leader refuses what it can't write and serves what it has, a follower falls behind, and both go on when there is room.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.testing.etcd import missing
from tests.clients.command_lines import run_process

from .cluster_processes import ClusterProcesses

DISK_BYTES = 24 << 20
ROOM_BYTES = 300_000
RECORD = b"x" * 20_000
TOPIC = "full"


def missing_mounts() -> str | None:
    """Why nothing can be mounted here; None where it can."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return "a full disk needs a small file system, which only root can mount"
    folder = tempfile.mkdtemp()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        subprocess.run(["umount", folder], check=True)
    Path(folder).rmdir()
    return None if done.returncode == 0 else f"a small file system can't be mounted here: {done.stderr.strip()}"


REASON = missing() or missing_mounts()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The mount point of a file system of `DISK_BYTES`."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], check=True, capture_output=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


class Ballast:
    """A file that leaves little room."""

    def __init__(self, disk: Path) -> None:
        self._path = disk / "ballast"

    def drop_in(self) -> None:
        status = os.statvfs(self._path.parent)
        size = status.f_bavail * status.f_frsize - ROOM_BYTES
        assert size > 0
        self._path.write_bytes(bytes(size))

    def fill_up(self) -> None:
        """Leave no room at all."""
        with self._path.open("ab", buffering=0) as file:
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))

    def throw_out(self) -> None:
        self._path.unlink()


async def produce_one(cluster: ClusterProcesses, leader: int) -> tuple[ErrorCode, int]:
    row = await cluster.produce(leader, TOPIC, [RECORD], timeout_ms=5000)
    return ErrorCode(row.error_code), row.base_offset


async def until_acknowledged(cluster: ClusterProcesses, leader: int) -> int:
    """Produce until it works; returns the offset."""
    offsets: list[int] = []

    async def acknowledged() -> bool:
        error, offset = await produce_one(cluster, leader)
        offsets.append(offset)
        return error == ErrorCode.NONE

    await cluster.until("a record is acknowledged", acknowledged)
    return offsets[-1]


async def test_a_full_disk_on_the_leader(tmp_path: Path, disk: Path) -> None:
    """Appends are refused, what is there is served and deleted, and when there is room the same leader goes on."""
    cluster = ClusterProcesses(tmp_path)
    cluster.directories[1] = disk / "log"
    async with cluster:
        await cluster.create_topic(TOPIC, [[1, 2, 3]])
        ballast = Ballast(disk)
        ballast.drop_in()
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
    """The first such line of a broker's log."""
    found: list[dict[str, Any]] = []

    async def told() -> bool:
        found.extend(line for line in cluster.brokers[broker_id].lines if line.get("event") == event)
        return bool(found)

    await cluster.until(f"broker {broker_id} says: {event}", told)
    return found[0]


async def check_commands(cluster: ClusterProcesses, directory: Path) -> None:
    """Both commands show it, and what takes the room, to people and to programs."""
    for words, code in ((("cluster", "status"), 1), (("log-dirs",), 0)):
        ran = await asyncio.to_thread(run_process, *words, bootstrap=cluster.bootstrap, code=code)
        assert "Log directories without room:" in ran.stdout, ran.stdout
        assert str(directory) in ran.stdout
        assert TOPIC in ran.stdout
        assert "lowtide records delete" in ran.stdout
    ran = await asyncio.to_thread(run_process, "cluster", "status", "--output", "json", bootstrap=cluster.bootstrap, code=1)
    (row,) = json.loads(ran.stdout)["full_log_dirs"]
    assert (row["broker"], row["path"], TOPIC in row["largest_topics"]) == (1, str(directory), True)
    assert row["usable_bytes"] < 1 << 20 <= row["total_bytes"]


async def test_a_full_disk_on_a_follower(tmp_path: Path, disk: Path) -> None:
    """It falls out of the ISR, the others go on, and when there is room it catches up."""
    cluster = ClusterProcesses(tmp_path)
    cluster.directories[3] = disk / "log"
    async with cluster:
        await cluster.create_topic(TOPIC, [[1, 2, 3]])
        ballast = Ballast(disk)
        ballast.drop_in()
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
async def test_a_delete_passes_the_log_end_of_a_follower_whose_disk_is_full(tmp_path: Path, disk: Path, *, restarts: bool) -> None:
    """Its log begins again where the leader's does, which needs an epochs file and checkpoints: they are written when there is room.

    A start on the full disk, after SIGKILL, finds all of it too.
    """
    cluster = ClusterProcesses(tmp_path)
    cluster.directories[3] = disk / "log"
    async with cluster:
        await cluster.create_topic(TOPIC, [[1, 2, 3]])
        ballast = Ballast(disk)
        ballast.drop_in()
        end = 0
        for _ in range(2 * ROOM_BYTES // len(RECORD)):
            end = await until_acknowledged(cluster, 1) + 1
        await cluster.until_in_sync(TOPIC, members={1, 2})
        ballast.fill_up()
        assert (await cluster.delete(1, TOPIC, end)).error_code == ErrorCode.NONE, cluster.tail()

        async def begins_again() -> bool:
            return any(line.get("event") == "log starts over where its leader's does" for line in cluster.brokers[3].lines)

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

        await cluster.until("broker 3 serves what came since", served)
        cluster.check_no_faults()
