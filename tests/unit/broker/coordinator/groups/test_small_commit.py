"""The quick paths of OffsetCommit and Heartbeat: the same answers, records and figures as without the compiled module."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import NoneType
from typing import Any

import pytest

from bench.request_path import SETTINGS, World
from lowtide.broker.coordinator.groups import small_commit
from lowtide.broker.handlers import heartbeat
from lowtide.broker.network.routes import QuickPath
from lowtide.broker.pending import Pending
from lowtide.protocol import native
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, HeartbeatTopicPartitions
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from lowtide.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.simulation.client import WireClient

needs_compiled = pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")

VERSIONS = range(2, 11)
OUTSIDE = ("", -1, None)


class Groups:
    """A client of brokers that coordinate groups. It keeps what is answered, and when."""

    def __init__(self, world: World, client: WireClient) -> None:
        self.world = world
        self.client = client
        self.machine = world.machines[0]
        self.seen: list[Any] = []
        self.topic_id = self.broker.replicas.image.topics["t"].topic_id

    @property
    def broker(self) -> Any:
        return self.machine.broker

    async def ask(self, request: Any, version: int) -> Any:
        answer = await self.client.request(request, version)
        self.seen.append((self.world.loop.time(), answer))
        return answer

    async def commit(
        self, version: int, group: str = "g", who: tuple[str, int, str | None] = OUTSIDE, **fields: Any
    ) -> Any:
        rows = [
            OffsetCommitRequestPartition(
                partition_index=number, committed_offset=version, committed_metadata=fields.get("metadata", "")
            )
            for number in fields.get("partitions", [0])
        ]
        topic = OffsetCommitRequestTopic(partitions=rows)
        if version >= 10:
            topic.topic_id = fields.get("topic_id", self.topic_id)
        else:
            topic.name = fields.get("topic", "t")
        member_id, generation, instance_id = who
        request = OffsetCommitRequest(
            group_id=group,
            member_id=member_id,
            generation_id_or_member_epoch=generation,
            group_instance_id=instance_id if version >= 7 else None,
            topics=[topic],
        )
        return await self.ask(request, version)

    async def heartbeat(self, version: int, who: tuple[str, int, str | None], group: str = "g") -> Any:
        member_id, generation, instance_id = who
        request = HeartbeatRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id if version >= 3 else None,
        )
        return await self.ask(request, version)

    async def join(self, group: str) -> tuple[str, int, str | None]:
        protocols = [JoinGroupRequestProtocol(name="p", metadata=b"")]
        joined = await self.ask(
            JoinGroupRequest(
                group_id=group,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=1000,
                member_id="",
                protocol_type="c",
                protocols=protocols,
            ),
            3,
        )
        return joined.member_id, joined.generation_id, None

    async def sync(self, group: str, who: tuple[str, int, str | None]) -> None:
        rows = [SyncGroupRequestAssignment(member_id=who[0], assignment=b"a")]
        await self.ask(SyncGroupRequest(group_id=group, generation_id=who[1], member_id=who[0], assignments=rows), 2)

    async def ready(self) -> None:
        """Wait until the groups have a coordinator, and go there."""
        while (found := await self.client.request(FindCoordinatorRequest(key="g", key_type=0), 3)).error_code:
            await asyncio.sleep(0.1)  # Of virtual time.
        self.client.close()
        (self.machine,) = (each for each in self.world.machines if each.broker_id == found.node_id)
        self.client = await WireClient.connect(*self.machine.address)
        while (await self.commit(9)).topics[0].partitions[0].error_code:
            await asyncio.sleep(0.1)

    def figures(self) -> Any:
        """What was counted, and what is in the logs of groups."""
        serving, filesystem = self.broker.serving, self.machine.filesystem
        (partition,) = (each for (name, _), each in serving.replicas.partitions.items() if name == "__consumer_offsets")
        content = [filesystem.read_bytes(segment.path) for segment in partition.log.segments]
        times = serving.host.dispatcher.times.by_name
        counts = {name: times[name].count for name in ("OffsetCommit", "Heartbeat") if name in times}
        return dict(serving.host.dispatcher.errors), content, counts, serving.coordinators.groups.held()


async def everything(groups: Groups) -> None:
    """Commits and heartbeats of all kinds."""
    await groups.ready()
    for version in VERSIONS:
        await groups.commit(version)
        await groups.commit(version, partitions=[0, 0])
        await groups.commit(version, metadata="note")
        await groups.commit(version, metadata=None)
        await groups.commit(version, partitions=[0, 1])
        await groups.commit(version, "unknown", ("m", 3, None))
        await groups.commit(version, "", OUTSIDE)
        await groups.commit(version, topic="unknown", topic_id=b"no such topic...")
    who = await groups.join("members")
    await groups.commit(9, "members", who)
    await groups.heartbeat(4, who, "members")
    await groups.sync("members", who)
    wrong = [OUTSIDE, ("m", who[1], None), (who[0], who[1] + 1, None), (who[0], who[1], "instance")]
    for each in (who, *wrong):
        for version in VERSIONS:
            await groups.commit(version, "members", each)
        for version in range(5):
            await groups.heartbeat(version, each, "members")
            await groups.heartbeat(version, each, "unknown")
            await groups.heartbeat(version, each, "")
    # Both are signs of life: the session is 10 s.
    for number in range(6):
        await asyncio.sleep(8)
        await (groups.commit(9, "members", who) if number % 2 else groups.heartbeat(4, who, "members"))
    await asyncio.sleep(12)
    await groups.heartbeat(4, who, "members")
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    for group in ("g", "members"):
        await groups.ask(OffsetFetchRequest(group_id=group, topics=topics), 5)
    # No room on the disk, and none for more offsets.
    filesystem = groups.machine.filesystem
    filesystem.capacity_bytes = 0
    for version in VERSIONS:
        await groups.commit(version)
    filesystem.capacity_bytes = None
    await groups.commit(9)


def simulate(test: Any, brokers: int = 1) -> Any:
    async def main(loop: SimulatedLoop) -> Any:
        world = World(loop, brokers)
        client = await world.begin()
        groups = Groups(world, client)
        await test(groups)
        groups.client.close()
        await asyncio.sleep(0.1)
        return groups.seen, groups.figures()

    return run_simulation(main, 1)


def counting(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, type]]:
    """What quick paths answer from now on, by the file that they are in and the type of the answer."""
    answered: Counter[tuple[str, type]] = Counter()

    def counted(read: Any, handle: Any) -> QuickPath:
        def handle_counted(*arguments: Any) -> Any:
            answer = handle(*arguments)
            found = answer.response if isinstance(answer, Pending) else answer
            answered[handle.__module__.rpartition(".")[2], type(found)] += 1
            return answer

        return QuickPath(read, handle_counted)

    for module in (small_commit, heartbeat):
        monkeypatch.setattr(module, "QuickPath", counted)
    return answered


@needs_compiled
def test_both_forms_give_the_same_answers_records_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = counting(monkeypatch)
    compiled = simulate(everything)
    assert answered["small_commit", bytes] > 4 * len(VERSIONS)
    assert answered["small_commit", OffsetCommitResponse] > 4 * len(VERSIONS), "none was refused"
    assert answered["small_commit", NoneType] >= 2 * len(VERSIONS), "nothing was unusual"
    assert answered["heartbeat", bytes] > 5
    assert answered["heartbeat", HeartbeatResponse] > 20
    answered.clear()
    monkeypatch.setattr(native, "compiled", None)
    plain = simulate(everything)
    assert not answered
    for number, (left, right) in enumerate(zip(compiled[0], plain[0], strict=True)):
        assert left == right, number
    assert compiled[1] == plain[1]


async def with_followers(groups: Groups) -> None:
    """Commits while followers are there, while there are none, and when they are back."""
    await groups.ready()
    await groups.commit(8)
    others = [machine for machine in groups.world.machines if machine is not groups.machine]
    for machine in others:
        machine.pause()
    await groups.commit(8)
    for machine in others:
        machine.resume()
    await asyncio.sleep(60)
    await groups.commit(10)


@needs_compiled
def test_both_forms_wait_for_the_same_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = counting(monkeypatch)
    compiled = simulate(with_followers, 3)
    assert answered["small_commit", NoneType] >= 3, "nothing was waited for"
    before, alone = (at for at, _ in compiled[0][-3:-1])
    assert alone - before > 1, "the one without followers did not wait until they were out of sync"
    monkeypatch.setattr(native, "compiled", None)
    assert simulate(with_followers, 3) == compiled


async def with_an_old_epoch(groups: Groups) -> None:
    """A member of a group that the broker assigns commits with its epoch before the last (KIP-1251)."""
    await groups.ready()
    member: dict[str, Any] = {"group_id": "assigned", "member_id": "m"}
    answer = await groups.ask(
        ConsumerGroupHeartbeatRequest(
            **member, member_epoch=0, rebalance_timeout_ms=60_000, subscribed_topic_names=["t"], topic_partitions=[]
        ),
        1,
    )
    given = answer.member_epoch
    while answer.member_epoch == given:
        has = (
            [HeartbeatTopicPartitions(topic_id=groups.topic_id, partitions=[0])]
            if answer.assignment is not None
            else None
        )
        names = ["t", "another"] if answer.assignment is None else None
        await asyncio.sleep(1)
        answer = await groups.ask(
            ConsumerGroupHeartbeatRequest(
                **member, member_epoch=answer.member_epoch, subscribed_topic_names=names, topic_partitions=has
            ),
            1,
        )
    for epoch in range(given - 1, answer.member_epoch + 2):
        await groups.commit(9, "assigned", ("m", epoch, None))


@needs_compiled
def test_both_forms_let_a_member_commit_what_it_was_given_in_an_older_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = simulate(with_an_old_epoch)
    monkeypatch.setattr(native, "compiled", None)
    plain = simulate(with_an_old_epoch)
    errors = [answer.topics[0].partitions[0].error_code for _, answer in plain[0][-4:]]
    assert errors == [ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.NONE, ErrorCode.NONE, ErrorCode.STALE_MEMBER_EPOCH]
    assert compiled == plain


@needs_compiled
def test_where_no_room_is_left_the_long_way_says_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "lowtide.offsets.max", "1")

    async def run(groups: Groups) -> None:
        await groups.ready()
        assert (await groups.commit(9)).topics[0].partitions[0].error_code == ErrorCode.NONE
        assert (await groups.commit(9, "h")).topics[0].partitions[0].error_code == ErrorCode.INVALID_COMMIT_OFFSET_SIZE

    simulate(run)


def test_without_the_compiled_module_there_is_no_quick_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "compiled", None)
    groups: Any = None
    assert small_commit.small_commit(groups) is None
