"""The quick path of Produce: the same answers, records and figures as without the compiled module, and nothing of what isn't usual."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from bench.request_path import SETTINGS, produce
from bench.request_path import World as Cluster
from lowtide.broker.partitions.produce.joint_produce import SmallProduce, small_produce
from lowtide.protocol import native
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.compression import Compression
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.headers import request_header
from lowtide.protocol.messages.alter_client_quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasOperation,
    AlterClientQuotasRequest,
    AlteredQuotaEntity,
)
from lowtide.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.replication.topic_traffic import Traffic
from lowtide.runtime.clock import SIMULATION_WALL_START_MS as NOW_MS
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.client import WireClient
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.shared_store import SharedStore

needs_compiled = pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")

TOPICS: dict[str, dict[str, str]] = {
    "t": {},
    "young": {"message.timestamp.before.max.ms": "1000"},
    "tiny": {"max.message.bytes": "200"},
    "compacted": {"cleanup.policy": "compact"},
    "dated": {"message.timestamp.type": "LogAppendTime"},
    "packed": {"compression.type": "gzip"},
    "flushed": {"flush.messages": "1"},
    "rolled": {"segment.bytes": "1048576", "index.interval.bytes": "0"},
}
ONE = build_batch([(NOW_MS, None, b"one", ())])
USUAL = 11 * 2


def producer(epoch: int, sequence: int, value: bytes = b"x") -> bytes:
    return bytes(build_batch([(NOW_MS, None, value, ())], producer_id=7, producer_epoch=epoch, base_sequence=sequence))


def damaged(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


class World:
    """A broker with a topic of each kind, and a client that sends bytes."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.chronicle = Chronicle(loop.time)
        self.machine = Machine(
            loop=loop,
            shared=SharedStore(loop, Random(1)),
            broker_id=1,
            random=Random(1),
            settings=SETTINGS,
            chronicle=self.chronicle,
            effects={},  # type: ignore[arg-type]  # nothing fails
        )
        self.ids: dict[str, bytes] = {}
        self.reader: asyncio.StreamReader = None  # type: ignore[assignment]
        self.writer: asyncio.StreamWriter = None  # type: ignore[assignment]

    async def begin(self) -> None:
        self.machine.start()
        while self.machine.state is not State.UP:
            await asyncio.sleep(0.01)
        client = await WireClient.connect(*self.machine.address)
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=1,
                replication_factor=1,
                assignments=[],
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
            )
            for name, configs in TOPICS.items()
        ]
        answer = await client.request(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
        self.ids = {topic.name: topic.topic_id for topic in answer.topics}
        self.reader, self.writer = await asyncio.open_connection(*self.machine.address)

    def frame(
        self,
        batch: bytes | None,
        topic: str = "t",
        *,
        version: int = 9,
        acks: int = 1,
        partition: int = 0,
        rows: int = 1,
    ) -> bytes:
        has_id = version >= 13
        data = TopicProduceData(
            name="" if has_id else topic,
            topic_id=self.ids.get(topic, b"no such topic...") if has_id else ZERO_TOPIC_ID,
            partition_data=[PartitionProduceData(index=partition, records=batch)] * rows,
        )
        request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[data])
        content = request_header(0, version, 1 + version, "c") + codec_for(ProduceRequest, version).encode(request)
        return struct.pack(">i", len(content)) + content

    async def answer(self) -> bytes:
        size = await self.reader.readexactly(4)
        return size + await self.reader.readexactly(struct.unpack(">i", size)[0])

    async def ask(self, batch: bytes | None, topic: str = "t", **fields: Any) -> bytes:
        self.writer.write(self.frame(batch, topic, **fields))
        return await self.answer()

    @property
    def serving(self) -> Any:
        assert self.machine.broker is not None
        return self.machine.broker.serving

    def figures(self) -> dict[str, Any]:
        """What was counted, and what is on the disk."""
        replicas = self.serving.replicas
        traffic = {
            topic: {field: getattr(replicas.traffic.of_topic(topic), field) for field in Traffic.__slots__}
            for topic in sorted({key.topic for key in replicas.partitions})
        }
        logs = {}
        for (name, _), partition in sorted(replicas.partitions.items()):
            partition.count_records()
            content = [self.machine.filesystem.read_bytes(segment.path) for segment in partition.log.segments]
            logs[name] = repr(partition.log), repr(partition.log.producer_state.producers), content
        return {
            "traffic": traffic,
            "errors": dict(replicas.traffic.errors),
            "logs": logs,
            "requests": self.serving.host.dispatcher.times.by_name["Produce"].count,
        }


async def in_runs(world: World) -> list[Any]:
    """Requests that arrive together: alike, of other partitions and versions, with a gap, a damaged one, and an unusual one among them."""
    seen: list[Any] = []
    for name in TOPICS:
        for version, acks in ((3, 1), (9, -1), (13, 1)):
            await send(world, [world.frame(ONE, name, version=version, acks=acks)] * 5, seen)
    one, other = world.frame(ONE), world.frame(ONE, "tiny")
    unusual = world.frame(build_batch([(NOW_MS, None, bytes(100), ())], compression=Compression.GZIP))
    for frames in (
        [one, other] * 3,
        [one, one, other, other],
        [one] * 40,
        [one, world.frame(damaged(ONE)), one],
        [one, one, unusual, one],
    ):
        await send(world, frames, seen)
    for acks in (1, -1):
        for sequences in ((0, 1, 2), (3, 4, 4, 5), (6, 7, 9, 8), (6, 7, 8)):
            await send(world, [world.frame(producer(3 - acks, sequence), acks=acks) for sequence in sequences], seen)
    await send(
        world,
        [world.frame(build_batch([(NOW_MS - 5000 * number, b"key", b"old", ())]), "young") for number in range(3)],
        seen,
    )
    await send(world, [world.frame(ONE, "unknown")] * 3 + [world.frame(ONE, partition=1)] * 3, seen)
    large = build_batch([(NOW_MS, None, bytes(60_000), ())])
    for _ in range(10):
        await send(world, [world.frame(large, "rolled")] * 3, seen)
    return seen


async def send(world: World, frames: list[bytes], seen: list[Any]) -> None:
    world.writer.write(b"".join(frames))
    seen += [await world.answer() for _ in frames]


async def everything(world: World) -> list[Any]:
    """Requests of all kinds. Returns the answers, and the figures in the end."""
    seen: list[Any] = [await world.ask(ONE, version=version, acks=acks) for version in range(3, 14) for acks in (1, -1)]
    for name in TOPICS:
        seen += [await world.ask(ONE, name, version=version) for version in (3, 12, 13)]
        seen.append(await world.ask(build_batch([(NOW_MS, b"key", bytes(300), ())]), name))
        seen.append(await world.ask(build_batch([(NOW_MS - 86_400_000, b"key", b"old", ())]), name))
        seen.append(await world.ask(build_batch([(NOW_MS + 86_400_000, b"key", b"new", ())]), name))
        seen.append(await world.ask(build_batch([(NOW_MS, None, bytes(100), ())], compression=Compression.GZIP), name))
    for version in (3, 9, 13):
        seen.append(await world.ask(ONE, "unknown", version=version))
        seen.append(await world.ask(ONE, partition=1, version=version))
        seen.append(await world.ask(damaged(ONE), version=version))
        seen.append(await world.ask(None, version=version))
        seen.append(await world.ask(ONE, acks=2, version=version))
    seen.append(await world.ask(ONE, rows=2))
    sequences = ((0, 0), (0, 1), (0, 0), (0, 1), (0, 5), (1, 0), (0, 2), (1, 1))
    seen += [
        await world.ask(producer(epoch, sequence), version=version)
        for epoch, sequence in sequences
        for version in (8, 13)
    ]
    seen += [await world.ask(producer(epoch, sequence), acks=-1) for epoch, sequence in sequences]
    # Without an answer, and many at once, of which one waits for the disk.
    world.writer.write(world.frame(ONE, acks=0))
    flushed = world.frame(ONE, "flushed", acks=-1)
    world.writer.write(
        b"".join([world.frame(ONE), flushed, world.frame(ONE), world.frame(damaged(ONE)), world.frame(ONE, version=13)])
    )
    seen += [await world.answer() for _ in range(5)]
    large = build_batch([(NOW_MS, None, bytes(60_000), ())])
    seen += [await world.ask(large, "rolled") for _ in range(40)]
    seen += await in_runs(world)
    world.machine.filesystem.capacity_bytes = 0
    world.writer.write(world.frame(ONE) * 3)
    seen += [await world.answer() for _ in range(3)]
    seen += [await world.ask(producer(1, 2), version=version) for version in (7, 11, 13)]
    world.machine.filesystem.capacity_bytes = None
    seen += [await world.ask(producer(1, 2)), world.figures()]
    return seen


def simulate(test: Any) -> Any:
    async def main(loop: SimulatedLoop) -> Any:
        world = World(loop)
        await world.begin()
        try:
            return await test(world)
        finally:
            world.writer.close()
            await asyncio.sleep(0.1)

    return run_simulation(main, 1)


@needs_compiled
def test_both_forms_give_the_same_answers_records_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = []
    handle = SmallProduce.handle

    def counted(self: SmallProduce, *arguments: Any) -> Any:
        answered.append(handle(self, *arguments))
        return answered[-1]

    ran: list[Any] = []
    handle_run = SmallProduce.handle_run

    def counted_run(self: SmallProduce, *arguments: Any) -> Any:
        ran.append(handle_run(self, *arguments))
        return ran[-1]

    monkeypatch.setattr(SmallProduce, "handle", counted)
    monkeypatch.setattr(SmallProduce, "handle_run", counted_run)
    compiled = simulate(everything)
    assert sum(done[2] for done in ran if done is not None) > 80, "few came in runs"
    assert ran.count(None) > 10, "no run was unusual"
    assert sum(type(answer) is bytes for answer in answered) > 2 * USUAL
    assert sum(type(answer) is ProduceResponse for answer in answered) > 5, "the log has refused none"
    assert answered.count(None) > 20, "nothing was unusual"
    answered.clear()
    monkeypatch.setattr(native, "compiled", None)
    plain = simulate(everything)
    assert not answered
    for number, (left, right) in enumerate(zip(compiled, plain, strict=True)):
        assert left == right, number


async def with_followers(loop: SimulatedLoop) -> list[Any]:
    """acks=all and acks=1 while followers are there, while there are none, and with too few of them in sync."""
    world = Cluster(loop, 3)
    client = await world.begin()
    seen: list[Any] = []

    async def ask() -> None:
        for version, acks in ((9, -1), (9, 1), (10, -1)):
            request = produce(acks)
            request.timeout_ms = 500
            answer = await client.request(request, version)
            seen.append((world.loop.time(), answer))

    await ask()
    for machine in world.machines[1:]:
        machine.pause()
    await ask()
    for machine in world.machines[1:]:
        machine.resume()
    await asyncio.sleep(60)
    await ask()
    client.close()
    await asyncio.sleep(0.1)
    return seen


@needs_compiled
def test_both_forms_wait_for_the_same_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = run_simulation(with_followers, 1)
    errors = {row.error_code for _, answer in compiled for row in answer.responses[0].partition_responses}
    assert {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT} <= errors
    monkeypatch.setattr(native, "compiled", None)
    assert run_simulation(with_followers, 1) == compiled


@needs_compiled
def test_a_bug_in_the_quick_path_closes_its_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("bug")

    async def run(world: World) -> None:
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await world.ask(ONE)
        client = await WireClient.connect(*world.machine.address)
        two = TopicProduceData(
            name="t", partition_data=[PartitionProduceData(index=index, records=ONE) for index in (0, 1)]
        )
        answer = await client.request(ProduceRequest(acks=1, timeout_ms=1, topic_data=[two]), 9)
        assert [row.error_code for row in answer.responses[0].partition_responses] == [
            0,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]

    monkeypatch.setattr(SmallProduce, "handle", fail)
    simulate(run)


@needs_compiled
def test_where_a_quota_is_set_requests_go_the_long_way() -> None:
    async def run(world: World) -> None:
        routes = world.serving.host.dispatcher.routes
        assert routes[0, 9].quick is not None
        client = await WireClient.connect(*world.machine.address)
        entry = AlterClientQuotasEntry(
            entity=[AlteredQuotaEntity(entity_type="client-id", entity_name="c")],
            ops=[AlterClientQuotasOperation(key="producer_byte_rate", value=1.0, remove=False)],
        )
        await client.request(AlterClientQuotasRequest(entries=[entry], validate_only=False), 1)
        await asyncio.sleep(1)
        assert routes[0, 9].quick is None
        codec = codec_for(ProduceResponse, 9)
        answer = await world.ask(ONE)
        assert codec.decode(answer, 9, len(answer)).throttle_time_ms > 0

    simulate(run)


def test_without_the_compiled_module_there_is_no_quick_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "compiled", None)
    parts: Any = None
    assert small_produce(parts) is None
