"""Three broker processes and etcd, killed and frozen one after the other or all at once, amid producing, reading and deleting.

Nothing acknowledged with acks=all is lost, nothing deleted with an acknowledgement is served again by anybody, no offset has two values,
and who could answer did so in time. `ROUNDS=n` strikes more often.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from lowtide.testing.etcd import missing

from .cluster_load import PartitionWork
from .cluster_processes import SESSION_TIMEOUT_S, ClusterProcesses

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

ROUNDS = int(os.environ.get("ROUNDS", "1"))
TOPIC = "struck"
SEGMENTS = {"internal.segment.bytes": "20000", "index.interval.bytes": "500", "file.delete.delay.ms": "0"}


class Scene:
    """A cluster, its load, and who is who in it."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self.cluster = cluster
        self.work = PartitionWork(cluster, TOPIC)

    async def leader(self) -> int:
        row = await self.cluster.until_partition(TOPIC, lambda row: row.leader_id >= 0)
        return int(row.leader_id)

    async def follower(self) -> int:
        leader = await self.leader()
        return next(broker_id for broker_id in self.cluster.ids if broker_id != leader)

    async def controller(self) -> int:
        answer = await self.cluster.metadata(self.cluster.awake[0], TOPIC)
        assert answer.controller_id in self.cluster.ids
        return int(answer.controller_id)

    async def progress(self) -> None:
        """All kinds of work go on."""
        await self.work.until("produced", 20)
        await self.work.until("deleted", 3)
        await self.work.until("read", 5)


async def run_scene(tmp_path: Path, strikes: list[Callable[[Scene], Awaitable[None]]]) -> None:
    """Each strike under load, and when all is done everything is read from everybody."""
    async with ClusterProcesses(tmp_path) as cluster:
        await cluster.create_topic(TOPIC, [[1, 2, 3]], configs=SEGMENTS)
        scene = Scene(cluster)
        scene.work.start()
        try:
            await scene.progress()
            for strike in strikes * ROUNDS:
                await strike(scene)
                await scene.progress()
                await cluster.until_in_sync(TOPIC)
            await scene.work.until("read from a follower", 3)
        finally:
            await scene.work.stop()
        await scene.work.check()
        cluster.check_no_faults()


async def kill(scene: Scene, broker_id: int) -> None:
    """SIGKILL; the others go on without it; it comes back."""
    await scene.cluster.kill(broker_id)
    await scene.progress()
    await scene.cluster.start(broker_id)


async def freeze(scene: Scene, broker_id: int) -> None:
    """SIGSTOP until it is given up and the others go on without it; SIGCONT."""
    scene.cluster.freeze(broker_id)
    await scene.cluster.until_partition(TOPIC, lambda row: broker_id not in row.isr_nodes and row.leader_id not in (broker_id, -1))
    await scene.progress()
    scene.cluster.thaw(broker_id)


async def test_the_leader_is_killed(tmp_path: Path) -> None:
    async def strike(scene: Scene) -> None:
        await kill(scene, await scene.leader())

    await run_scene(tmp_path, [strike])


async def test_the_leader_is_frozen(tmp_path: Path) -> None:
    """When it goes on it takes itself for the leader: it must acknowledge nothing, and show nothing that was deleted meanwhile."""

    async def strike(scene: Scene) -> None:
        await freeze(scene, await scene.leader())

    await run_scene(tmp_path, [strike])


async def test_a_follower_is_killed_and_frozen(tmp_path: Path) -> None:
    async def strike_dead(scene: Scene) -> None:
        await kill(scene, await scene.follower())

    async def strike_still(scene: Scene) -> None:
        await freeze(scene, await scene.follower())

    await run_scene(tmp_path, [strike_dead, strike_still])


async def test_the_controller_is_killed_and_frozen(tmp_path: Path) -> None:
    async def strike_dead(scene: Scene) -> None:
        await kill(scene, await scene.controller())

    async def strike_still(scene: Scene) -> None:
        await freeze(scene, await scene.controller())

    await run_scene(tmp_path, [strike_dead, strike_still])


async def test_etcd_is_killed_and_frozen(tmp_path: Path) -> None:
    """For a moment, which nobody notices who produces, and for longer than brokers may do without it."""

    async def strike_briefly(scene: Scene) -> None:
        await asyncio.to_thread(scene.cluster.etcd.kill)
        await asyncio.to_thread(scene.cluster.etcd.start)

    async def strike_long(scene: Scene) -> None:
        scene.cluster.etcd.freeze()
        try:
            await asyncio.sleep(2 * SESSION_TIMEOUT_S)  # as long as it says, for nothing happens then
        finally:
            scene.cluster.etcd.thaw()

    await run_scene(tmp_path, [strike_briefly, strike_long])


async def test_all_brokers_are_killed_at_once(tmp_path: Path) -> None:
    """And again when they are just back. Page caches outlive them, so nothing may be missing."""

    async def strike(scene: Scene) -> None:
        await scene.cluster.kill(*scene.cluster.ids)
        await scene.cluster.start(*scene.cluster.ids)

    await run_scene(tmp_path, [strike, strike])


async def test_a_broker_is_stopped_in_order(tmp_path: Path) -> None:
    """It hands its leadership over before it ends: producers wait for no lease."""

    async def strike(scene: Scene) -> None:
        leader = await scene.leader()
        assert await scene.cluster.terminate(leader) == 0
        row = await scene.cluster.until_partition(TOPIC, lambda row: row.leader_id not in (leader, -1))
        assert leader not in row.isr_nodes
        await scene.progress()
        await scene.cluster.start(leader)

    await run_scene(tmp_path, [strike])
