"""Connections from an address that sends malformed frames are served after all others, and none is forgotten."""

from __future__ import annotations

import asyncio
import itertools
import struct

from lowtide.broker.network.admission import slow_lane
from lowtide.broker.network.admission.slow_lane import REFUSALS_PER_S, TURNS, TURNS_A_PASS, Refusals
from lowtide.broker.network.connection.connection import Connection
from lowtide.broker.network.connection.execution import Execution

from .test_connection import ECHO, PARK, World, answer, frame, simulate

DAMAGED = struct.pack(">i", -1)


async def trouble(world: World) -> None:
    """Send more damaged frames than are tolerated."""
    for _ in range(REFUSALS_PER_S + 1):
        reader, writer = await world.client()
        writer.write(DAMAGED)
        assert await reader.read() == b""


async def laned(world: World, count: int) -> tuple[list[asyncio.StreamReader], list[Connection]]:
    """Connections in the lane, as their clients and as the broker see them."""
    await trouble(world)
    known = list(world.host.connections)
    readers = []
    for _ in range(count):
        readers.append((await world.client())[0])
        while len(world.host.connections) < len(known) + len(readers):
            await asyncio.sleep(0.001)
    return readers, list(world.host.connections)[len(known) :]


def bring(connection: Connection, data: bytes) -> None:
    """Deliver bytes as the event loop does."""
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def test_which_address_is_in_the_lane() -> None:
    """More than so many in this second or the last; each address by itself."""
    refusals = Refusals()
    for _ in range(REFUSALS_PER_S):
        refusals.note("a", 5_000)
        refusals.note("b", 5_900)
    assert not refusals.is_troubled("a", 5_999)
    refusals.note("a", 5_999)
    assert [refusals.is_troubled(address, 5_999) for address in ("a", "b", "c")] == [True, False, False]
    assert refusals.is_troubled("a", 6_999)
    assert not refusals.is_troubled("a", 7_000)
    refusals.note("a", 7_000)
    assert not refusals.is_troubled("a", 7_000)


def test_addresses_are_counted_up_to_a_limit() -> None:
    """No client can make the broker remember any number of addresses."""
    refusals = Refusals()
    for number in range(slow_lane._ADDRESSES_MAX + 5):
        refusals.note(str(number), 1_000)
        refusals.is_troubled(f"asked {number}", 1_000)
    assert len(refusals._now) == slow_lane._ADDRESSES_MAX


def test_an_address_without_refusals_never_sees_the_lane() -> None:
    """This holds for any number of connections and bytes."""

    async def run(world: World) -> None:
        clients = [await world.client() for _ in range(20)]
        for _, writer in clients:
            writer.write(b"".join(frame(ECHO, number) for number in range(50)))
        for reader, _ in clients:
            for number in range(50):
                assert await answer(reader) == (number, b"")
        assert all(
            connection.turns.execution == Execution.RUNNING and connection.turns.turns_left == 0
            for connection in world.host.connections
        )

    simulate(run)


def test_a_connection_from_before_stays_out_of_the_lane() -> None:
    async def run(world: World) -> None:
        reader, writer = await world.client()
        writer.write(frame(ECHO, 1))
        await answer(reader)
        await trouble(world)
        (connection,) = world.host.connections
        assert connection.turns.execution == Execution.RUNNING
        await world.client()
        await asyncio.sleep(0.1)
        assert [connection.turns.execution != Execution.RUNNING for connection in world.host.connections] == [
            False,
            True,
        ]

    simulate(run)


def test_laned_requests_are_executed_a_few_in_a_pass() -> None:
    """Each connection has its turn, no request is lost, and the order stays."""

    async def run(world: World) -> None:
        readers, connections = await laned(world, 100)
        executed = world.dispatcher.executed
        for name, connection in enumerate(connections):
            bring(connection, b"".join(frame(ECHO, number, b"%d %d" % (name, number)) for number in range(10)))
        assert executed == []
        shares = []
        while len(executed) < 1000:
            before = len(executed)
            await asyncio.sleep(0)
            shares.append(len(executed) - before)
        assert max(shares) == TURNS_A_PASS
        assert executed == [b"%d %d" % (name, number) for number in range(10) for name in range(100)]
        for name, reader in enumerate(readers):
            for number in range(10):
                assert await answer(reader) == (number, b"%d %d" % (name, number))
        assert len(world.host.lane) == 0

    simulate(run)


def test_the_honest_one_is_served_between_two_shares() -> None:
    async def run(world: World) -> None:
        honest_reader, honest_writer = await world.client()
        honest_writer.write(frame(ECHO, 0))
        await answer(honest_reader)
        _, connections = await laned(world, 50)
        (honest, *_) = world.host.connections
        executed = world.dispatcher.executed
        for connection in connections:
            bring(connection, b"".join(frame(ECHO, number, b"laned") for number in range(20)))
        for number in range(1, 100):
            before = len(executed)
            bring(honest, frame(ECHO, number, b"honest"))
            assert executed[before:] == [b"honest"], "executed at once, in the callback that delivered it"
            await asyncio.sleep(0)
            assert len(executed) - before <= 1 + TURNS_A_PASS
        assert executed.count(b"laned") == 99 * TURNS_A_PASS, (
            "connections in the lane get a share in each pass, whatever others send"
        )

    simulate(run)


def test_a_long_request_is_the_last_of_its_share() -> None:
    async def run(world: World) -> None:
        _, connections = await laned(world, 20)
        world.host.lane._now_ms = itertools.count(
            world.host.clock.now_ms()
        ).__next__  # Each reading of the clock advances it by a millisecond.
        executed = world.dispatcher.executed
        for connection in connections:
            bring(connection, frame(ECHO, 1))
        while len(executed) < 20:
            before = len(executed)
            await asyncio.sleep(0)
            assert len(executed) - before <= 1

    simulate(run)


def test_connections_leave_the_lane_after_valid_requests_or_when_their_address_is_calm() -> None:
    async def run(world: World) -> None:
        readers, (proven, other) = await laned(world, 2)
        for number in range(TURNS):
            assert proven.turns.execution != Execution.RUNNING
            bring(proven, frame(ECHO, number))
            assert await answer(readers[0]) == (number, b"")
        assert proven.turns.execution == Execution.RUNNING
        bring(other, frame(ECHO, 1))
        assert await answer(readers[1]) == (1, b"")
        assert other.turns.execution != Execution.RUNNING
        await asyncio.sleep(2)
        bring(other, frame(ECHO, 2))
        assert await answer(readers[1]) == (2, b"")
        assert other.turns.execution == Execution.RUNNING

    simulate(run)


def test_a_parked_request_holds_its_connection_in_the_lane_too() -> None:
    """No later request is executed before its response, and a connection that waits uses no turns."""

    async def run(world: World) -> None:
        await trouble(world)
        reader, writer = await world.client()
        writer.write(frame(PARK, 1, b"slow") + frame(ECHO, 2, b"fast"))
        await asyncio.sleep(0.5)
        assert world.dispatcher.executed == [b"slow"]
        (connection,) = world.host.connections
        turns = connection.turns.turns_left
        writer.write(frame(ECHO, 3, b"more"))
        await asyncio.sleep(0.1)
        assert len(world.host.lane) == 0
        assert connection.turns.turns_left == turns
        world.dispatcher.parked[0][1].complete(b"done")
        assert [await answer(reader) for _ in range(3)] == [(1, b"done"), (2, b"fast"), (3, b"more")]

    simulate(run)


def test_a_laned_connection_is_read_only_as_far_as_it_is_executed() -> None:
    """Memory is bounded while it waits for its turn."""

    async def run(world: World) -> None:
        await trouble(world)
        reader, writer = await world.client()
        await asyncio.sleep(0.01)
        world.host.lane._is_scheduled = True  # The connection gets no turn.
        body = bytes(100_000)
        for number in range(40):
            writer.write(frame(ECHO, number, body))
            await asyncio.sleep(0.1)
        (connection,) = world.host.connections
        assert len(connection._backlog) + connection.frame.filled <= len(world.host.gathering.room)
        world.host.lane._is_scheduled = False
        world.host.lane.enter(connection)
        for number in range(40):
            assert await answer(reader) == (number, body)

    simulate(run)


def test_a_stop_answers_what_waits_in_the_lane() -> None:
    async def run(world: World) -> None:
        readers, connections = await laned(world, 30)
        for number, connection in enumerate(connections):
            bring(connection, frame(ECHO, number, b"owed"))
        await world.server.close(1.0)
        for number, reader in enumerate(readers):
            assert await answer(reader) == (number, b"owed")
            assert await reader.read() == b""
        assert not world.host.connections

    simulate(run)


def test_a_connection_closed_while_it_waits_is_forgotten() -> None:
    async def run(world: World) -> None:
        _, connections = await laned(world, 30)
        for connection in connections:
            bring(connection, frame(ECHO, 1) * 3)
        assert len(world.host.lane) == len(connections)
        world.host.abort_connections()
        await asyncio.sleep(0.1)
        assert len(world.host.lane) == 0

    simulate(run)


def test_damaged_frames_in_the_lane_close_their_connection() -> None:
    async def run(world: World) -> None:
        _, connections = await laned(world, 20)
        for connection in connections:
            bring(connection, frame(ECHO, 1, b"whole") + DAMAGED + frame(ECHO, 2, b"never"))
        await asyncio.sleep(1)
        assert world.dispatcher.executed == [b"whole"] * 20
        assert not world.host.connections

    simulate(run)
