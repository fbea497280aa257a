"""Small Produce requests that arrive on several connections in one pass: the answers, records and figures of requests one by one."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bench.request_path import World as Cluster
from bench.request_path import produce
from lowtide.broker.network import gathering
from lowtide.broker.partitions.produce.joint_produce import SmallProduce
from lowtide.protocol import native
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.headers import request_header
from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.protocol.messages.produce import ProduceResponse
from lowtide.runtime.clock import SIMULATION_WALL_START_MS as NOW_MS
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.simulation.client import WireClient

from .test_small_produce import ONE, World, damaged, needs_compiled, producer, simulate

Lines = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


@contextlib.asynccontextmanager
async def connected(world: World, count: int) -> AsyncIterator[Lines]:
    network = world.loop.network
    network.arrival_step_ms, network.split_probability, network.delay_range_ms = 2.0, 0.0, (0.1, 0.1)
    lines = [await asyncio.open_connection(*world.machine.address) for _ in range(count)]
    try:
        yield lines
    finally:
        for _, writer in lines:
            writer.close()


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(struct.unpack(">i", size)[0])


async def ask_together(lines: Lines, frames: list[bytes]) -> list[bytes]:
    """A request on each connection, all in the same moment."""
    for (_, writer), frame in zip(lines, frames, strict=False):
        writer.write(frame)
    return [await read_answer(reader) for (reader, _), _ in zip(lines, frames, strict=False)]


def offsets_of(answers: list[bytes], version: int = 9) -> list[int]:
    codec, found = codec_for(ProduceResponse, version), []
    for answer in answers:
        row = codec.decode(answer, 9 if version >= 9 else 8, len(answer)).responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.NONE
        found.append(row.base_offset)
    return found


class Counted:
    """Which calls of `SmallProduce.handle_group` had answers, and for how many requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[int | None] = []
        handle = SmallProduce.handle_group

        def counted(small: SmallProduce, asked: Any, *arguments: Any) -> Any:
            answers = handle(small, asked, *arguments)
            self.calls.append(None if answers is None else len(asked[1]))
            return answers

        monkeypatch.setattr(SmallProduce, "handle_group", counted)


@pytest.fixture(autouse=True)
def without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass may gather, however little the one before brought."""
    monkeypatch.setattr(gathering, "REST_NS", 0)


async def alike(world: World) -> list[Any]:
    """Rounds of which each has requests of one kind, or some that no log takes together: what is first is appended first in all forms."""
    seen = list[Any]()
    async with connected(world, 6) as lines:
        await ask_alike(world, lines, seen)
    return [*seen, world.figures()]


async def ask_alike(world: World, lines: Lines, seen: list[Any]) -> None:
    for version, acks in ((3, 1), (9, -1), (13, 1)):
        for name in ("t", "young", "tiny", "compacted", "dated", "packed", "flushed", "unknown"):
            seen += await ask_together(lines, [world.frame(ONE, name, version=version, acks=acks)] * 6)
    for sequence in (0, 1, 1, 3):  # The third is a duplicate of each, the fourth has a gap.
        made = [
            bytes(
                build_batch(
                    [(NOW_MS, None, b"x", ())], producer_id=20 + number, producer_epoch=0, base_sequence=sequence
                )
            )
            for number in range(6)
        ]
        seen += await ask_together(lines, [world.frame(each) for each in made])
    for sequences in (
        (2, 2, 2, 1, 2, 2),
        (3, 3, 3, 2, 5, 2),
        (4, 4, 3, 3, 3, 3),
    ):  # Next ones, duplicates and gaps of different producers.
        made = [
            bytes(
                build_batch(
                    [(NOW_MS, None, b"x", ())], producer_id=20 + number, producer_epoch=0, base_sequence=sequence
                )
            )
            for number, sequence in enumerate(sequences)
        ]
        seen += await ask_together(lines, [world.frame(each) for each in made])
    seen += await ask_together(lines, [world.frame(damaged(ONE))] * 3)
    seen += await ask_together(lines, [world.frame(ONE, partition=1)] * 3)
    seen += await ask_together(
        lines,
        [world.frame(build_batch([(NOW_MS - 5000 * number, b"key", b"old", ())]), "young") for number in range(3)],
    )
    large = build_batch([(NOW_MS, None, bytes(60_000), ())])
    for _ in range(10):
        seen += await ask_together(lines, [world.frame(large, "rolled")] * 3)
    world.machine.filesystem.capacity_bytes = 0
    seen += await ask_together(lines, [world.frame(ONE)] * 3)
    world.machine.filesystem.capacity_bytes = None
    seen += await ask_together(lines, [world.frame(ONE)] * 3)


@needs_compiled
def test_both_forms_give_the_same_answers_records_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    compiled = simulate(alike)
    assert sum(count or 0 for count in counted.calls) > 60, "few were executed together"
    assert counted.calls.count(None) > 10, "no group was unusual"
    monkeypatch.setattr(native, "compiled", None)
    plain = simulate(alike)
    for number, (left, right) in enumerate(zip(compiled, plain, strict=True)):
        assert left == right, number


@needs_compiled
def test_requests_of_all_kinds_in_one_pass_are_each_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other versions and partitions, one producer on two connections, a damaged batch: each is answered on the connection that asked."""
    counted = Counted(monkeypatch)

    async def run(world: World) -> None:
        async with connected(world, 9) as lines:
            codec = codec_for(MetadataRequest, 9)
            metadata = request_header(3, 9, 77, "c") + codec.encode(MetadataRequest(topics=[]))
            frames = [
                world.frame(ONE),
                world.frame(ONE, "tiny"),
                world.frame(ONE, version=3),
                world.frame(producer(0, 0)),
                world.frame(ONE, "tiny"),
                struct.pack(">i", len(metadata)) + metadata,
                world.frame(ONE),
                world.frame(producer(0, 0)),
                world.frame(ONE, version=3),
            ]
            answers = await ask_together(lines, frames)
            assert [struct.unpack_from(">i", answer, 4)[0] for answer in answers] == [10, 10, 4, 10, 10, 77, 10, 10, 4]
            assert sorted(offsets_of([answers[1], answers[4]])) == [0, 1]
            offsets = offsets_of([answers[0], answers[3], answers[6], answers[7]]) + offsets_of(
                [answers[2], answers[8]], 3
            )
            assert sorted(offsets[:1] + offsets[2:3] + offsets[4:] + [offsets[1]]) == [0, 1, 2, 3, 4]
            assert offsets[1] == offsets[3], "the producer's second request is a duplicate"

    simulate(run)
    assert max(count or 0 for count in counted.calls) >= 2


@needs_compiled
def test_a_client_that_closes_its_side_behind_its_request_is_answered() -> None:
    async def run(world: World) -> None:
        async with connected(world, 5) as lines:
            for _ in range(2):
                await ask_together(lines, [world.frame(ONE)] * 5)
            for _, writer in lines:
                writer.write(world.frame(ONE))
                writer.write_eof()
            assert sorted(offsets_of([await read_answer(reader) for reader, _ in lines])) == [10, 11, 12, 13, 14]
            assert [await reader.read() for reader, _ in lines] == [b""] * 5

    simulate(run)


@needs_compiled
def test_a_bug_closes_the_connections_of_its_group_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("bug")

    async def run(world: World) -> None:
        async with connected(world, 5) as lines:
            for (_, writer), name in zip(lines, ("t", "t", "tiny", "t", "t"), strict=True):
                writer.write(world.frame(ONE, name))
            outcomes = await asyncio.gather(*(read_answer(reader) for reader, _ in lines), return_exceptions=True)
            assert sum(isinstance(outcome, bytes) for outcome in outcomes) >= 1
            assert isinstance(outcomes[2], bytes)
            assert any(isinstance(outcome, ConnectionError | asyncio.IncompleteReadError) for outcome in outcomes)
        async with connected(world, 1) as lines:
            offsets_of(await ask_together(lines, [world.frame(ONE)]))

    monkeypatch.setattr(SmallProduce, "handle_group", fail)
    simulate(run)


async def with_followers(loop: SimulatedLoop) -> list[Any]:
    """acks=all, on several connections and in runs, while followers are there, while there are none, and with too few of them in sync."""
    world = Cluster(loop, 3)
    client = await world.begin()
    loop.network.arrival_step_ms, loop.network.split_probability, loop.network.delay_range_ms = 2.0, 0.0, (0.1, 0.1)
    clients = [await WireClient.connect(*world.machines[0].address) for _ in range(5)]
    seen: list[Any] = []

    async def ask() -> None:
        request = produce(-1)
        request.timeout_ms = 500
        # One on each connection, and some behind each other on one more.
        answers = await asyncio.gather(*(each.request(request, 9) for each in [*clients, *[client] * 4]))
        rows = [answer.responses[0].partition_responses[0] for answer in answers]
        seen.append(sorted((row.error_code, row.base_offset, row.log_start_offset) for row in rows))

    for _ in range(3):
        await ask()
    for machine in world.machines[1:]:
        machine.pause()
    await ask()
    for machine in world.machines[1:]:
        machine.resume()
    await asyncio.sleep(60)
    await ask()
    for each in (client, *clients):
        each.close()
    await asyncio.sleep(0.1)
    return seen


@needs_compiled
def test_both_forms_wait_for_the_same_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, ran, handle_run = Counted(monkeypatch), list[Any](), SmallProduce.handle_run

    def counted_run(small: SmallProduce, *arguments: Any) -> Any:
        ran.append(handle_run(small, *arguments))
        return ran[-1]

    monkeypatch.setattr(SmallProduce, "handle_run", counted_run)
    compiled = run_simulation(with_followers, 1)
    assert sum(count or 0 for count in counted.calls) > 12, "few were executed together"
    errors = [error for answers in compiled for error, _, _ in answers]
    assert errors.count(ErrorCode.REQUEST_TIMED_OUT) == 9
    assert errors.count(ErrorCode.NONE) == 36
    assert sum(type(done[0]) is list for done in ran if done is not None) >= 5, "few runs have waited"
    monkeypatch.setattr(native, "compiled", None)
    assert run_simulation(with_followers, 1) == compiled
