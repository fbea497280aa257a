"""Administrative actions during a run: moving leaderships and replicas, and deleting and recreating topics.

None may cause harm; each counts as a fault once it was done (`faults`).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from lowtide.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from lowtide.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersTopicPartitions
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.types import TopicPartition
from lowtide.simulation.client import WireClient
from lowtide.simulation.cluster_world import OLD_VERSION_KEY, ClusterWorld
from lowtide.simulation.machines import Machine

BRIEF: Final = "brief"
"""A topic that is deleted and recreated."""

_ADMIN_TIMEOUT_MS: Final = 3000
_RECORDS: Final = 4
_LOOKS: Final = 150
_LOOK_S: Final = 0.02
_OVER: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


async def move_leader(cluster: ClusterWorld) -> None:
    """Moves leadership to the preferred replica, or first makes another replica the preferred one."""
    topic, number, state = cluster.some_partition()
    replicas = list(state.replicas)
    if len(replicas) > 1 and cluster.random.random() < 0.7:  # noqa: PLR2004
        replicas = [*replicas[1:], replicas[0]]
        if not await reassign(cluster, topic, number, replicas):
            return
    request = ElectLeadersRequest(
        election_type=0,
        topic_partitions=[ElectLeadersTopicPartitions(topic=topic, partitions=[number])],
        timeout_ms=_ADMIN_TIMEOUT_MS,
    )
    before = state.leader_epoch
    answer = await _administer(cluster, request, 2)
    now = cluster.partition(topic, number)
    if answer is not None and now is not None and now.leader_epoch > before:
        cluster.effects["leader moved"] += 1


async def flip_leader(cluster: ClusterWorld) -> None:
    """Moves leadership away and back while one follower is stopped, so that deletes are parked."""
    leader, follower = cluster.leader_and_follower()
    if leader is None or follower is None:
        return
    cluster.excuses.begin(follower.broker_id)
    follower.pause()
    await cluster.sleep(0.1, 0.4)
    await move_leader(cluster)
    await move_leader(cluster)
    if follower.resume():
        cluster.effects["leader flipped over a stopped follower"] += 1
    cluster.excuses.end(follower.broker_id, after_s=0.5)


async def change_replicas(cluster: ClusterWorld) -> None:
    """Removes or adds a replica of a partition."""
    topic, number, state = cluster.some_partition()
    replicas = list(state.replicas)
    others = [machine.broker_id for machine in cluster.machines if machine.broker_id not in replicas]
    if others and (len(replicas) < 3 or cluster.random.random() < 0.5):  # noqa: PLR2004
        replicas = [*replicas[-2:], cluster.random.choice(others)]
    elif len(replicas) > 2:  # noqa: PLR2004
        replicas.remove(cluster.random.choice(replicas))
    if replicas != list(state.replicas) and await reassign(cluster, topic, number, replicas):
        cluster.effects["reassignment"] += 1


async def leave_while_waiting(cluster: ClusterWorld) -> None:
    """Removes a replica from a former leader that is truncating its log on a slow disk."""
    topic, number, state = cluster.some_partition()
    machine = next((each for each in cluster.machines if each.broker_id == state.leader), None)
    replicas = [each for each in state.replicas if each != state.leader]
    if machine is None or not replicas:
        return
    cluster.excuses.begin(machine.broker_id)
    cluster.cut_off(machine)
    machine.link.requests_are_cut = machine.link.answers_are_cut = True
    cluster.note(f"{machine.host} is cut off from the other brokers and from the store")
    await cluster.sleep(0.5, 2.5)
    machine.link.requests_are_cut = machine.link.answers_are_cut = False
    cluster.reach_again(machine)
    machine.slow_disk((50.0, 400.0))
    cluster.note(f"{machine.host} is reached again, and its disk is slow")
    if await _is_busy(machine, TopicPartition(topic, number)) and await reassign(cluster, topic, number, replicas):
        cluster.effects["replica left while it waited for its disk"] += 1
    machine.slow_disk()
    cluster.excuses.end(machine.broker_id, after_s=1.0)


async def late_removal(cluster: ClusterWorld) -> None:
    """Removes a replica whose broker is cut off and learns it late, while readers continue there.

    Sometimes it is added again before its broker sees either change, and rejoins with its log.
    """
    topic, number, state = cluster.some_partition()
    machine = cluster.random.choice(
        [each for each in cluster.machines if each.broker_id in state.replicas] or cluster.machines
    )
    replicas = [each for each in state.replicas if each != machine.broker_id]
    if not replicas:
        return
    cluster.excuses.begin(machine.broker_id)
    cluster.cut_off(machine)
    machine.link.watch_lag_ms = (500.0, 1500.0)
    cluster.note(f"{machine.host} is cut off from the other brokers, and its watches lag")
    is_removed = await reassign(cluster, topic, number, replicas)
    cluster.effects["late removal"] += is_removed
    comes_back = is_removed and cluster.random.random() < 0.5  # noqa: PLR2004
    if not comes_back:
        await cluster.sleep(0.5, 4.0)
    cluster.reach_again(machine)
    cluster.note(f"{machine.host} is reached again")
    if comes_back and await reassign(cluster, topic, number, list(state.replicas)):
        cluster.effects["late removal that was taken back"] += 1
    machine.link.watch_lag_ms = (0.0, 1.0)
    cluster.excuses.end(machine.broker_id, after_s=1.0)


async def _is_busy(machine: Machine, key: TopicPartition) -> bool:
    """Waits a while until the machine truncates its log of that partition; returns whether it does."""
    for _ in range(_LOOKS):
        broker = machine.broker
        log = broker.log_manager.logs.get(key) if broker is not None and broker.replicas is not None else None
        if log is not None and log.truncating:
            return True
        await asyncio.sleep(_LOOK_S)
    return False


async def reassign(cluster: ClusterWorld, topic: str, number: int, replicas: list[int]) -> bool:
    """Requests other replicas, and waits for them. Returns whether they are there."""
    partition = ReassignablePartition(partition_index=number, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=[partition])], timeout_ms=_ADMIN_TIMEOUT_MS
    )
    answer = await _administer(cluster, request, 0)
    if (
        answer is None
        or answer.error_code
        or any(row.error_code for each in answer.responses for row in each.partitions)
    ):
        return False
    for _ in range(40):
        state = cluster.partition(topic, number)
        if state is not None and sorted(state.replicas) == sorted(replicas) and not state.adding and not state.removing:
            return True
        await asyncio.sleep(0.1)
    return False


async def _administer(cluster: ClusterWorld, request: Any, version: int) -> Any:
    """Asks any broker; returns None on failure."""
    return await ask(cluster.random.choice(cluster.machines), request, version)


async def ask(machine: Machine, request: Any, version: int) -> Any:
    """Asks this broker; returns None on failure."""
    client: WireClient | None = None
    try:
        async with asyncio.timeout(_ADMIN_TIMEOUT_MS / 1000 + 1):
            client = await WireClient.connect(*machine.address)
            return await client.request(request, version)
    except OSError:
        return None
    finally:
        if client is not None:
            client.close()


async def upgrade(cluster: ClusterWorld) -> None:
    """Runs the second rolling restart of KIP-107 on a broker: it reports log start offsets from now on."""
    old = [machine for machine in cluster.machines if OLD_VERSION_KEY in machine.settings]
    if old:
        machine = cluster.random.choice(old)
        cluster.note(f"{machine.host} is upgraded")
        del machine.settings[OLD_VERSION_KEY]
        cluster.kill(machine)
        cluster.effects["upgrade"] += 1
        await cluster.stay_down(machine)


async def topic_created_again(cluster: ClusterWorld) -> None:
    """Recreates a topic while a delete waits for a stopped follower: the new one starts at 0 (rule DR6)."""
    if BRIEF in cluster.busy:
        return
    cluster.busy.add(BRIEF)
    try:
        await _make_anew(cluster)
    finally:
        cluster.busy.discard(BRIEF)


async def _make_anew(cluster: ClusterWorld) -> None:
    if BRIEF not in cluster.shared.image.topics and not await _create_brief(cluster):
        return
    topic = cluster.shared.image.topics[BRIEF]
    machines = {machine.broker_id: machine for machine in cluster.machines}
    leader = machines.get(topic.partitions[0].leader)
    if leader is None:
        return
    follower = next((machines[each] for each in topic.partitions[0].replicas if each != leader.broker_id), None)
    written = await ask(leader, _brief_records(), 9)
    if written is None or written.responses[0].partition_responses[0].error_code:
        return
    if follower is not None:
        cluster.excuses.begin(follower.broker_id)
        follower.pause()
    answer = asyncio.get_running_loop().create_task(
        ask(leader, _brief_delete(), 2), name="a delete of a topic that goes"
    )
    await cluster.sleep(0.0, 0.1)
    gone = await _administer(cluster, DeleteTopicsRequest(topic_names=[BRIEF], timeout_ms=_ADMIN_TIMEOUT_MS), 5)
    is_new = gone is not None and not gone.responses[0].error_code and await _create_brief(cluster)
    if follower is not None:
        follower.resume()
        cluster.excuses.end(follower.broker_id, after_s=0.5)
    deleted = await answer
    code = None if deleted is None else deleted.topics[0].partitions[0].error_code
    if code is not None and code != ErrorCode.NONE and code not in _OVER:
        cluster.chronicle.violate(
            f"rule DR6: a delete of records of a topic that went was answered {ErrorCode(code).name}"
        )
    if is_new:
        await cluster.sleep(0.1, 0.5)
        _check_anew(cluster, topic.topic_id)


def _check_anew(cluster: ClusterWorld, former_id: bytes) -> None:
    topic = cluster.shared.image.topics.get(BRIEF)
    if topic is None or topic.topic_id == former_id:
        return
    cluster.effects["topic created again"] += 1
    for machine in cluster.machines:
        watch = cluster.invariants.watches.find(machine.broker_id, topic.topic_id, 0)
        if watch is not None and (watch.log_start or watch.log_end):
            cluster.chronicle.violate(
                f"D11: {watch.name} is new, starts at {watch.log_start} and ends at {watch.log_end}"
            )


async def _create_brief(cluster: ClusterWorld) -> bool:
    """Creates the topic. Returns whether it has its expected leader."""
    ids = [machine.broker_id for machine in cluster.shuffled()][: cluster.replication_factor]
    assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=ids)
    topic = CreatableTopic(name=BRIEF, num_partitions=-1, replication_factor=-1, assignments=[assignment], configs=[])
    answer = await _administer(cluster, CreateTopicsRequest(topics=[topic], timeout_ms=_ADMIN_TIMEOUT_MS), 7)
    return answer is not None and answer.topics[0].error_code == ErrorCode.NONE


def _brief_records() -> ProduceRequest:
    batch = build_batch([(1_700_000_000_000, None, b"brief", ())] * _RECORDS)
    data = TopicProduceData(name=BRIEF, partition_data=[PartitionProduceData(index=0, records=batch)])
    return ProduceRequest(acks=-1, timeout_ms=_ADMIN_TIMEOUT_MS, topic_data=[data])


def _brief_delete() -> DeleteRecordsRequest:
    topic = DeleteRecordsTopic(name=BRIEF, partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)])
    return DeleteRecordsRequest(topics=[topic], timeout_ms=_ADMIN_TIMEOUT_MS)
