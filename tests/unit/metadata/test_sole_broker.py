"""One broker at a time: a second is kept out inside the store, and a dead predecessor of the same directories isn't waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lowtide.metadata.errors import DuplicateBrokerError, SoleBrokerError
from lowtide.metadata.memory import MemoryClient, MemoryDisk, MemoryStore
from lowtide.metadata.records import Listener
from lowtide.metadata.session import BrokerRegistration, MetadataSession, SessionSettings
from lowtide.runtime.clock import SimulatedClock
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.tasks import TaskRegistry

TIME_TO_LIVE_MS = 3000
REGISTRATION = BrokerRegistration((Listener("PLAINTEXT", "127.0.0.1", 9092),))


class World:
    """A store that several brokers share."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.clock = SimulatedClock(loop)
        self.store = MemoryStore(MemoryDisk(), clock=self.clock, random=Random(7), loop=loop)
        self.tasks = TaskRegistry(lambda _name, _error: None)

    def session(self, broker_id: int, *, sole: bool = True) -> MetadataSession:
        settings = SessionSettings(time_to_live_ms=TIME_TO_LIVE_MS, keep_alive_ms=500, registration_timeout_ms=1000, sole_broker=sole)
        client = MemoryClient(self.store, latency_ms=0.1)
        return MetadataSession(
            store=client, clock=self.clock, tasks=self.tasks, random=Random(broker_id), broker_id=broker_id, settings=settings
        )


def play(scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    async def run(loop: SimulatedLoop) -> None:
        world = World(loop)
        await scenario(world)
        await world.tasks.cancel_all()

    run_simulation(run, seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_of_two_that_start_together_one_is_refused(seed: int) -> None:
    """The store decides: there is no moment at which both are registered, and so none at which one could be given replicas."""

    async def scenario(world: World) -> None:
        sessions = [world.session(1), world.session(2)]
        outcomes = await asyncio.gather(*(session.start(REGISTRATION) for session in sessions), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, SoleBrokerError)]
        assert len(refused) == 1
        assert outcomes.count(None) == 1
        winner = sessions[outcomes.index(None)]
        assert [*winner.image.brokers] == [winner.broker_id]
        assert f"broker {winner.broker_id} is registered" in str(refused[0])
        for session in sessions:
            await session.close()

    play(scenario, seed)


def test_the_place_is_free_when_the_broker_has_left() -> None:
    """Under another id too."""

    async def scenario(world: World) -> None:
        first, second = world.session(1), world.session(2)
        await first.start(REGISTRATION)
        await first.close()
        await second.start(REGISTRATION)
        assert [*second.image.brokers] == [2]
        await second.close()

    play(scenario)


def test_brokers_that_may_share_do() -> None:
    """What keeps others out is asked for."""

    async def scenario(world: World) -> None:
        first, second = world.session(1, sole=False), world.session(2, sole=False)
        await first.start(REGISTRATION)
        await second.start(REGISTRATION)
        assert [*second.image.brokers] == [1, 2]
        await first.close()
        await second.close()

    play(scenario)


def test_a_dead_predecessor_is_not_waited_for() -> None:
    """A broker that was killed and starts again over its directories, which have its epoch, ends its own earlier registration."""

    async def scenario(world: World) -> None:
        killed, again = world.session(1), world.session(1)
        await killed.start(REGISTRATION)
        epoch = killed.broker_epoch
        await world.tasks.cancel_all()
        begun_ms = world.clock.monotonic_ms()
        await again.start(REGISTRATION, [epoch])
        assert world.clock.monotonic_ms() - begun_ms < TIME_TO_LIVE_MS / 10
        assert again.broker_epoch > epoch
        assert again.is_controller
        await again.close()

    play(scenario)


def test_somebody_else_of_the_same_id_is_left_alone() -> None:
    """Other directories, or a registration since: it may be alive."""

    async def scenario(world: World) -> None:
        alive, other = world.session(1), world.session(1)
        await alive.start(REGISTRATION)
        with pytest.raises(DuplicateBrokerError):
            await other.start(REGISTRATION, [alive.broker_epoch - 1])
        await other.close()
        assert not alive.is_fenced
        await alive.close()

    play(scenario)
