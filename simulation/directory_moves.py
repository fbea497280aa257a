"""Replicas that are moved between the log directories of their broker while a simulated cluster works, and brokers that die meanwhile.

Nothing of it may harm (docs/adr/0014): what a log has when it takes the partition's place is compared with what is committed, from its
first byte on.
"""

from __future__ import annotations

from typing import Final

from lowtide.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDir, AlterReplicaLogDirsRequest, AlterReplicaLogDirTopic
from lowtide.simulation.admin_faults import ask
from lowtide.simulation.cluster_world import ClusterWorld
from lowtide.simulation.machines import Machine, State
from lowtide.storage.directory.move_place import NO_LIMIT

_RATES: Final = (NO_LIMIT, 20_000.0, 2_000.0)
"""Bytes a second; logs of these runs have some thousand."""

_KILLED_SHARE: Final = 0.5
_AS_IT_MOVES_SHARE: Final = 0.6
"""Of those that die: as soon as the copy has taken its source's place, when little of it may be on the disk."""

_AS_IT_MOVES_S: Final = 2.0
"""For this long at most its broker waits for that."""

_AGAIN_SHARE: Final = 0.3


async def move_between_directories(cluster: ClusterWorld) -> None:
    """A replica is moved; sometimes another request replaces that, and sometimes its broker dies on the way."""
    topic, number, state = cluster.some_partition()
    hosts = [each for each in cluster.machines if each.broker_id in state.replicas and each.state is State.UP and each.is_running]
    if not hosts:
        return
    random, machine = cluster.random, cluster.random.choice(hosts)
    life, before, rate = machine.lives, _done(machine), random.choice(_RATES)
    _limit(machine, rate)
    for _ in range(2 if random.random() < _AGAIN_SHARE else 1):
        path = random.choice(cluster.directories)
        cluster.note(f"{topic}-{number} on {machine.host} is to be in {path}, with {rate} bytes a second")
        asked = AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=[number])])
        await ask(machine, AlterReplicaLogDirsRequest(dirs=[asked]), 2)
        await cluster.sleep(0.0, 0.3)
    if machine.lives != life or machine.state is not State.UP:
        return
    if random.random() < _KILLED_SHARE:
        if random.random() < _AS_IT_MOVES_SHARE and not await _has_moved(cluster, machine, before):
            return
        cluster.effects["kill as a log has moved between directories"] += _done(machine) > before
        cluster.effects["kill during a move between directories"] += _under_way(machine)
        cluster.kill(machine, power=random.random() < 0.5)  # noqa: PLR2004
        await cluster.stay_down(machine)
        await cluster.sleep(0.3, 1.5)
        cluster.effects["move between directories after a start"] += _done(machine) > 0
        return
    await cluster.sleep(0.2, 2.0)
    if machine.lives == life:
        cluster.effects["move between directories"] += _done(machine) > before
        _limit(machine, NO_LIMIT)


async def _has_moved(cluster: ClusterWorld, machine: Machine, before: int) -> bool:
    """Waits until one more log has moved. Returns whether the broker still serves, in the same life."""
    life, until_s = machine.lives, cluster.loop.time() + _AS_IT_MOVES_S
    while machine.lives == life and machine.state is State.UP and _done(machine) == before and cluster.loop.time() < until_s:
        await cluster.sleep(0.0005, 0.002)
    return machine.lives == life and machine.state is State.UP


def _limit(machine: Machine, rate: float) -> None:
    if machine.broker is not None and machine.broker.replicas is not None:
        machine.broker.log_manager.moves.limit(lambda: rate)


def _done(machine: Machine) -> int:
    """Moves that this life of a broker has ended well."""
    if machine.broker is None or machine.broker.replicas is None:
        return 0
    return machine.broker.log_manager.moves.done


def _under_way(machine: Machine) -> bool:
    return machine.broker is not None and machine.broker.replicas is not None and len(machine.broker.log_manager.moves) > 0
