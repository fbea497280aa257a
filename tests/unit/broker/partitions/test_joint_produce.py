"""The joint form of Produce against the definition: the same answers, records, producers and figures, for any number of
requests."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from random import Random as Chance
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.request_path import SETTINGS, produce
from bench.request_path import World as Cluster
from lowtide.broker.network.connection import gathering
from lowtide.broker.partitions.produce.joint_produce import JointProduce, joint_produce
from lowtide.protocol import native
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.compression import Compression
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.headers import request_header
from lowtide.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from lowtide.protocol.messages.alter_client_quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasOperation,
    AlterClientQuotasRequest,
    AlteredQuotaEntity,
)
from lowtide.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from lowtide.protocol.messages.end_txn import EndTxnRequest
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.replication.topic_traffic import Traffic
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SIMULATION_WALL_START_MS as NOW_MS
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.client import WireClient
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.shared_store import SharedStore
from tests.examples import examples

pytestmark = pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")

TOPICS: Final[dict[str, dict[str, str]]] = {
    "t": {},
    "young": {"message.timestamp.before.max.ms": "1000"},
    "tiny": {"max.message.bytes": "200"},
    "compacted": {"cleanup.policy": "compact"},
    "dated": {"message.timestamp.type": "LogAppendTime"},
    "packed": {"compression.type": "gzip"},
    "flushed": {"flush.messages": "1"},
    "rolled": {"segment.bytes": "1048576", "index.interval.bytes": "0"},
}
NAMES: Final = ("t", "t", "t", *TOPICS, "unknown")
VERSIONS: Final = (3, 7, 8, 9, 10, 12, 13)
CONNECTIONS: Final = 6
TRANSACTION: Final = "x"
ONE: Final = build_batch([(NOW_MS, None, b"one", ())])


@pytest.fixture(autouse=True)
def without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass may gather, however little the one before brought."""
    monkeypatch.setattr(gathering, "REST_NS", 0)


def batch_of(kind: str, **producer: Any) -> bytes:
    if kind == "damaged":
        return bytes(ONE[:-1]) + bytes([ONE[-1] ^ 1])
    time_ms = {"old": NOW_MS - 86_400_000, "older": NOW_MS - 5000, "new": NOW_MS + 86_400_000}.get(kind, NOW_MS)
    value = {"large": bytes(60_000), "too large": bytes(70_000), "middle": bytes(300)}.get(kind, b"value")
    compression = Compression.GZIP if kind == "packed" else Compression.NONE
    return bytes(build_batch([(time_ms, b"key", value, ())], compression=compression, **producer))


class World:
    """A broker with a topic of each kind, and connections of clients that send bytes."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.machine = Machine(
            loop=loop,
            shared=SharedStore(loop, Random(1)),
            broker_id=1,
            random=Random(1),
            settings=SETTINGS,
            chronicle=Chronicle(loop.time),
            effects={},  # nothing fails
        )
        self.ids: dict[str, bytes] = {}
        self.client: WireClient = None
        self.lines: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.sequences: dict[tuple[str, int], int] = {}
        self.transaction: tuple[int, int] | None = None
        self.transaction_sequence = 0

    @contextlib.asynccontextmanager
    async def begun(self) -> AsyncIterator[None]:
        network = self.loop.network
        network.arrival_step_ms, network.split_probability, network.delay_range_ms = 2.0, 0.0, (0.1, 0.1)
        self.machine.start()
        while self.machine.state is not State.UP:
            await asyncio.sleep(0.01)
        self.client = await WireClient.connect(*self.machine.address)
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
        answer = await self.client.request(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
        self.ids = {topic.name: topic.topic_id for topic in answer.topics}
        self.lines = [await asyncio.open_connection(*self.machine.address) for _ in range(CONNECTIONS)]
        try:
            yield
        finally:
            for _, writer in self.lines:
                writer.close()
            self.client.close()
            await asyncio.sleep(0.1)

    def frame(
        self,
        batch: bytes | None,
        topic: str = "t",
        *,
        version: int = 9,
        acks: int = 1,
        partition: int = 0,
        rows: int = 1,
        transactional_id: str | None = None,
    ) -> bytes:
        has_id = version >= 13
        data = TopicProduceData(
            name="" if has_id else topic,
            topic_id=self.ids.get(topic, b"no such topic...") if has_id else ZERO_TOPIC_ID,
            partition_data=[PartitionProduceData(index=partition, records=batch)] * rows,
        )
        request = ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=[data])
        content = request_header(0, version, 1 + version, "c") + codec_for(ProduceRequest, version).encode(request)
        return struct.pack(">i", len(content)) + content

    async def answer(self, line: int = 0) -> bytes:
        reader = self.lines[line][0]
        size = await reader.readexactly(4)
        return size + await reader.readexactly(struct.unpack(">i", size)[0])

    async def ask(self, batch: bytes | None, topic: str = "t", **fields: Any) -> bytes:
        self.lines[0][1].write(self.frame(batch, topic, **fields))
        return await self.answer()

    async def ask_behind(self, frames: list[bytes]) -> list[bytes]:
        """Sends all frames in one write on the first connection. Returns their answers."""
        self.lines[0][1].write(b"".join(frames))
        return [await self.answer() for _ in frames]

    async def ask_beside(self, frames: list[bytes]) -> list[bytes]:
        """Each on another connection, in the same moment."""
        for (_, writer), frame in zip(self.lines, frames, strict=False):
            writer.write(frame)
        return [await self.answer(line) for line in range(len(frames))]

    @property
    def serving(self) -> Any:
        assert self.machine.broker is not None
        return self.machine.broker.serving

    def figures(self) -> dict[str, Any]:
        """Returns what was counted, and what is on the disk."""
        replicas = self.serving.replicas
        traffic = {
            topic: {field: getattr(replicas.traffic.of_topic(topic), field) for field in Traffic.__slots__}
            for topic in sorted({key.topic for key in replicas.partitions})
        }
        logs = {}
        for key, partition in sorted(replicas.partitions.items()):
            partition.count_records()
            partition.log.files.make()  # A log of refused records may have none yet.
            content = [self.machine.filesystem.read_bytes(segment.path) for segment in partition.log.segments]
            logs[key] = partition.log.describe(), repr(partition.log.producer_state.producers), content
        requests = self.serving.host.dispatcher.times.by_name["Produce"].count
        return {"traffic": traffic, "errors": dict(replicas.traffic.errors), "logs": logs, "requests": requests}

    # ------------------------------------------------------------------ random operations
    def producer(self, chance: Chance, topic: str, producer_id: int) -> dict[str, int]:
        """Returns the next sequence of a producer, or a wrong one now and then."""
        sequence = self.sequences.get((topic, producer_id), 0)
        self.sequences[topic, producer_id] = sequence + 1
        wrong = chance.choice((-1, 1, 5)) if chance.random() < 0.05 else 0
        epoch = int(chance.random() < 0.05)
        return {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": max(sequence + wrong, 0)}

    async def alone(self, chance: Chance) -> Any:
        topic, kind = (
            chance.choice(NAMES),
            chance.choice(("small", "small", "middle", "packed", "old", "new", "damaged")),
        )
        fields = {"version": chance.choice(VERSIONS), "acks": chance.choice((1, 1, -1, 2))}
        if chance.random() < 0.2:
            fields |= chance.choice(({"partition": 1}, {"rows": 2}))
        known = self.producer(chance, topic, 7) if chance.random() < 0.3 else {}
        return await self.ask(None if chance.random() < 0.05 else batch_of(kind, **known), topic, **fields)

    async def behind(self, chance: Chance) -> Any:
        """Requests of one connection: mostly alike, of an idempotent producer or none."""
        topic, version, acks = chance.choice(NAMES), chance.choice(VERSIONS), chance.choice((1, 1, -1))
        producer_id, frames = chance.choice((None, 8, 9)), []
        for _ in range(chance.choice((2, 3, 5, 20))):
            kind = (
                "small"
                if chance.random() < 0.95
                else chance.choice(("large", "too large", "packed", "older", "damaged"))
            )
            known = {} if producer_id is None else self.producer(chance, topic, producer_id)
            name = topic if chance.random() < 0.98 else "t"
            frames.append(self.frame(batch_of(kind, **known), name, version=version, acks=acks))
        return await self.ask_behind(frames)

    async def beside(self, chance: Chance) -> Any:
        """Requests of several connections that are alike, of different producers: each form appends them in the same
        order."""
        topic, version, acks = chance.choice(NAMES), chance.choice(VERSIONS), chance.choice((1, 1, -1))
        kind, frames = chance.choice(("small", "small", "large", "older", "damaged")), []
        for line in range(chance.randint(2, CONNECTIONS)):
            known = self.producer(chance, topic, 20 + line) if chance.random() < 0.5 else {}
            frames.append(self.frame(batch_of(kind, **known), topic, version=version, acks=acks))
        return await self.ask_beside(frames)

    async def transact(self, chance: Chance) -> Any:
        """Batches of a transaction: the partition was added, or is added by the request, or isn't known."""
        if self.transaction is None or chance.random() < 0.1:
            asked = InitProducerIdRequest(transactional_id=TRANSACTION, transaction_timeout_ms=60_000)
            answer = await self.client.request(asked, 4)
            if answer.error_code != ErrorCode.NONE:
                await asyncio.sleep(0.2)
                return answer
            self.transaction, self.transaction_sequence = (answer.producer_id, answer.producer_epoch), 0
        producer_id, producer_epoch = self.transaction
        version, answers = chance.choice((9, 12, 13)), []
        if version == 9 and chance.random() < 0.8:
            added = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=TRANSACTION,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=producer_epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
            )
            answers.append(await self.client.request(added, 3))
        fields = {"producer_id": producer_id, "producer_epoch": producer_epoch, "is_transactional": True}
        frames = []
        for _ in range(chance.randint(1, 3)):
            content = batch_of("small", base_sequence=self.transaction_sequence, **fields)
            frames.append(
                self.frame(content, version=version, acks=chance.choice((1, -1)), transactional_id=TRANSACTION)
            )
            self.transaction_sequence += 1
        answers += await self.ask_behind(frames)
        if chance.random() < 0.4:
            end = EndTxnRequest(
                transactional_id=TRANSACTION,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                committed=chance.random() < 0.5,
            )
            answers.append(await self.client.request(end, 3))
        return answers

    async def fill(self, chance: Chance) -> Any:
        """Requests while the disk is full."""
        self.machine.filesystem.capacity_bytes = 0
        answers = [*await self.ask_behind([self.frame(ONE)] * 3), *await self.ask_beside([self.frame(ONE)] * 3)]
        self.machine.filesystem.capacity_bytes = None
        return [*answers, await self.alone(chance)]


KINDS: Final = (
    "alone",
    "alone",
    "behind",
    "behind",
    "behind",
    "beside",
    "beside",
    "beside",
    "transact",
    "transact",
    "fill",
)


def simulate(test: Any) -> Any:
    async def main(loop: SimulatedLoop) -> Any:
        world = World(loop)
        async with world.begun():
            return await test(world)

    return run_simulation(main, 1)


def played(seed: int, count: int) -> list[Any]:
    """Returns the answers to random operations, and the figures at the end."""

    async def run(world: World) -> list[Any]:
        chance, seen = Chance(seed), list[Any]()
        for _ in range(count):
            kind = chance.choice(KINDS)
            seen.append((kind, await getattr(world, kind)(chance)))
        return [*seen, world.figures()]

    result: list[Any] = simulate(run)
    return result


class Counted:
    """How many requests each call of the joint form answered; None where it left them to the definition."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[int | None] = []
        answer = JointProduce.answer

        def counted(joint: JointProduce, *arguments: Any) -> Any:
            answers = answer(joint, *arguments)
            self.calls.append(None if answers is None else len(answers))
            return answers

        patch.setattr(JointProduce, "answer", counted)


def without_joint_form(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JointProduce, "answer", lambda *_: None)


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 1 << 32))
def test_both_forms_give_the_same_answers_records_and_figures(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "REST_NS", 0)
        joint = played(seed, 25)
        without_joint_form(patch)
        plain = played(seed, 25)
    for number, (left, right) in enumerate(zip(joint, plain, strict=True)):
        assert left == right, number


def test_most_requests_are_answered_by_the_joint_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long game has groups of all sizes, and some that aren't usual."""
    counted = Counted(monkeypatch)
    played(1, 150)
    assert {1, 2, 3, 5} <= set(counted.calls)
    assert max(count or 0 for count in counted.calls) > 8
    assert counted.calls.count(None) > 20


async def with_followers(loop: SimulatedLoop) -> list[Any]:
    """acks=all and acks=1 on several connections and behind each other: with followers, without, and with them
    again."""
    world = Cluster(loop, 3)
    client = await world.begin()
    loop.network.arrival_step_ms, loop.network.split_probability, loop.network.delay_range_ms = 2.0, 0.0, (0.1, 0.1)
    clients = [await WireClient.connect(*world.machines[0].address) for _ in range(5)]
    seen: list[Any] = []

    async def ask() -> None:
        for version, acks in ((9, -1), (9, 1), (10, -1)):
            request = produce(acks)
            request.timeout_ms = 500
            answers = await asyncio.gather(*(each.request(request, version) for each in [*clients, *[client] * 4]))
            rows = [answer.responses[0].partition_responses[0] for answer in answers]
            seen.append(sorted((row.error_code, row.base_offset, row.log_start_offset) for row in rows))

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


def test_both_forms_wait_for_the_same_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    joint = run_simulation(with_followers, 1)
    errors = [error for answers in joint for error, _, _ in answers]
    assert errors.count(ErrorCode.REQUEST_TIMED_OUT) >= 9
    assert errors.count(ErrorCode.NONE) >= 45
    assert sum(count or 0 for count in counted.calls) > 40
    without_joint_form(monkeypatch)
    assert run_simulation(with_followers, 1) == joint


def test_a_client_that_closes_its_side_behind_its_request_is_answered() -> None:
    async def run(world: World) -> None:
        for _ in range(2):
            await world.ask_beside([world.frame(ONE)] * CONNECTIONS)
        for _, writer in world.lines:
            writer.write(world.frame(ONE))
            writer.write_eof()
        codec = codec_for(ProduceResponse, 9)
        answers = [await world.answer(line) for line in range(CONNECTIONS)]
        rows = [codec.decode(each, 9, len(each)).responses[0].partition_responses[0] for each in answers]
        assert sorted(row.base_offset for row in rows) == list(range(2 * CONNECTIONS, 3 * CONNECTIONS))
        assert [await reader.read() for reader, _ in world.lines] == [b""] * CONNECTIONS

    simulate(run)


def test_a_bug_closes_the_connections_of_its_group_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("bug")

    async def run(world: World) -> None:
        unusual = world.frame(batch_of("packed"))
        for (_, writer), frame in zip(world.lines, [world.frame(ONE)] * 3 + [unusual], strict=False):
            writer.write(frame)
        outcomes = await asyncio.gather(*(world.answer(line) for line in range(4)), return_exceptions=True)
        assert all(isinstance(each, ConnectionError | asyncio.IncompleteReadError) for each in outcomes[:3])
        assert isinstance(outcomes[3], bytes)

    monkeypatch.setattr(JointProduce, "answer", fail)
    simulate(run)


def test_there_is_no_joint_form_where_a_quota_is_set_or_without_the_compiled_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run(world: World) -> None:
        routes = world.serving.host.dispatcher.routes
        assert routes[0, 9].joint is not None
        entry = AlterClientQuotasEntry(
            entity=[AlteredQuotaEntity(entity_type="client-id", entity_name="c")],
            ops=[AlterClientQuotasOperation(key="producer_byte_rate", value=1.0, remove=False)],
        )
        await world.client.request(AlterClientQuotasRequest(entries=[entry], validate_only=False), 1)
        await asyncio.sleep(1)
        assert routes[0, 9].joint is None
        answer = await world.ask(ONE)
        assert codec_for(ProduceResponse, 9).decode(answer, 9, len(answer)).throttle_time_ms > 0

    simulate(run)
    monkeypatch.setattr(native, "compiled", None)
    parts: Any = None
    assert joint_produce(parts) is None
