"""The quick paths of JoinGroup and SyncGroup: the same answers, records and figures as without the compiled module."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import NoneType
from typing import Any

import pytest

from bench.request_path import SETTINGS, World
from lowtide.broker.handlers import join_group, sync_group
from lowtide.broker.network.routes import QuickPath
from lowtide.broker.pending import Pending
from lowtide.protocol import native
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_groups import DescribeGroupsRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.heartbeat import HeartbeatRequest
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from lowtide.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.simulation.client import WireClient

needs_compiled = pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")

JOINS, SYNCS = range(2, 10), range(6)


class Members:
    """Members of a group, on a connection each. They keep what is answered, and when."""

    def __init__(self, world: World, client: WireClient) -> None:
        self.world, self.machine = world, world.machines[0]
        self.clients = [client]
        self.seen: list[Any] = []
        self.group = "g"

    async def ready(self, count: int) -> None:
        """Wait until the group has a coordinator, and connect so many members to it."""
        client = self.clients.pop()
        while (found := await client.request(FindCoordinatorRequest(key="g", key_type=0), 3)).error_code:
            await asyncio.sleep(0.1)  # Of virtual time.
        client.close()
        (self.machine,) = (each for each in self.world.machines if each.broker_id == found.node_id)
        self.clients = [await WireClient.connect(*self.machine.address) for _ in range(count)]
        while (await self.join(3, 0, "", session_timeout_ms=1)).error_code != ErrorCode.INVALID_SESSION_TIMEOUT:
            await asyncio.sleep(0.1)

    async def ask(self, request: Any, version: int, place: int = 0) -> Any:
        answer = await self.clients[place].request(request, version)
        self.seen.append((self.world.loop.time(), answer))
        return answer

    async def join(self, version: int, place: int, member_id: str, **fields: Any) -> Any:
        words = fields.pop("protocols", [("p", b"topics")])
        given = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 3000,
            "protocol_type": "c",
            "group_id": self.group,
        } | fields
        if version < 5:
            given.pop("group_instance_id", None)
        protocols = [JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in words]
        return await self.ask(JoinGroupRequest(**given, member_id=member_id, protocols=protocols), version, place)

    async def sync(self, version: int, place: int, joined: Any, **fields: Any) -> Any:
        assignments = [
            SyncGroupRequestAssignment(member_id=member.member_id, assignment=member.member_id.encode()[:3])
            for member in joined.members
        ]
        given = {
            "group_id": self.group,
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "assignments": assignments,
        }
        if version >= 5:
            given |= {"protocol_type": "c", "protocol_name": "p"}
        given |= fields
        if version < 3:
            given.pop("group_instance_id", None)
        return await self.ask(SyncGroupRequest(**given), version, place)

    def figures(self) -> Any:
        """What was counted, and what is in the logs of groups."""
        serving, filesystem = self.machine.broker.serving, self.machine.filesystem
        (partition,) = (each for (name, _), each in serving.replicas.partitions.items() if name == "__consumer_offsets")
        content = [filesystem.read_bytes(segment.path) for segment in partition.log.segments]
        times = serving.host.dispatcher.times.by_name
        counts = {name: times[name].count for name in ("JoinGroup", "SyncGroup")}
        return dict(serving.host.dispatcher.errors), content, counts, serving.coordinators.groups.held()


async def alone(members: Members) -> None:
    """The only member of a group, in all versions, and what it should not ask."""
    for version in JOINS:
        joined = await members.join(version, 0, "")
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            joined = await members.join(version, 0, joined.member_id)
        for sync_version in SYNCS:
            joined = await members.join(version, 0, joined.member_id)
            await members.join(version, 0, joined.member_id)  # Again in the same generation.
            await members.sync(sync_version, 0, joined)
            await members.sync(sync_version, 0, joined)
            await members.sync(sync_version, 0, joined, generation_id=joined.generation_id + 1)
            await members.sync(sync_version, 0, joined, member_id="unknown")
            await members.sync(sync_version, 0, joined, member_id="")
            await members.sync(sync_version, 0, joined, group_id="unknown")
            await members.sync(sync_version, 0, joined, group_id="")
            await members.sync(sync_version, 0, joined, group_instance_id="i")
        await members.sync(5, 0, joined, protocol_name="another")
        await members.sync(5, 0, joined, protocol_type="another")
        await members.sync(5, 0, joined, protocol_type=None)
        await members.join(version, 0, joined.member_id, protocol_type="another")
        await members.join(version, 0, joined.member_id, protocols=[])
        await members.join(version, 0, joined.member_id, protocols=[("q", b"")])
        await members.join(version, 0, joined.member_id, session_timeout_ms=1)
        await members.join(version, 0, joined.member_id, group_instance_id="i")
        await members.join(version, 0, joined.member_id, group_id="unknown")
        await members.join(version, 0, joined.member_id, group_id="")
        await members.join(version, 0, "unknown")
        joined = await members.join(version, 0, joined.member_id, protocols=[("p", b"new"), ("q", bytes(300))])
        await members.sync(3, 0, joined)
        await members.ask(DescribeGroupsRequest(groups=["g"]), 3)
        await asyncio.sleep(30)  # Its session ends.
        await members.join(version, 0, joined.member_id)


async def together(members: Members) -> None:
    """Three members, which wait for each other; one is static, and comes back under another id."""
    ids = ["", "", ""]
    for version in (3, 5, 6, 7, 8, 9):
        new = [("p", f"topics of version {version}".encode())]
        joined = await asyncio.gather(*(members.join(version, place, ids[place], protocols=new) for place in range(3)))
        ids = [each.member_id for each in joined]
        order = sorted(range(3), key=lambda place: joined[place].leader == joined[place].member_id)
        syncs = [
            members.world.loop.create_task(members.sync(min(version - 2, 5), place, joined[place]))
            for place in order[:2]
        ]
        await asyncio.sleep(0.2)
        await members.sync(min(version - 2, 5), order[2], joined[order[2]])
        await asyncio.gather(*syncs)
        await members.ask(HeartbeatRequest(group_id="g", generation_id=joined[0].generation_id, member_id=ids[0]), 3)
        await members.join(version, order[0], ids[order[0]], protocols=new)  # Not the leader, with nothing new to say.
    await members.join(5, 0, ids[0], protocols=[("p", b"changed")])  # The others don't come.
    members.group = "static"
    joined = await members.join(7, 0, "", group_instance_id="i")
    await members.sync(3, 0, joined, group_instance_id="i")
    for version in (5, 8, 9):
        again = await members.join(version, 1, "", group_instance_id="i")
        await members.sync(5, 1, again, group_instance_id="i")
        await members.join(version, 0, joined.member_id, group_instance_id="i")
        joined = await members.join(version, 1, again.member_id, group_instance_id="i")
        await members.sync(3, 1, joined, group_instance_id="i")


async def everything(members: Members) -> None:
    await members.ready(3)
    await alone(members)
    await together(members)
    members.group = "full"
    joined = await members.join(3, 0, "")
    members.machine.filesystem.capacity_bytes = 0
    await members.sync(2, 0, joined)
    joined = await members.join(5, 0, joined.member_id)
    await members.sync(5, 0, joined)
    members.machine.filesystem.capacity_bytes = None
    joined = await members.join(5, 0, joined.member_id)
    await members.sync(5, 0, joined)


def simulate(test: Any, brokers: int = 1) -> Any:
    async def main(loop: SimulatedLoop) -> Any:
        world = World(loop, brokers)
        members = Members(world, await world.begin())
        await test(members)
        for client in members.clients:
            client.close()
        await asyncio.sleep(0.1)
        return members.seen, members.figures()

    return run_simulation(main, 1)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "group.initial.rebalance.delay.ms", "100")


def counting(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, type]]:
    """What quick paths answer from now on, by the file that they are in and the type of the answer; a promise that isn't kept is None."""
    answered: Counter[tuple[str, type]] = Counter()

    def counted(read: Any, handle: Any) -> QuickPath:
        def handle_counted(*arguments: Any) -> Any:
            answer = handle(*arguments)
            found = answer.response if isinstance(answer, Pending) else answer
            answered[
                handle.__module__.rpartition(".")[2], Pending if found is None and answer is not None else type(found)
            ] += 1
            return answer

        return QuickPath(read, handle_counted)

    for module in (join_group, sync_group):
        monkeypatch.setattr(module, "QuickPath", counted)
    return answered


def compare(left: Any, right: Any) -> None:
    for number, (one, other) in enumerate(zip(left[0], right[0], strict=True)):
        assert one == other, number
    assert left[1] == right[1]


@needs_compiled
def test_both_forms_give_the_same_answers_records_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = counting(monkeypatch)
    compiled = simulate(everything)
    assert answered["join_group", bytes] > 50
    assert answered["sync_group", bytes] > 50
    assert answered["join_group", JoinGroupResponse] > 20, "none was refused"
    assert answered["sync_group", SyncGroupResponse] > 20, "none was refused"
    assert answered["join_group", Pending] > 5, "no member waited for others"
    assert answered["sync_group", Pending] > 5, "no member waited for the leader"
    answered.clear()
    monkeypatch.setattr(native, "compiled", None)
    plain = simulate(everything)
    assert not answered
    compare(compiled, plain)


def test_errors_are_of_all_kinds() -> None:
    """If all were refused, the forms would agree as well."""
    seen, _ = simulate(everything)
    joins = {answer.error_code for _, answer in seen if type(answer) is JoinGroupResponse}
    assert joins >= {
        ErrorCode.NONE,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.MEMBER_ID_REQUIRED,
    }
    syncs = {answer.error_code for _, answer in seen if type(answer) is SyncGroupResponse}
    assert syncs >= {
        ErrorCode.NONE,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.NOT_COORDINATOR,
    }


async def with_followers(members: Members) -> None:
    """A rebalance while followers are there, and while there are none."""
    await members.ready(1)
    joined = await members.join(3, 0, "")
    await members.sync(2, 0, joined)
    for machine in members.world.machines:
        if machine is not members.machine:
            machine.pause()
    joined = await members.join(5, 0, joined.member_id, session_timeout_ms=60_000)
    await members.sync(5, 0, joined)


@needs_compiled
def test_both_forms_wait_for_the_same_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = counting(monkeypatch)
    compiled = simulate(with_followers, 3)
    assert answered["sync_group", Pending] == 2
    monkeypatch.setattr(native, "compiled", None)
    compare(compiled, simulate(with_followers, 3))


@needs_compiled
def test_the_coordinator_of_another_group_is_left_to_the_plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = counting(monkeypatch)

    async def ask_a_follower(members: Members) -> None:
        await members.ready(1)
        coordinator = members.machine
        (other, *_) = (machine for machine in members.world.machines if machine is not coordinator)
        members.clients[0].close()
        members.clients = [await WireClient.connect(*other.address)]
        joined = await members.join(5, 0, "m")
        assert joined.error_code == ErrorCode.NOT_COORDINATOR
        joined.generation_id = 1
        synced = await members.sync(5, 0, joined)
        assert synced.error_code == ErrorCode.NOT_COORDINATOR
        members.machine = coordinator

    answered.clear()
    simulate_quietly(ask_a_follower)
    assert answered["join_group", NoneType] == answered["sync_group", NoneType] == 1


def simulate_quietly(test: Any) -> None:
    async def main(loop: SimulatedLoop) -> None:
        world = World(loop, 3)
        members = Members(world, await world.begin())
        await test(members)
        members.clients[0].close()
        await asyncio.sleep(0.1)

    run_simulation(main, 1)
