"""The end of a run of a simulated cluster, after all is healed: what must become true, and when.

L1 (liveness) all partitions have leaders and accept writes within 15 s, and all replicas are in sync within 30 s; P5
replicas are equal; both also for partitions without writes; rule DR5 an idle delete takes two round trips and two
commits; R1, R3, R6 and D1 everything is read back; D13 nothing waits any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import Offset
from lowtide.replication.controller import ControllerSettings, elects_unclean
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_load import PartitionLoad
from lowtide.simulation.cluster_world import ClusterWorld
from lowtide.simulation.partition_actors import Deleter, Producer
from lowtide.simulation.shared_store import REQUEST_TIMEOUT_S

WRITABLE_WITHIN_S: Final = 15.0
IN_SYNC_WITHIN_S: Final = 30.0
EQUAL_WITHIN_S: Final = 5.0

IDLE_DELETE_S: Final = 0.025
"""Two round trips of at most 2 ms, two commits of at most 2 ms, the 5 ms that a follower may wait for its own commit,
and some slack."""

_LOOK_S: Final = 0.05
_PROBES: Final = 3
_PROBE_TIMEOUT_MS: Final = 3000


async def until(cluster: ClusterWorld, condition: Callable[[], bool], what: str, limit_s: float) -> None:
    """Waits for a condition. Errors: HistoryError if it does not become true in time."""
    give_up_s = cluster.loop.time() + limit_s
    while not condition():
        cluster.chronicle.raise_violation()
        if cluster.loop.time() >= give_up_s:
            cluster.chronicle.violate(f"L1: not within {limit_s} s: {what}; {describe(cluster)}")
            cluster.chronicle.raise_violation()
        await asyncio.sleep(_LOOK_S)


def describe(cluster: ClusterWorld) -> str:
    """Describes the partitions and brokers in a line."""
    image = cluster.shared.image
    parts = [
        f"{topic.name}-{number}: leader {state.leader} epoch {state.leader_epoch} isr {state.isr} of {state.replicas}"
        for topic in image.topics.values()
        for number, state in enumerate(topic.partitions)
    ]
    states = [f"{machine.host} {machine.state.value}" for machine in cluster.machines]
    return "; ".join([*parts, *states, f"registered {sorted(image.brokers)}, controller {image.controller_id}"])


async def check_end(
    cluster: ClusterWorld, idle: Sequence[PartitionLoad], check_work: Callable[[], Awaitable[None]]
) -> None:
    """Checks everything; `check_work` is the end of coordinators, retention and compaction. Errors: HistoryError.

    The `idle` partitions are written last, when their replicas are in sync and equal.
    """
    lost = [load for load in cluster.loads if not can_be_led(cluster, load.topic, load.partition)]
    loads = [load for load in cluster.loads if load not in lost]
    cluster.chronicle.counts["partitions that no broker may lead"] += len(lost)
    for load in loads:
        if load not in idle:
            await _write(cluster, load)
    await _become_equal(cluster, loads)
    for load in loads:
        if load in idle:
            await _write(cluster, load)
    await _become_equal(cluster, loads)
    cluster.invariants.restore()
    await asyncio.sleep(
        REQUEST_TIMEOUT_S
    )  # Who still waits for an answer of the store that was lost may be fenced till then.
    for load in loads:
        if load.has_deletes:
            await _delete_idle(cluster, load)
    await until(
        cluster, lambda: all(_is_equal(cluster, load) for load in loads), "all replicas are equal", EQUAL_WITHIN_S
    )
    for load in loads:
        await _read_back(cluster, load)
    await check_work()
    for machine in cluster.machines:
        replicas = None if machine.broker is None else machine.broker.replicas
        if replicas is not None and (waiting := len(replicas.waiting.deletes) + len(replicas.waiting.log_starts)):
            cluster.chronicle.violate(f"D13: {waiting} deletes still wait on {machine.host}")


async def _become_equal(cluster: ClusterWorld, loads: Sequence[PartitionLoad]) -> None:
    await until(
        cluster, lambda: all(_is_in_sync(cluster, load) for load in loads), "all replicas are in sync", IN_SYNC_WITHIN_S
    )
    await until(
        cluster, lambda: all(_is_equal(cluster, load) for load in loads), "all replicas are equal", EQUAL_WITHIN_S
    )


def can_be_led(cluster: ClusterWorld, topic_name: str, number: int) -> bool:
    """Returns whether a replica may lead, or a member of the ISR or ELR has lost nothing; also for missing topics."""
    topic = cluster.shared.image.topics.get(topic_name)
    if topic is None:
        return True
    state = topic.partitions[number]
    return elects_unclean(topic, ControllerSettings(elects_unclean=cluster.unclean)) or any(
        cluster.invariants.promises.is_sound(member, topic.topic_id, number, epoch)
        for member, epoch in state.members.items()
    )


async def _write(cluster: ClusterWorld, load: PartitionLoad) -> None:
    producer = Producer(load, cluster.client("last producer"), Random(cluster.random.getrandbits(64)))
    give_up_s = cluster.loop.time() + WRITABLE_WITHIN_S
    before = load.counts["produced"]
    while load.counts["produced"] == before:
        try:
            await producer.step()
        except OSError:
            producer.client.forget(load.topic, load.partition)
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(_LOOK_S)
        if cluster.loop.time() >= give_up_s:
            cluster.chronicle.violate(
                f"L1: {load.history.name} isn't written within {WRITABLE_WITHIN_S} s; {describe(cluster)}"
            )
        cluster.chronicle.raise_violation()
    producer.client.close()


def _is_in_sync(cluster: ClusterWorld, load: PartitionLoad) -> bool:
    state = cluster.partition(load.topic, load.partition)
    return state is not None and state.has_leader and sorted(state.isr) == sorted(state.replicas) and not state.adding


def _is_equal(cluster: ClusterWorld, load: PartitionLoad) -> bool:
    """Returns whether the ends are the same, and no log start is below the leader's (P5). P1 checks the bytes.

    A higher one remains from a delete that its replica did as a leader, without acknowledgement (D2, D4).
    """
    topic = cluster.shared.image.topics[load.topic]
    state = topic.partitions[load.partition]
    watches = [
        cluster.invariants.watches.find(broker_id, topic.topic_id, load.partition) for broker_id in state.replicas
    ]
    leader = cluster.invariants.watches.find(state.leader, topic.topic_id, load.partition)
    if leader is None or leader.seen[1] != leader.seen[2]:
        return False
    return all(
        watch is not None and watch.seen[1:] == leader.seen[1:] and watch.seen[0] >= leader.seen[0] for watch in watches
    )


async def _delete_idle(cluster: ClusterWorld, load: PartitionLoad) -> None:
    deleter = Deleter(load, cluster.client("last deleter"), Random(cluster.random.getrandbits(64)))
    for _ in range(_PROBES):
        await cluster.sleep(0.05, 0.4)
        leader = cluster.shared.image.topics[load.topic].partitions[load.partition].leader
        found = await _bounds(deleter, leader)
        if found is None or found[0] >= found[1]:
            break
        epoch = _epoch(cluster, load)
        began_s = cluster.loop.time()
        code = await deleter.delete(leader, found[0] + 1, version=2, leader_only=False, timeout_ms=_PROBE_TIMEOUT_MS)
        took_s = cluster.loop.time() - began_s
        # The leadership may have returned to the preferred replica.
        if _epoch(cluster, load) == epoch and (code != ErrorCode.NONE or took_s > IDLE_DELETE_S):
            cluster.chronicle.violate(
                f"rule DR5: an idle delete of {load.history.name} took {took_s * 1000:.1f} ms, answered "
                f"{ErrorCode(code).name}"
            )
        cluster.chronicle.raise_violation()
    deleter.client.close()


def _epoch(cluster: ClusterWorld, load: PartitionLoad) -> tuple[int, int]:
    state = cluster.shared.image.topics[load.topic].partitions[load.partition]
    return state.leader, state.leader_epoch


async def _bounds(deleter: Deleter, leader: int) -> tuple[Offset, Offset] | None:
    try:
        return await deleter.bounds(leader)
    except OSError:
        return None


async def _read_back(cluster: ClusterWorld, load: PartitionLoad) -> None:
    """Checks that all records are there, and no others, on the leader and on every follower."""
    reader = load.make_reader(cluster.client("last reader"), Random(cluster.random.getrandbits(64)))
    for _ in range(100):
        leader = cluster.shared.image.topics[load.topic].partitions[load.partition].leader
        try:
            if await reader.read_all(leader) is not None:
                break
        except OSError:
            pass
        await asyncio.sleep(_LOOK_S)
    else:
        cluster.chronicle.violate(f"L1: {load.history.name} can't be read; {describe(cluster)}")
    load.history.check_order()
    reader.client.close()
