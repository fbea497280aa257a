"""Faults against erasures: they strike runs that erase single records.

A replica returns without an erasure that others have forgotten already; all lose their power soon after it is in sync
again. Or an erasure isn't committed when its leader and the next one die, so that the third replica truncates it; then
these start again from what they had flushed.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lowtide.simulation.cluster_world import ClusterWorld
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.uncommitted_leaders import leaders_die_uncommitted

_IN_SYNC_LOOKS: Final = 600
_LOOK_S: Final = 0.005


async def volume_put_back(cluster: ClusterWorld) -> None:
    """Puts an earlier copy of a disk back, and cuts the power of all soon after its replica is in sync again."""
    machine = cluster.pick(State.UP)
    if machine is None or not cluster.may_lose_disk(machine):
        return
    cluster.kill(machine, power=True)
    copy = machine.filesystem.root.copy()
    cluster.start(machine)
    await cluster.sleep(1.0, 3.0)
    if machine.state is not State.UP or not cluster.may_lose_disk(machine):
        return
    cluster.kill(machine)
    cluster.note(f"{machine.host} gets the disk back that it had")
    machine.replace_disk(copy)
    cluster.invariants.on_disk_replaced(machine)
    await cluster.sleep(0.0, 1.5)
    cluster.start(machine)
    if not await _is_in_sync(cluster, machine):
        return
    cluster.effects["volume put back"] += 1
    await cluster.sleep(0.0, 0.3)
    if cluster.random.random() < 0.3:  # noqa: PLR2004 - the others serve on, and so does this one
        return
    for each in cluster.machines:
        cluster.kill(each, power=True)
    first = cluster.random.random() < 0.7  # noqa: PLR2004
    for each in sorted(cluster.shuffled(), key=lambda other: other is not machine) if first else cluster.shuffled():
        cluster.start(each)
        await cluster.sleep(0.0, 1.5 if each is machine else 0.3)


async def erasure_truncated(cluster: ClusterWorld) -> None:
    """Lets two leaders die before what they appended is committed; then they start from what they had flushed."""
    await leaders_die_uncommitted(cluster)
    await cluster.sleep(0.1, 1.5)
    for machine in cluster.shuffled():
        if machine.state is State.UP and cluster.random.random() < 0.6:  # noqa: PLR2004
            cluster.kill(machine, power=cluster.random.random() < 0.3)  # noqa: PLR2004
            cluster.effects["started from what was flushed"] += 1
            await cluster.sleep(0.0, 0.2)
            cluster.start(machine)


async def _is_in_sync(cluster: ClusterWorld, machine: Machine) -> bool:
    """Waits until a broker is in the ISR of all its partitions, under its present registration."""
    life = machine.lives
    for _ in range(_IN_SYNC_LOOKS):
        if machine.lives != life:
            return False
        states = [state for topic in cluster.shared.image.topics.values() for state in topic.partitions]
        own = [state for state in states if machine.broker_id in state.replicas]
        epoch = cluster.shared.image.broker_epoch(machine.broker_id)
        if machine.state is State.UP and all(state.members.get(machine.broker_id) == epoch for state in own):
            return True
        await asyncio.sleep(_LOOK_S)
    return False
