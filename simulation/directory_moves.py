"""Moves replicas between log directories of their broker while a simulated cluster works, with crashes.

Moves must be harmless (docs/adr/0014): a log that replaces its source is compared with what is committed, from its
first byte.
"""

from __future__ import annotations

from typing import Final

from lowtide.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from lowtide.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from lowtide.protocol.types import TopicPartition
from lowtide.simulation.admin_faults import ask
from lowtide.simulation.cluster_world import ClusterWorld
from lowtide.simulation.machines import Machine, State
from lowtide.storage.directory.allowance import NO_LIMIT

_RATES: Final = (NO_LIMIT, 20_000.0, 2_000.0)
"""Bytes per second; the logs have some thousand bytes."""

_KILLED_SHARE: Final = 0.5
_AS_IT_MOVES_SHARE: Final = 0.6
"""The share of crashes right after the copy replaces its source, when little of it may be durable."""

_AS_IT_MOVES_S: Final = 2.0
"""The maximum time that a crash waits for that."""

_AGAIN_SHARE: Final = 0.3

_NEW_SHARE: Final = 0.15
"""The share of moves of a new topic without flushed records."""

_SLOW_SHARE: Final = 0.3
"""The share of moves into a directory with slow syncs, followed by a power cut."""

_SLOW_SYNC_MS: Final = (100.0, 600.0)
_SLOW_EXCUSE_S: Final = 8.0
"""Longer than a move takes: responses wait for these syncs."""

_CREATE_TIMEOUT_MS: Final = 1000
_CREATE_VERSION: Final = 7


async def move_between_directories(cluster: ClusterWorld) -> None:
    """Moves a replica; sometimes another request replaces the move, and sometimes its broker dies."""
    if cluster.random.random() < _NEW_SHARE and await _move_new_one(cluster):
        return
    topic, number, state = cluster.some_partition()
    hosts = [
        each
        for each in cluster.machines
        if each.broker_id in state.replicas and each.state is State.UP and each.is_running
    ]
    if not hosts:
        return
    random, machine = cluster.random, cluster.random.choice(hosts)
    life, before, rate = machine.lives, _done(machine), random.choice(_RATES)
    _limit(machine, rate)
    paths = [random.choice(cluster.directories) for _ in range(2 if random.random() < _AGAIN_SHARE else 1)]
    is_slow = random.random() < _SLOW_SHARE
    if is_slow:
        _slow_one(cluster, machine, paths[-1])
    for path in paths:
        cluster.note(f"{topic}-{number} on {machine.host} is to be in {path}, with {rate} bytes a second")
        asked = AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=[number])])
        await ask(machine, AlterReplicaLogDirsRequest(dirs=[asked]), 2)
        await cluster.sleep(0.0, 0.3)
    if machine.lives != life or machine.state is not State.UP:
        return
    if is_slow or random.random() < _KILLED_SHARE:
        if (is_slow or random.random() < _AS_IT_MOVES_SHARE) and not await _has_moved(cluster, machine, before):
            machine.slow_disk()
            return
        cluster.effects["kill as a log has moved between directories"] += _done(machine) > before
        cluster.effects["kill during a move between directories"] += _under_way(machine)
        cluster.kill(machine, power=is_slow or random.random() < 0.5)  # noqa: PLR2004
        await cluster.stay_down(machine)
        await cluster.sleep(0.3, 1.5)
        cluster.effects["move between directories after a start"] += _done(machine) > 0
        return
    await cluster.sleep(0.2, 2.0)
    if machine.lives == life:
        cluster.effects["move between directories"] += _done(machine) > before
        _limit(machine, NO_LIMIT)
        machine.slow_disk()


def _slow_one(cluster: ClusterWorld, machine: Machine, path: str) -> None:
    """Slows the syncs of a log directory until its broker dies or the move ends."""
    if len(machine.committers) == len(cluster.directories):
        machine.committers[cluster.directories.index(path)].delay_range_ms = _SLOW_SYNC_MS
        cluster.excuses.note(machine.broker_id, after_s=_SLOW_EXCUSE_S)
        cluster.note(f"{path} of {machine.host} syncs slowly")


async def _move_new_one(cluster: ClusterWorld) -> bool:
    """Moves a new partition, followed by a power cut. Returns whether there was one."""
    machine = cluster.pick(State.UP)
    if machine is None or not machine.is_running:
        return False
    name = f"new-{len(cluster.shared.image.topics)}-{machine.lives}"
    assigned = CreatableReplicaAssignment(partition_index=0, broker_ids=[machine.broker_id])
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=[assigned], configs=[])
    life, before = machine.lives, _done(machine)
    await ask(machine, CreateTopicsRequest(topics=[topic], timeout_ms=_CREATE_TIMEOUT_MS), _CREATE_VERSION)
    key = TopicPartition(name, 0)
    until_s = cluster.loop.time() + _AS_IT_MOVES_S
    while cluster.loop.time() < until_s and machine.lives == life and machine.state is State.UP:
        broker = machine.broker
        if broker is not None and broker.replicas is not None and key in broker.replicas.partitions:
            break
        await cluster.sleep(0.001, 0.01)
    else:
        return False
    _limit(machine, NO_LIMIT)
    cluster.note(f"{key}, which is new on {machine.host}, is moved")
    for path in cluster.directories:
        if path != broker.replicas.partitions[key].log.parent_directory:
            asked = AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=name, partitions=[0])])
            await ask(machine, AlterReplicaLogDirsRequest(dirs=[asked]), 2)
            break
    if await _has_moved(cluster, machine, before) and machine.lives == life:
        cluster.effects["power cut as a new log has moved"] += _done(machine) > before
        cluster.kill(machine, power=True)
        await cluster.stay_down(machine)
    return True


async def _has_moved(cluster: ClusterWorld, machine: Machine, before: int) -> bool:
    """Waits until one more log has moved. Returns whether the same process still serves."""
    life, until_s = machine.lives, cluster.loop.time() + _AS_IT_MOVES_S
    while (
        machine.lives == life
        and machine.state is State.UP
        and _done(machine) == before
        and cluster.loop.time() < until_s
    ):
        await cluster.sleep(0.0005, 0.002)
    return machine.lives == life and machine.state is State.UP


def _limit(machine: Machine, rate: float) -> None:
    if machine.broker is not None and machine.broker.replicas is not None:
        machine.broker.log_manager.moves.limit(lambda: rate)


def _done(machine: Machine) -> int:
    """Returns the number of completed moves of the broker's process."""
    if machine.broker is None or machine.broker.replicas is None:
        return 0
    return machine.broker.log_manager.moves.done


def _under_way(machine: Machine) -> bool:
    return (
        machine.broker is not None and machine.broker.replicas is not None and len(machine.broker.log_manager.moves) > 0
    )
