"""Questions to brokers about the removal of their replicas: to whom, how often, and what wakes the deletes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.network.peer_client import PeerError
from lowtide.broker.partitions.removal_confirmations import PURPOSE, RETRY_MS, WAIT_MS, RemovalConfirmations
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.await_metadata import AwaitMetadataResponse
from lowtide.protocol.types import TopicPartition
from lowtide.replication.former_replicas import FormerReplicas
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from tests.unit.replication.leaders import TOPIC_ID, image_of, partition_of

LAG_MS = 10_000
OK, TIMED_OUT = (
    AwaitMetadataResponse(error_code=ErrorCode.NONE),
    AwaitMetadataResponse(error_code=ErrorCode.REQUEST_TIMED_OUT),
)


class Led:
    """A partition that is led here, with brokers whose replicas were removed."""

    def __init__(self, number: int, clock: SimulatedClock) -> None:
        self.topic_partition = TopicPartition("t", number)
        self.former_replicas: FormerReplicas | None = FormerReplicas(TOPIC_ID, number, LAG_MS)
        self.is_leader = True
        self._clock = clock

    def remove(self, *broker_ids: int, image: MetadataImage, revision: int) -> None:
        assert self.former_replicas is not None
        state = partition_of((1,), (1,), replicas=(1,), revision=revision)
        self.former_replicas.note_removed(list(broker_ids), state, image, self._clock.monotonic_ms())

    def low_watermark(self, image: MetadataImage, now_ms: int) -> int:
        return -1 if self.former_replicas and self.former_replicas.awaited(image, now_ms) else 7


class World:
    """The parts around it: the brokers that are asked, and what was woken when."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.session = SimpleNamespace(image=image_of(20, {1: 1, 2: 2, 3: 3}), broker_id=1)
        self.asked: list[tuple[int, int, int]] = []
        """Broker, revision, and how long it may keep the question."""
        self.answers: list[Any] = []
        self.answer_s = 0.001
        self.woken: list[tuple[int, int, int]] = []
        """When in ms, which partition, up to where."""
        self.tasks: list[asyncio.Task[None]] = []
        waiting = SimpleNamespace(deletes=SimpleNamespace(advance=self._advance))
        self.confirmations = RemovalConfirmations(
            self.session,
            SimpleNamespace(client_of=self._client_of),
            waiting,
            self.clock,
            self._spawn,
            lag_time_max_ms=LAG_MS,
        )

    def _spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        self.tasks.append(self.loop.create_task(work, name=name))

    def _advance(self, key: TopicPartition, low_watermark: int) -> None:
        self.woken.append((round(self.loop.time() * 1000), key.partition, low_watermark))

    def _client_of(self, broker: Any, purpose: str) -> Any:
        assert purpose == PURPOSE

        async def request(api_key: int, version: int, message: Any, timeout_ms: int) -> AwaitMetadataResponse:
            assert (api_key, version) == (ApiKey.AWAIT_METADATA, 0)
            assert message.timeout_ms <= timeout_ms
            self.asked.append((broker.broker_id, message.revision, message.timeout_ms))
            await asyncio.sleep(min(self.answer_s, timeout_ms / 1000))
            answer = self.answers.pop(0) if self.answers else OK
            if isinstance(answer, Exception):
                raise answer
            assert isinstance(answer, AwaitMetadataResponse)
            return answer

        return SimpleNamespace(request=request)

    def led(self, number: int, *removed: int, revision: int) -> Led:
        partition = Led(number, self.clock)
        partition.remove(*removed, image=self.session.image, revision=revision)
        self.follow(partition)
        return partition

    def follow(self, partition: Led) -> None:
        self.confirmations.follow(partition)

    @property
    def is_idle(self) -> bool:
        return all(task.done() for task in self.tasks)


def simulate(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: SimulatedLoop) -> None:
        await test(World(loop))

    run_simulation(main, 1)


def test_a_broker_is_asked_once_about_all_that_is_removed_together() -> None:
    async def run(world: World) -> None:
        for number, revision in enumerate((11, 13, 12)):
            world.led(number, 2, revision=revision)
        await asyncio.sleep(0.01)
        assert world.asked == [(2, 13, WAIT_MS // 2)]
        assert world.woken == [(1, 0, 7), (1, 1, 7), (1, 2, 7)]
        assert world.is_idle

    simulate(run)


def test_each_broker_is_asked_by_itself() -> None:
    async def run(world: World) -> None:
        world.led(0, 2, 3, revision=11)
        await asyncio.sleep(0.01)
        assert sorted(world.asked) == [(2, 11, WAIT_MS // 2), (3, 11, WAIT_MS // 2)]
        assert world.woken[-1] == (1, 0, 7)
        assert world.is_idle

    simulate(run)


def test_what_is_removed_meanwhile_is_asked_about_next() -> None:
    async def run(world: World) -> None:
        first = world.led(0, 2, revision=11)
        await asyncio.sleep(0.0005)
        second = world.led(1, 2, revision=15)
        await asyncio.sleep(0.01)
        assert [asked[:2] for asked in world.asked] == [(2, 11), (2, 15)]
        assert world.woken == [(1, 0, 7), (2, 1, 7)]
        assert len(world.tasks) == 1
        for partition in (first, second):
            assert partition.former_replicas is not None
            assert len(partition.former_replicas) == 0

    simulate(run)


@pytest.mark.parametrize("failure", [TIMED_OUT, PeerError("it can't be reached", was_sent=False)])
def test_who_does_not_confirm_is_asked_again(failure: Any) -> None:
    async def run(world: World) -> None:
        world.answers = [failure, failure]
        world.led(0, 2, revision=11)
        await asyncio.sleep(1)
        assert len(world.asked) == 3
        assert world.woken == [(2 * RETRY_MS + 3, 0, 7)]

    simulate(run)


def test_the_wait_ends_with_the_lag_time() -> None:
    async def run(world: World) -> None:
        world.answer_s = 3600
        world.answers = [PeerError("no answer", was_sent=True)] * 20
        partition = world.led(0, 2, revision=11)
        await asyncio.sleep(LAG_MS / 1000 + 1)
        ((woken_ms, number, low_watermark),) = world.woken
        assert (number, low_watermark) == (0, 7)
        assert LAG_MS < woken_ms <= LAG_MS + 10
        assert world.is_idle
        assert partition.former_replicas is not None
        assert len(partition.former_replicas) == 1, "the next leadership here asks again"

    simulate(run)


def test_the_end_of_a_registration_ends_it_at_once() -> None:
    async def run(world: World) -> None:
        world.answer_s = 3600
        world.led(0, 2, revision=11)
        await asyncio.sleep(0.01)
        world.confirmations.on_broker_changed(3)
        world.confirmations.on_broker_changed(2)
        assert world.woken == [], "it is registered as before"
        world.session.image = image_of(21, {1: 1, 3: 3})
        world.confirmations.on_broker_changed(2)
        assert world.woken == [(10, 0, 7)]
        await asyncio.sleep(WAIT_MS / 1000 + 1)
        assert world.is_idle
        assert len(world.asked) == 1

    simulate(run)


def test_who_leads_no_more_asks_no_more_and_knows_of_it_still() -> None:
    async def run(world: World) -> None:
        world.answers = [TIMED_OUT]
        partition = world.led(0, 2, revision=11)
        await asyncio.sleep(0.01)
        partition.is_leader = False
        world.follow(partition)
        await asyncio.sleep(1)
        assert (len(world.asked), world.woken) == (1, [])
        assert partition.former_replicas is not None
        assert len(partition.former_replicas) == 1, "the next leadership here begins with it"
        partition.is_leader = True
        world.follow(partition)
        await asyncio.sleep(0.01)
        assert len(world.asked) == 2
        assert len(partition.former_replicas) == 0

    simulate(run)


def test_no_broker_is_asked_where_no_replica_was_removed() -> None:
    async def run(world: World) -> None:
        partition = Led(0, world.clock)
        world.follow(partition)
        partition.former_replicas = None
        world.follow(partition)
        assert world.tasks == []

    simulate(run)
