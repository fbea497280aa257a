"""An etcd that is restored from a backup, with brokers stopped, down or running: no acknowledged record is lost, no
deleted one returns.

No broker acts on such a store, and each says what to do.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lowtide.protocol.errors import ErrorCode
from tests.etcd import CONTROL_PROGRAM, missing

from .cluster_processes import ClusterProcesses
from .serving import run_to_end

pytestmark = pytest.mark.skipif(
    missing() is not None or shutil.which(CONTROL_PROGRAM) is None, reason="etcd or etcdctl is missing"
)

EARLY, LATE = "early", "late"
VALUES = [b"value %d" % number for number in range(20)]
MORE = [b"more %d" % number for number in range(20)]
X = 15
REMEDY = "lowtide metadata recover"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterProcesses]:
    async with ClusterProcesses(tmp_path) as made:
        yield made


async def produced(cluster: ClusterProcesses, topic: str, values: list[bytes]) -> None:
    await cluster.until_in_sync(topic)
    await cluster.acknowledged(topic, lambda leader: cluster.produce(leader, topic, values))


async def changed_without_3(cluster: ClusterProcesses) -> None:
    """Records and a delete of which broker 3 learns nothing."""
    await cluster.until_in_sync(EARLY, members={1, 2})
    await cluster.acknowledged(EARLY, lambda leader: cluster.produce(leader, EARLY, MORE))
    await cluster.acknowledged(EARLY, lambda leader: cluster.delete(leader, EARLY, X))


class Backup:
    """The backup of etcd: a snapshot, as its guide recommends, or a copy of its files, which is not supported."""

    def __init__(self, cluster: ClusterProcesses, folder: Path, *, copied: bool) -> None:
        self.etcd = cluster.etcd
        self.folder = folder
        self.copied = copied

    async def save(self) -> None:
        if not self.copied:
            await asyncio.to_thread(self.etcd.save, self.folder / "snapshot")
            return
        await asyncio.to_thread(self.etcd.terminate)
        shutil.copytree(self.etcd.directory, self.folder / "files")
        await asyncio.to_thread(self.etcd.start)

    async def put_back(self) -> None:
        await asyncio.to_thread(self.etcd.kill)
        if self.copied:
            shutil.rmtree(self.etcd.directory)
            shutil.copytree(self.folder / "files", self.etcd.directory)
        else:
            await asyncio.to_thread(self.etcd.restore, self.folder / "snapshot")
        await asyncio.to_thread(self.etcd.start)


async def saved_without_3(cluster: ClusterProcesses, backup: Backup) -> None:
    """Kills broker 3, and makes a backup in which it is still in sync and may lead."""
    while True:
        await cluster.kill(3)
        await backup.save()
        row = await cluster.partition(EARLY)
        if row is not None and 3 in row.isr_nodes:
            return
        await cluster.start(3)
        await cluster.until_in_sync(EARLY)


async def refused(cluster: ClusterProcesses, broker_id: int) -> str:
    """Starts a broker that must refuse to start. Returns its message."""
    await cluster.launch(broker_id)
    assert await cluster.brokers[broker_id].ended() == 2
    return "\n".join(cluster.brokers[broker_id].faults)


def logs_of(cluster: ClusterProcesses, topic: str) -> dict[int, bytes]:
    return {
        broker_id: (directory / f"{topic}-0" / "00000000000000000000.log").read_bytes()
        for broker_id, directory in cluster.directories.items()
    }


async def saved_before_the_last_topic(cluster: ClusterProcesses, folder: Path, *, copied: bool) -> Backup:
    await cluster.create_topic(EARLY, [[1, 2, 3]])
    await produced(cluster, EARLY, VALUES)
    backup = Backup(cluster, folder, copied=copied)
    await backup.save()
    await cluster.create_topic(LATE, [[1, 2, 3]])
    await produced(cluster, LATE, VALUES)
    return backup


@pytest.mark.parametrize("copied", [False, True], ids=["snapshot", "files"])
@pytest.mark.slow
async def test_brokers_stopped(cluster: ClusterProcesses, tmp_path: Path, *, copied: bool) -> None:
    """Topics that were created since the backup keep their folders and records."""
    backup = await saved_before_the_last_topic(cluster, tmp_path, copied=copied)
    for broker_id in cluster.ids:
        assert await cluster.terminate(broker_id) == 0
    before = logs_of(cluster, LATE)
    await backup.put_back()
    for broker_id in cluster.ids:
        assert REMEDY in await refused(cluster, broker_id)
    assert logs_of(cluster, LATE) == before


@pytest.mark.slowest
async def test_a_broker_that_was_down_is_the_first(cluster: ClusterProcesses, tmp_path: Path) -> None:
    """It has nothing from after the backup; it detects the restore from a snapshot anyway.

    The others do not truncate.
    """
    await cluster.create_topic(EARLY, [[1, 2, 3]])
    await produced(cluster, EARLY, VALUES)
    await saved_without_3(cluster, backup := Backup(cluster, tmp_path, copied=False))
    await changed_without_3(cluster)
    await cluster.kill(1, 2)
    before = logs_of(cluster, EARLY)
    await backup.put_back()
    told = await refused(cluster, 3)
    assert "restored from a snapshot" in told
    assert REMEDY in told
    for broker_id in (1, 2, 3):
        assert "broker 3 found" in await refused(cluster, broker_id), "one detects it, all are stopped"
    assert logs_of(cluster, EARLY) == before


@pytest.mark.parametrize("copied", [False, True], ids=["snapshot", "files"])
@pytest.mark.slowest
async def test_brokers_running(cluster: ClusterProcesses, tmp_path: Path, *, copied: bool) -> None:
    """All stop acting, and once etcd answers again none answers with success."""
    backup = await saved_before_the_last_topic(cluster, tmp_path, copied=copied)
    before = logs_of(cluster, LATE)
    await backup.put_back()
    ended = [cluster.brokers[broker_id].ended() for broker_id in cluster.ids]
    async with asyncio.timeout(120):
        assert await asyncio.gather(*ended) == [1, 1, 1]
    for broker in cluster.brokers.values():
        assert any(REMEDY in str(line) for line in broker.lines), broker.lines[-5:]
    for broker_id in cluster.ids:
        assert REMEDY in await refused(cluster, broker_id)
    assert logs_of(cluster, LATE) == before


@pytest.mark.slowest
async def test_one_of_three_alone_leads_on_an_unchanged_etcd(cluster: ClusterProcesses) -> None:
    """After a power cut of everything, etcd too, no operator action is needed."""
    await cluster.create_topic(EARLY, [[1, 2, 3]], configs={"min.insync.replicas": "1"})
    await produced(cluster, EARLY, VALUES)
    await cluster.kill(*cluster.ids)
    await asyncio.to_thread(cluster.etcd.kill)
    await asyncio.to_thread(cluster.etcd.start)

    async def nobody_is_registered() -> bool:
        return await asyncio.to_thread(cluster.etcd.count, b"/lowtide/brokers/") == 0

    await cluster.until(
        "the leases have ended", nobody_is_registered
    )  # Otherwise broker 2 waits for those that seem to be live.
    await cluster.start(2)
    row = await cluster.until_partition(EARLY, _is_led_by(2), of=2)
    assert row.leader_id == 2
    await cluster.until("it serves what there is", lambda: _shows(cluster, 2, len(VALUES)))


def _is_led_by(broker_id: int) -> Callable[..., bool]:
    return lambda row: row.leader_id == broker_id


async def _shows(cluster: ClusterProcesses, broker_id: int, end: int) -> bool:
    return await cluster.bounds(broker_id, EARLY) == (0, end)


async def lowtide_metadata(*words: str, code: int = 0) -> str:
    done = await asyncio.to_thread(run_to_end, [sys.executable, "-m", "lowtide.cli.main", "metadata", *words])
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


async def brought_forward(cluster: ClusterProcesses, folder: Path) -> str:
    """Follows the page: a file of each machine, a dry run, the recovery. Returns the output of the dry run."""
    files = [str(folder / f"broker-{broker_id}.json") for broker_id in cluster.ids]
    for file, directory in zip(files, cluster.directories.values(), strict=True):
        await lowtide_metadata("export", "--log-dirs", str(directory), file)
    address = ("--metadata", f"etcd://{cluster.etcd.endpoint}")
    assert "must be recovered" in await lowtide_metadata("status", *address, *files, code=1)
    assert "what broker 3 knows is missing" in await lowtide_metadata("recover", *address, *files[:2], "--yes", code=1)
    rehearsal = await lowtide_metadata("recover", *address, *files, "--dry-run")
    await lowtide_metadata("recover", *address, *files, "--yes")
    assert "Nothing to do" in await lowtide_metadata("recover", *address, *files, "--yes")
    return rehearsal


@pytest.mark.parametrize("is_lost", [False, True], ids=["restored", "lost"])
@pytest.mark.slow
async def test_everything_is_restored_after_a_recovery(
    cluster: ClusterProcesses, tmp_path: Path, *, is_lost: bool
) -> None:
    """Topics, records and deletes after the backup survive, with any broker first and no etcd left."""
    await cluster.create_topic(EARLY, [[1, 2, 3]])
    await produced(cluster, EARLY, VALUES)
    backup = Backup(cluster, tmp_path, copied=False)
    await backup.save()
    await cluster.kill(3)
    await cluster.create_topic(LATE, [[1, 2]], configs={"retention.ms": "-1"})
    await produced(cluster, LATE, VALUES)
    await changed_without_3(cluster)
    await cluster.kill(1, 2)
    if is_lost:
        await asyncio.to_thread(cluster.etcd.kill)
        shutil.rmtree(cluster.etcd.directory)
        await asyncio.to_thread(cluster.etcd.start)
    else:
        await backup.put_back()
    assert REMEDY in await refused(cluster, 1)
    rehearsal = await brought_forward(cluster, tmp_path)
    assert f"topic {LATE}: missing in the store, will be restored" in rehearsal
    await cluster.start(3)
    row = await cluster.partition(EARLY, of=3)
    assert row is not None
    assert row.leader_id == -1, "it lacks acknowledged records"
    await cluster.start(1, 2)
    await cluster.until_in_sync(EARLY)
    expected = dict(enumerate([*VALUES, *MORE][X:], X))
    for broker_id in cluster.ids:
        await cluster.until(
            f"broker {broker_id} has it all", lambda broker_id=broker_id: _has(cluster, broker_id, EARLY, expected)
        )
    await cluster.until_in_sync(LATE)
    assert await cluster.bounds((await cluster.until_in_sync(LATE)).leader_id, LATE) == (0, len(VALUES))
    await produced(cluster, EARLY, VALUES)


async def _has(cluster: ClusterProcesses, broker_id: int, topic: str, expected: dict[int, bytes]) -> bool:
    row, records = await cluster.fetch(broker_id, topic, min(expected))
    return row.error_code == ErrorCode.NONE and records == expected and row.log_start_offset == min(expected)
