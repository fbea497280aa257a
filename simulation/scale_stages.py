"""The stages of a large simulated cluster; `scale` runs and prints them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from lowtide.metadata.image import PartitionImage
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.heartbeat import HeartbeatRequest
from lowtide.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from lowtide.protocol.messages.leave_group import LeaveGroupRequest
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from lowtide.protocol.types import BrokerId, TopicPartition
from lowtide.runtime.simulated_ports import SIMULATION_WALL_START_MS
from lowtide.simulation.client import WireClient
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.scale_cluster import ScaleCluster, Stage

SETTINGS: Final = {
    "offsets.topic.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.commitoffset.enable": "true",
    "log.retention.check.interval.ms": "20000",
    "lowtide.partitions.created.per.second": "100000",
}
"""Broker settings: frequent retention passes, and one client can create all partitions at once."""

ROLLING_SETTINGS: Final = {"leader.imbalance.check.interval.seconds": "60"}
"""Broker settings for rolling restarts: early preferred elections, but not during the restarts."""

RESTART: Final = "restart"
"""The prefix of stages that restart a broker."""

TOPIC: Final = "scale"
CONSUMED: Final = "consumed"
"""The topic that all groups have consumed, whose records are deleted."""

CONSUMED_PER_BROKER: Final = 10
"""The number of its partitions, with at least as many groups."""

RECORDS: Final = 3
"""The records per partition, a segment each."""

IDLE_S: Final = 10.0
LOOK_S: Final = 0.01
"""The interval of checks of a restarting broker's partitions."""

LEADERS_WITHIN_S: Final = 10.0
GROUPS_AT_ONCE: Final = 50
ASKED: Final = "DescribeConsumedOffsets"
"""The API of a pass's question in brokers' counters."""

_CONSUMED_MS: Final = 1000
_TIMEOUT_MS: Final = 30_000
_SESSION_MS: Final = 45_000
_PRODUCE_VERSION: Final = 7
_JOIN_VERSION, _SYNC_VERSION, _COMMIT_VERSION, _HEARTBEAT_VERSION, _FIND_VERSION, _ALTER_VERSION, _LEAVE_VERSION = (
    3,
    2,
    5,
    2,
    2,
    1,
    1,
)
_TOPIC_RESOURCE, _SET = 2, 0
_ALL_IN_SYNC: Final = -1


async def stages(cluster: ScaleCluster) -> AsyncIterator[Stage]:
    """Returns the results of all stages, in turn."""
    yield await cluster.stage("start", cluster.start())
    yield await cluster.stage("create", create(cluster))
    if cluster.spec.rolling:
        async for stage in restarts(cluster):
            yield stage
        yield await cluster.stage("leaders go back", balanced(cluster))
        return
    yield await cluster.stage("idle", idle())
    yield await cluster.stage("groups", groups(cluster))
    yield await cluster.stage("consumed", consumed(cluster))
    dead = [cluster.controller()]
    yield await cluster.stage("death of the controller", death(cluster, dead))
    yield await cluster.stage("return", returned(cluster, dead))
    async for stage in restarts(cluster):
        yield stage
    rack = [machine for machine in cluster.machines if machine.broker_id % cluster.spec.racks == 0]
    yield await cluster.stage("loss of a rack", death(cluster, rack))
    if cluster.spec.returns_rack:
        yield await cluster.stage("return of the rack", returned(cluster, rack))


async def restarts(cluster: ScaleCluster) -> AsyncIterator[Stage]:
    """Restarts one broker after the other; the next one stops when the cluster is whole again."""
    for machine in cluster.machines[: cluster.spec.restarts]:
        yield await cluster.stage(f"{RESTART} of {machine.host}", restart(cluster, machine), machine.host)


async def create(cluster: ScaleCluster) -> dict[str, float]:
    """Creates all topics, and waits until every partition is led and in sync."""
    spec = cluster.spec
    await cluster.create_topics([f"{TOPIC}-{number}" for number in range(spec.topics)], spec.partitions_per_topic)
    await _until_well(cluster)
    return {"partitions": spec.partitions}


async def idle() -> dict[str, float]:
    """Does nothing."""
    await asyncio.sleep(IDLE_S)
    return {"seconds": IDLE_S}


# Groups


async def groups(cluster: ScaleCluster) -> dict[str, float]:
    """Runs a member per group that joins, commits, sends a heartbeat and leaves; `CONSUMED` is consumed then."""
    spec = cluster.spec
    if not spec.groups:
        return {}
    partitions = min(spec.groups, CONSUMED_PER_BROKER * spec.brokers)
    await cluster.create_topics([CONSUMED], partitions, {"internal.segment.bytes": "200"})
    await _until_well(cluster)
    for number in range(partitions):
        await _produce(cluster, number)
    await _coordinator(cluster, "group-0")  # Has the topic of groups created.
    await _until_well(cluster)
    for start in range(0, spec.groups, GROUPS_AT_ONCE):
        ids = range(start, min(start + GROUPS_AT_ONCE, spec.groups))
        await asyncio.gather(*(_consume(cluster, f"group-{number}", number % partitions) for number in ids))
    return {"groups": spec.groups}


async def _produce(cluster: ScaleCluster, number: int) -> None:
    """Produces records that are an hour old, each in its own batch."""
    leader = cluster.machine(cluster.image.topics[CONSUMED].partitions[number].leader)
    records = build_batch([(SIMULATION_WALL_START_MS - 3_600_000, None, b"x" * 50, ())])
    client = await WireClient.connect(*leader.address)
    for _ in range(RECORDS):
        rows = [TopicProduceData(name=CONSUMED, partition_data=[PartitionProduceData(index=number, records=records)])]
        request = ProduceRequest(acks=_ALL_IN_SYNC, timeout_ms=_TIMEOUT_MS, topic_data=rows)
        answer = await client.request(request, _PRODUCE_VERSION)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE, answer
    client.close()


async def _coordinator(cluster: ScaleCluster, group_id: str) -> Machine:
    found: list[Machine] = []

    async def look() -> None:
        answer = await cluster.ask(cluster.up()[0], FindCoordinatorRequest(key=group_id, key_type=0), _FIND_VERSION)
        if answer.error_code == ErrorCode.NONE:
            found.append(cluster.machine(answer.node_id))

    while not found:
        await look()
        await asyncio.sleep(0.05)
    return found[0]


async def _consume(cluster: ScaleCluster, group_id: str, number: int) -> None:
    client = await WireClient.connect(*(await _coordinator(cluster, group_id)).address)

    async def ask(request: Any, version: int) -> Any:
        answer = await client.request(request, version)
        while answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await asyncio.sleep(0.05)
            answer = await client.request(request, version)
        assert answer.error_code == ErrorCode.NONE, answer
        return answer

    joined = await ask(
        JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_SESSION_MS,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        _JOIN_VERSION,
    )
    of_member = {"group_id": group_id, "generation_id": joined.generation_id, "member_id": joined.member_id}
    assigned = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")]
    await ask(SyncGroupRequest(**of_member, assignments=assigned), _SYNC_VERSION)
    row = OffsetCommitRequestPartition(partition_index=number, committed_offset=RECORDS, committed_metadata=None)
    commit = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=joined.generation_id,
        member_id=joined.member_id,
        topics=[OffsetCommitRequestTopic(name=CONSUMED, partitions=[row])],
    )
    answer = await client.request(commit, _COMMIT_VERSION)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE, answer
    await ask(HeartbeatRequest(**of_member), _HEARTBEAT_VERSION)
    await ask(LeaveGroupRequest(group_id=group_id, member_id=joined.member_id), _LEAVE_VERSION)
    client.close()


async def consumed(cluster: ScaleCluster) -> dict[str, float]:
    """Waits until consumed records are deleted: each broker's pass asks each coordinator once (KIP-68)."""
    if not cluster.spec.groups:
        return {}
    config = AlterableConfig(name="retention.commitoffset.ms", config_operation=_SET, value=str(_CONSUMED_MS))
    resource = AlterConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=CONSUMED, configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    answer = await cluster.ask(cluster.controller(), request, _ALTER_VERSION)
    assert answer.responses[0].error_code == ErrorCode.NONE, answer
    partitions = cluster.image.topics[CONSUMED].partitions

    def log_start(number: int, leader: BrokerId) -> int:
        broker = cluster.machine(leader).broker
        assert broker is not None
        assert broker.replicas is not None
        return broker.replicas.partitions[TopicPartition(CONSUMED, number)].log.log_start_offset

    def are_gone() -> bool:
        return all(log_start(number, state.leader) == RECORDS for number, state in enumerate(partitions))

    await cluster.until(are_gone, "all consumed records are gone")
    asking = {state.leader for state in partitions}
    coordinators = {state.leader for state in cluster.image.topics["__consumer_offsets"].partitions}
    return {
        "brokers that ask": len(asking),
        "coordinators": len(coordinators),
        "questions, at one each": sum(coordinator != broker for broker in asking for coordinator in coordinators),
    }


# Brokers that go and come


async def death(cluster: ScaleCluster, dead: list[Machine]) -> dict[str, float]:
    """Kills these, and waits until every partition has a live leader. Errors: AssertionError after a limit."""
    ids = {machine.broker_id for machine in dead}
    led = sum(state.leader in ids for _, _, state in cluster.partitions())
    began_s = cluster.loop.time()
    for machine in dead:
        machine.kill()
    await cluster.until(lambda: cluster.leaderless() == 0, "every partition has a leader")
    took_s = cluster.loop.time() - began_s
    assert took_s < LEADERS_WITHIN_S, f"every partition has a leader only after {took_s:.1f} s"
    return {"brokers": len(dead), "leaders lost": led}


async def returned(cluster: ScaleCluster, dead: list[Machine]) -> dict[str, float]:
    """Starts them again, and waits until all replicas are in sync."""
    for machine in dead:
        machine.start()
    await _until_well(cluster)
    return {"brokers": len(dead)}


async def restart(cluster: ScaleCluster, machine: Machine) -> dict[str, float]:
    """Restarts it gracefully, and waits until all replicas are in sync, watching its partitions."""
    led = sum(state.leader == machine.broker_id for _, _, state in cluster.partitions())
    watch = AbsenceWatch(cluster, machine.broker_id)
    machine.stop()
    await watch.until(lambda: machine.state is State.DOWN, "it has stopped")
    stopped_s, without = watch.passed_s(), len(watch.absent)
    await watch.until(lambda: not watch.absent, "every partition has a leader")
    led_s = watch.passed_s()
    machine.start()
    await watch.until(lambda: machine.state is State.UP, "it serves")
    serves_s = watch.passed_s()
    await watch.until(watch.are_in_sync, "its replicas are in sync")
    await _until_well(cluster)
    return {
        "leaders": led,
        "without a leader when it was down": without,
        "without one at once": watch.most,
        "without one for, s": watch.longest_s,
        "stopped after, s": stopped_s,
        "all have leaders after, s": led_s,
        "serves after, s": serves_s,
        "in sync after, s": watch.passed_s(),
    }


async def balanced(cluster: ScaleCluster) -> dict[str, float]:
    """Waits until leaderships have returned to the preferred replicas."""

    def strayed() -> int:
        return sum(state.leader != state.replicas[0] for _, _, state in cluster.partitions())

    before = strayed()
    await cluster.until(lambda: strayed() == 0, "every partition is led by its preferred replica")
    await _until_well(cluster)
    return {"leaders that go back": before}


class AbsenceWatch:
    """Watches for how long a broker's partitions are without a leader, every `LOOK_S`."""

    def __init__(self, cluster: ScaleCluster, broker_id: BrokerId) -> None:
        self.absent: dict[TopicPartition, float] = {}
        """The partitions without a leader, and since when."""
        self.most = 0
        self.longest_s = 0.0
        self._cluster = cluster
        self._began_s = cluster.loop.time()
        self._keys = [(name, number) for name, number, state in cluster.partitions() if broker_id in state.replicas]

    def passed_s(self) -> float:
        return self._cluster.loop.time() - self._began_s

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Watches until a condition holds. Errors: TimeoutError after a long time."""

        def looked() -> bool:
            self._look()
            return condition()

        await self._cluster.until(looked, what, LOOK_S)

    def are_in_sync(self) -> bool:
        """Returns whether all have a leader, and all replicas are in sync."""
        return not self.absent and all(len(state.isr) == len(state.replicas) for _, _, state in self._partitions())

    def _partitions(self) -> list[tuple[str, int, PartitionImage]]:
        topics = self._cluster.image.topics
        return [(name, number, topics[name].partitions[number]) for name, number in self._keys]

    def _look(self) -> None:
        now_s = self._cluster.loop.time()
        before = self.absent
        self.absent = {key: before.get(key, now_s) for key in self._cluster.without_leader(self._partitions())}
        self.most = max(self.most, len(self.absent))
        over = [now_s - since_s for key, since_s in before.items() if key not in self.absent]
        self.longest_s = max(self.longest_s, *over, 0.0)


async def _until_well(cluster: ScaleCluster) -> None:
    def is_well() -> bool:
        return len(cluster.up()) == len(cluster.machines) and cluster.out_of_sync() == 0 and cluster.leaderless() == 0

    await cluster.until(is_well, "all brokers serve, and all replicas are in sync")
