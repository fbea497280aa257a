"""The worker validates batches that take long: others are served meanwhile, and each connection keeps its order."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine
from mmap import mmap
from typing import Any

import pytest

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.lifecycle.broker import Broker, Ports
from lowtide.broker.lifecycle.logger import quiet_logger
from lowtide.broker.partitions.produce import produce_attempt
from lowtide.broker.partitions.produce.produce_attempt import ProduceHandler
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock, SimulatedCommitter
from lowtide.simulation.client import WireClient
from lowtide.simulation.memory_store import MemoryDisk, MemoryStore
from lowtide.storage.log.validation.validation_rules import QUICK_BYTES, QUICK_RECORDS

HOST, PORT = "broker", 9092
PARTITIONS = 100
SMALL = build_batch([(1, None, b"small", ())])
MANY = build_batch([(1, None, b"", ())] * (QUICK_RECORDS + 1))
BOMB = build_batch([(1, None, bytes(QUICK_BYTES), ())], compression=Compression.ZSTD)


class SteppedWorker:
    """Works when the test calls for it."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()

    def submit(self, work: Callable[[], Any], on_done: Callable[[Any], None]) -> None:
        self.waiting.append((work, on_done))

    def close(self) -> None:
        while self.waiting:
            self.step()

    def step(self) -> None:
        work, on_done = self.waiting.popleft()
        on_done(work())


class PassingTime:
    """The loop as slices see it: between two slices time passes, in which other requests arrive."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_later(self, delay_s: float, callback: Any, *arguments: Any) -> None:
        self._loop.call_later(max(delay_s, 0.002), callback, *arguments)

    def call_soon(self, callback: Any, *arguments: Any) -> None:
        self._loop.call_later(0.002, callback, *arguments)


class SlowClock(SimulatedClock):
    """Each reading advances the clock, if the test enables it."""

    look_costs_ms = 0
    _passed_ms = 0

    def monotonic_ms(self) -> int:
        self._passed_ms += self.look_costs_ms
        return super().monotonic_ms() + self._passed_ms


class World:
    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.worker = SteppedWorker()
        self.clock = SlowClock(loop)
        self.filesystem = MemoryFileSystem(random.Random(1))
        self.disk = MemoryDisk()
        self.broker: Broker | None = None

    async def start(self) -> None:
        """A broker with a topic."""
        await self.serve()
        client = await self.connect()
        topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1, assignments=[], configs=[])
        await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)

    async def serve(self) -> None:
        """Run a broker on what is on the disk."""
        loop, filesystem, disk = self.loop, self.filesystem, self.disk

        async def open_store(_directory: str) -> MemoryStore:
            return MemoryStore(disk, clock=self.clock, random=random.Random(2), loop=loop)

        ports = Ports(
            loop=loop,
            clock=self.clock,
            filesystem=filesystem,
            random=random.Random(3),
            worker=self.worker,
            make_committer=lambda _directory: SimulatedCommitter(filesystem, loop, random.Random(4)),
            open_store=open_store,
        )
        config = load_config(settings={"log.dirs": "/data", "listeners": f"PLAINTEXT://{HOST}:{PORT}"})
        broker = self.broker = Broker(config, ports, quiet_logger(logging.CRITICAL))
        started = loop.create_future()

        async def serve() -> None:
            await broker.start()
            started.set_result(None)

        loop.start_node(HOST).spawn(serve())
        await started

    async def connect(self) -> WireClient:
        return await WireClient.connect(HOST, PORT)


def produce(*batches: bytes, acks: int = -1) -> ProduceRequest:
    rows = [PartitionProduceData(index=index, records=batch) for index, batch in enumerate(batches)]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=rows)])


def rows(response: Any) -> list[tuple[int, int]]:
    return [(row.error_code, row.base_offset) for row in response.responses[0].partition_responses]


def simulate(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: SimulatedLoop) -> None:
        world = World(loop)
        await world.start()
        await test(world)

    run_simulation(main, 1)


def test_others_are_served_while_a_batch_is_checked_and_its_connection_keeps_its_order() -> None:
    async def run(world: World) -> None:
        slow, other = await world.connect(), await world.connect()
        for number, batch in enumerate((MANY, BOMB)):
            first = slow.send(produce(batch), 9)
            second = slow.send(produce(SMALL), 9)
            await asyncio.sleep(1)
            assert len(world.worker.waiting) == 1
            assert not first.done()
            assert not second.done(), "otherwise it would precede the first in the log"
            assert rows(await other.request(produce(SMALL, SMALL), 9))[1] == (ErrorCode.NONE, number)
            world.worker.step()
            (error, base), (later_error, later) = rows(await first)[0], rows(await second)[0]
            assert error == later_error == ErrorCode.NONE
            assert later == base + (QUICK_RECORDS + 1 if batch is MANY else 1)

    simulate(run)


def test_quick_and_slow_batches_have_one_response() -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        answer = client.send(produce(SMALL, MANY), 9)
        await asyncio.sleep(1)
        world.worker.step()
        assert rows(await answer) == [(ErrorCode.NONE, 0), (ErrorCode.NONE, 0)]
        too_large = build_batch([(1, None, bytes(QUICK_BYTES), ())] * 129, compression=Compression.ZSTD)
        answer = client.send(produce(too_large, BOMB), 9)
        await asyncio.sleep(1)
        world.worker.step()
        await asyncio.sleep(1)
        assert not answer.done()
        world.worker.step()
        # The other batch was not validated, and must be sent again: the decompressed size of a request is bounded.
        assert rows(await answer) == [(ErrorCode.MESSAGE_TOO_LARGE, -1), (ErrorCode.NOT_ENOUGH_REPLICAS, -1)]

    simulate(run)


async def end_offset(client: WireClient) -> int:
    topic = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    response = await client.request(ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic]), 7)
    offset: int = response.topics[0].partitions[0].offset
    return offset


def test_acks_0_has_no_response_and_is_appended_anyway() -> None:
    async def run(world: World) -> None:
        client, other = await world.connect(), await world.connect()
        client.send(produce(MANY, acks=0), 9, expect_answer=False)
        following = client.send(produce(SMALL), 9)
        await asyncio.sleep(1)
        assert await end_offset(other) == 0
        world.worker.step()
        assert rows(await following) == [(ErrorCode.NONE, QUICK_RECORDS + 1)]
        client.send(produce(MANY, acks=0), 9, expect_answer=False)
        await asyncio.sleep(1)
        client.close()
        await asyncio.sleep(1)
        world.worker.step()
        assert await end_offset(other) == 2 * QUICK_RECORDS + 3, "it was received whole before the client went away"

    simulate(run)


def test_a_topic_that_is_deleted_meanwhile_is_reported() -> None:
    async def run(world: World) -> None:
        client, other = await world.connect(), await world.connect()
        answer = client.send(produce(MANY), 9)
        await asyncio.sleep(1)
        deletion = other.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000), 6)
        await asyncio.sleep(0.5)
        world.worker.step()
        assert rows(await answer)[0][0] in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        world.worker.close()
        await deletion

    simulate(run)


def test_a_batch_that_the_worker_returns_after_a_stop_is_not_appended() -> None:
    """The logs are closed, and marked as cleanly stopped; another process may use the directory by now."""

    async def run(world: World) -> None:
        client = await world.connect()
        await client.request(produce(SMALL), 9)
        client.send(produce(MANY), 9, expect_answer=False)
        await asyncio.sleep(1)
        assert world.broker is not None
        (log, *_) = (log for log in world.broker.log_manager.logs.values() if log.log_end_offset)
        await world.broker.stop()
        assert not world.worker.waiting, "a stop leaves nothing behind"
        assert log.log_end_offset == 1
        assert not log.offline
        left = world.filesystem.listdir("/data")
        assert ".kafka_cleanshutdown" in left
        assert "lowtide-sync-failed" not in left

    simulate(run)


def test_the_last_batch_for_a_partition_that_a_request_names_twice_counts() -> None:
    """As in Kafka.

    Otherwise a topic named many times would make the broker validate as many batches as fit into a frame.
    """

    async def run(world: World) -> None:
        client = await world.connect()
        data = [
            TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=BOMB)]) for _ in range(100)
        ]
        last = TopicProduceData(
            name="t", partition_data=[PartitionProduceData(index=index, records=SMALL) for index in (1, 0)]
        )
        response = await client.request(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[*data, last]), 9)
        assert [
            [(row.index, row.error_code, row.base_offset) for row in topic.partition_responses]
            for topic in response.responses
        ] == [[(0, ErrorCode.NONE, 0), (1, ErrorCode.NONE, 0)]]
        assert await end_offset(client) == 1
        assert not world.worker.waiting

    simulate(run)


async def begun(world: World, client: WireClient, acks: int = -1) -> Any:
    """A request of many quick batches, some of which are appended, and others not yet."""
    world.clock.look_costs_ms = 1
    answer = client.send(produce(*[SMALL] * PARTITIONS, acks=acks), 9, expect_answer=acks != 0)
    while not ends(world)[0]:
        await asyncio.sleep(0.001)
    world.clock.look_costs_ms = 0
    assert not ends(world)[-1]
    return answer


def ends(world: World) -> list[int]:
    assert world.broker is not None
    logs = world.broker.log_manager.logs
    return [logs[TopicPartition("t", index)].log_end_offset for index in range(PARTITIONS)]


def let_time_pass(world: World) -> None:
    """Between two slices time passes."""
    assert world.broker is not None
    assert world.broker.replicas is not None
    world.broker.replicas.turns._loop = PassingTime(world.loop)


def test_the_rest_of_a_slow_request_is_appended_in_slices() -> None:
    """Each batch may be quick, and all together slow.

    Other requests are served meanwhile; the connection keeps its order.
    """

    async def run(world: World) -> None:
        client, other = await world.connect(), await world.connect()
        let_time_pass(world)
        answer = await begun(world, client)
        behind = client.send(produce(SMALL), 9)
        assert rows(await other.request(produce(SMALL), 9)) == [(ErrorCode.NONE, 1)]
        assert not answer.done()
        assert not behind.done()
        assert rows(await answer) == [(ErrorCode.NONE, 0)] * PARTITIONS
        assert rows(await behind) == [(ErrorCode.NONE, 2)]
        assert not world.worker.waiting
        assert kept_bytes(world) == 0

    simulate(run)


def kept_bytes(world: World) -> int:
    """Of requests under way."""
    return produce_handler_of(world).parts.kept.count


def produce_handler_of(world: World) -> ProduceHandler:
    assert world.broker is not None
    assert world.broker.serving.host is not None
    route = world.broker.serving.host.routes[(ApiKey.PRODUCE, 9)]
    assert route is not None
    handler = route.handle.__self__
    assert isinstance(handler, ProduceHandler)
    return handler


@pytest.mark.parametrize("acks", [-1, 0])
def test_the_rest_is_appended_though_its_client_disconnected(acks: int) -> None:
    """The whole request was received."""

    async def run(world: World) -> None:
        client = await world.connect()
        let_time_pass(world)
        answer = await begun(world, client, acks)
        assert kept_bytes(world) > 0
        assert world.broker is not None
        assert world.broker.serving.host is not None
        world.broker.serving.host.abort_connections()
        if acks:
            with pytest.raises(ConnectionError):
                await answer
        await asyncio.sleep(1)
        assert ends(world) == [1] * PARTITIONS
        assert kept_bytes(world) == 0

    simulate(run)


def test_the_rest_for_a_topic_that_is_deleted_meanwhile_is_reported() -> None:
    async def run(world: World) -> None:
        client, other = await world.connect(), await world.connect()
        let_time_pass(world)
        answer = await begun(world, client)
        deletion = other.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=60_000), 6)
        world.clock.look_costs_ms = 1
        errors = [error for error, _ in rows(await answer)]
        assert errors[0] == ErrorCode.NONE
        assert errors[-1] in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        world.worker.close()
        await deletion
        assert kept_bytes(world) == 0

    simulate(run)


def test_the_rest_when_the_broker_is_fenced_is_refused() -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        let_time_pass(world)
        answer = await begun(world, client)
        assert world.broker is not None
        assert world.broker.replicas is not None
        world.broker.replicas.is_fenced = lambda: True
        assert rows(await answer)[-1] == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        assert ends(world)[-1] == 0

    simulate(run)


def test_the_rest_at_a_stop_is_not_appended_to_closed_logs() -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        let_time_pass(world)
        answer = await begun(world, client)
        assert world.broker is not None
        logs = list(world.broker.log_manager.logs.values())
        await world.broker.stop()
        assert rows(await answer)[0] == (ErrorCode.NONE, 0)
        assert not any(log.offline for log in logs)
        assert ".kafka_cleanshutdown" in world.filesystem.listdir("/data")

    simulate(run)


def test_slow_batches_of_the_rest_go_to_the_worker() -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        world.clock.look_costs_ms = 1
        answer = client.send(produce(*[SMALL] * 50, MANY), 9)
        await asyncio.sleep(1)
        assert not answer.done()
        assert len(world.worker.waiting) == 1
        world.worker.step()
        assert rows(await answer) == [(ErrorCode.NONE, 0)] * 51
        assert kept_bytes(world) == 0

    simulate(run)


def test_above_the_limit_of_kept_bytes_requests_are_refused() -> None:
    """Memory must not grow with the number of clients, and validation must not block the loop.

    The error code is retriable.
    """
    refused = (ErrorCode.NOT_ENOUGH_REPLICAS, -1)

    async def run(world: World) -> None:
        client = await world.connect()
        kept = produce_handler_of(world).parts.kept
        kept.count = kept.limit + 1
        assert rows(await client.request(produce(SMALL, BOMB), 9)) == [(ErrorCode.NONE, 0), refused]
        let_time_pass(world)
        world.clock.look_costs_ms = 1
        answered = rows(await client.request(produce(*[SMALL] * PARTITIONS), 9))
        assert set(answered) == {(ErrorCode.NONE, 0), (ErrorCode.NONE, 1), refused}
        assert answered[-1] == refused
        kept.count -= kept.limit + 1
        assert kept_bytes(world) == 0

    simulate(run)


def test_a_large_frame_is_not_copied_and_a_large_batch_is_checked_by_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frame of more than a megabyte is mapped for its request alone.

    A batch that is too large for its topic is refused at once.
    """
    monkeypatch.setattr(produce_attempt, "LARGE_BYTES", 300_000)
    large = build_batch([(1, None, random.Random(5).randbytes(400_000), ())])
    too_large = build_batch([(1, None, bytes(1_100_000), ())])

    async def run(world: World) -> None:
        client = await world.connect()
        answer = client.send(produce(large, too_large, SMALL), 9)
        await asyncio.sleep(1)
        (work, _on_done) = world.worker.waiting[0]
        (_request, check) = work.args  # type: ignore[attr-defined]
        assert isinstance(check.__self__.records.obj, mmap)
        assert kept_bytes(world) > 1_500_000, "a part of the frame keeps all of it"
        other = await world.connect()
        others = other.send(produce(b"", large, *[bytes(900_000)] * 2), 9)  # Another frame of the same size.
        while not others.done():
            await asyncio.sleep(1)
            world.worker.close()
        assert rows(await answer) == [(ErrorCode.NONE, 0), (ErrorCode.MESSAGE_TOO_LARGE, -1), (ErrorCode.NONE, 0)]
        assert kept_bytes(world) == 0

    simulate(run)
