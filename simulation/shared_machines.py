"""Brokers that share a machine under one supervisor, and faults of that.

Brokers of one rack are on one machine. Its power cut takes all of them; when a supervisor dies, its brokers stop by
themselves, and its successor starts none before the last has ended; when a supervisor sees a broker end, it ends its
lease at once, so that the others need not wait for its session. It also moves leaderships between its brokers.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from lowtide.broker.lifecycle.running import give
from lowtide.metadata.store import NO_LEASE, LeaseId, MetadataStoreError
from lowtide.replication.leader_balance import LeaderMove
from lowtide.simulation.cluster_world import ClusterWorld
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.neighbours import Beside, SharedMachine

_END_LIMIT_S: Final = 20.0
_SHARE_OF_KILLED: Final = 0.3
_LOOK_S: Final = 0.02


def share_machines(cluster: ClusterWorld) -> None:
    """Makes brokers know the others on their machine, from their next start."""
    for machine in cluster.machines:
        assert isinstance(machine, SharedMachine), machine
        machine.neighbours = Beside(beside(cluster, machine))


async def leaders_are_given(cluster: ClusterWorld) -> None:
    """Has a broker give a partition to another in-sync one of its machine."""
    topic, number, state = cluster.some_partition()
    leader = next((each for each in cluster.machines if each.broker_id == state.leader and each.is_running), None)
    if leader is None or leader.broker is None:
        return
    beside_it = [
        each.broker_id for each in beside(cluster, leader) if each is not leader and each.broker_id in state.isr
    ]
    if not beside_it:
        return
    receiver = cluster.random.choice(beside_it)
    cluster.note(f"{topic}-{number} is to be given by {leader.host} to broker {receiver}")
    give(leader.broker, LeaderMove(topic, number, leader.broker_id, receiver, 0.1, 0.9, 0.1))
    await cluster.sleep(0.0, 1.0)
    now = cluster.partition(topic, number)
    cluster.effects["leadership given"] += (
        now is not None and now.leader == receiver and now.leader_epoch == state.leader_epoch + 1
    )


def beside(cluster: ClusterWorld, machine: Machine) -> list[Machine]:
    """Returns the brokers on this one's machine, including it."""
    rack = machine.settings["broker.rack"]
    return [each for each in cluster.machines if each.settings["broker.rack"] == rack]


async def machine_dies(cluster: ClusterWorld) -> None:
    """Cuts the power of a machine with all its brokers, which return one by one."""
    brokers = beside(cluster, cluster.random.choice(cluster.machines))
    cluster.note(f"the machine of {', '.join(each.host for each in brokers)} loses its power")
    cluster.effects["death of a machine"] += sum(each.state is State.UP for each in brokers) > 1
    for each in brokers:
        cluster.kill(each, power=True)
    await cluster.sleep(0.0, 3.0)
    for each in brokers:
        await cluster.sleep(0.0, 0.3)
        cluster.start(each)


async def supervisor_dies(cluster: ClusterWorld) -> None:
    """Kills a supervisor: its brokers end by themselves or are killed, and all start after the last has ended."""
    brokers = beside(cluster, cluster.random.choice(cluster.machines))
    cluster.note(f"the supervisor of {', '.join(each.host for each in brokers)} is killed")
    cluster.effects["death of a supervisor"] += sum(each.state is State.UP for each in brokers) > 1
    for each in brokers:
        cluster.excuses.begin(each.broker_id)
        if each.state is State.UP and each.is_running and cluster.random.random() >= _SHARE_OF_KILLED:
            each.stop()
            if each.broker is not None:
                each.broker.hurry()
        else:
            cluster.kill(each)
    lives = {each.host: each.lives for each in brokers}
    ends_s = cluster.loop.time() + _END_LIMIT_S
    while cluster.loop.time() < ends_s and any(each.state is not State.DOWN for each in brokers):
        await cluster.sleep(0.0, _LOOK_S)
    for each in brokers:
        if each.state is not State.DOWN and each.lives == lives[each.host]:
            cluster.kill(each)  # A fault that came meanwhile keeps it: by now an operator ends it.
        cluster.start(each)
        cluster.excuses.end(each.broker_id, after_s=1.0)


async def death_is_seen(cluster: ClusterWorld) -> None:
    """Kills a process whose lease ends at once, as its supervisor sees it end; it restarts soon."""
    machine = cluster.pick(State.UP)
    if machine is None:
        return
    lease = _lease_of(machine)
    cluster.kill(machine)
    if lease != NO_LEASE:
        cluster.shared.carry(lambda: _end(cluster, lease))
    await cluster.sleep(0.1, 1.0)
    cluster.start(machine)


async def _end(cluster: ClusterWorld, lease: LeaseId) -> None:
    with suppress(MetadataStoreError):  # It ends by itself then.
        await cluster.shared.store.lease_revoke(lease)
        cluster.effects["lease that ended with its process"] += 1


def _lease_of(machine: Machine) -> LeaseId:
    session = None if machine.broker is None else machine.broker._session  # noqa: SLF001 - what its supervisor would have granted
    return NO_LEASE if session is None else session._lease.id  # noqa: SLF001
