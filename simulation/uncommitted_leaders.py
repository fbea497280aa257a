"""A fault against leaders that act on uncommitted records, above all coordinators, whose state is their log.

An in-sync replica has no space for new records of one partition, and lags. Its leader dies with records that one other
replica has, which leads next; that one dies too, a moment later or at once, and the lagging one leads. A response that
was based on those records was too early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lowtide.broker.coordinator.runtime.offsets_topic import GROUP_TOPIC
from lowtide.broker.coordinator.transactions.transaction_coordinator import TRANSACTION_TOPIC
from lowtide.runtime.filesystem.planned_faults import Operation
from lowtide.simulation.machines import Machine, State

if TYPE_CHECKING:
    from lowtide.simulation.cluster_world import ClusterWorld

APPENDED_WITHIN_S: Final = 1.0
"""A lagging replica stays in sync for longer."""

WHOLE_WITHIN_LOOKS: Final = 30
_WHOLE_LOOK_S: Final = 0.1
"""The time to wait for three in-sync replicas, because other faults strike too."""

LED_WITHIN_S: Final = 3.0
_LOOK_S: Final = 0.005
_REPLICAS: Final = 3


async def leaders_die_uncommitted(cluster: ClusterWorld) -> None:
    """Kills two leaders of one partition in turn, while the third replica lags."""
    found = _some_partition(cluster)
    for _ in range(WHOLE_WITHIN_LOOKS):
        if found is not None:
            break
        await asyncio.sleep(_WHOLE_LOOK_S)
        found = _some_partition(cluster)
    if found is None:
        return
    topic, number, leader, second, third = found
    machines = (leader, second, third)
    for machine in machines:
        cluster.excuses.begin(machine.broker_id)
    part = f"/{topic}-{number}/"

    def lacks_room(operation: Operation, path: str) -> bool:
        return operation == "write" and part in path

    third.filesystem.lacks_room = lacks_room
    cluster.note(f"{third.host} has no room for {topic}-{number}, which {leader.host} leads")
    if await _until(lambda: _has_uncommitted(leader, second, topic, number), APPENDED_WITHIN_S):
        await cluster.sleep(0.0, 0.4)  # Others come to wait, too.
        cluster.kill(leader)
        if cluster.random.random() < 0.8 and await _until(lambda: _leads(cluster, second, topic, number), LED_WITHIN_S):  # noqa: PLR2004
            await cluster.sleep(0.02, 0.5)
        if second.state is State.UP:
            cluster.kill(second)
            if await _until(lambda: _leads(cluster, third, topic, number), LED_WITHIN_S):
                cluster.effects["leaders died uncommitted"] += 1
                await cluster.sleep(0.0, 0.3)
    if third.filesystem.lacks_room is lacks_room:
        third.filesystem.lacks_room = None
    cluster.note(f"{third.host} has room for {topic}-{number}")
    for machine in cluster.random.sample((leader, second), 2):
        cluster.start(machine)
        await cluster.sleep(0.0, 0.5)
    await cluster.revive(third)
    for machine in machines:
        cluster.excuses.end(machine.broker_id, after_s=1.0)


def _some_partition(cluster: ClusterWorld) -> tuple[str, int, Machine, Machine, Machine] | None:
    """Returns a partition with three in-sync replicas on running machines: its leader and two others.

    Partitions of coordinators come first.
    """
    topics = cluster.shared.image.topics
    names = [name for name in (TRANSACTION_TOPIC, GROUP_TOPIC) if name in topics]
    if names and cluster.random.random() < 0.8:  # noqa: PLR2004
        topic = cluster.random.choice(names)
        number = cluster.random.randrange(len(topics[topic].partitions))
        state = topics[topic].partitions[number]
    else:
        topic, number, state = cluster.some_partition()
    up = {
        machine.broker_id: machine for machine in cluster.machines if machine.state is State.UP and machine.is_running
    }
    leader = up.get(state.leader)
    # The controller elects the first in-sync replica.
    others = [
        up[broker_id]
        for broker_id in state.replicas
        if broker_id in up and broker_id in state.isr and broker_id != state.leader
    ]
    if leader is None or len(others) < _REPLICAS - 1:
        return None
    return topic, number, leader, others[0], others[1]


def _ends(machine: Machine, topic: str, number: int) -> tuple[int, int] | None:
    """Returns high watermark and end of a replica's log."""
    replicas = None if machine.broker is None else machine.broker.replicas
    partition = None if replicas is None else replicas.partitions.get((topic, number))
    return None if partition is None else (partition.log.high_watermark, partition.log.log_end_offset)


def _has_uncommitted(leader: Machine, second: Machine, topic: str, number: int) -> bool:
    """Returns whether the leader and the next leader have uncommitted records."""
    ends, others = _ends(leader, topic, number), _ends(second, topic, number)
    return ends is not None and others is not None and ends[0] < ends[1] == others[1]


def _leads(cluster: ClusterWorld, machine: Machine, topic: str, number: int) -> bool:
    state = cluster.partition(topic, number)
    return state is not None and state.leader == machine.broker_id


async def _until(condition: Callable[[], bool], within_s: float) -> bool:
    """Waits for a condition. Returns whether it became true."""
    for _ in range(int(within_s / _LOOK_S)):
        if condition():
            return True
        await asyncio.sleep(_LOOK_S)
    return condition()
