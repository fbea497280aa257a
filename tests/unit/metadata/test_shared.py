"""A store that several brokers of a process share.

Open while any broker has a share, and silent to brokers that left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lowtide.metadata.memory import MemoryDisk, MemoryStore
from lowtide.metadata.shared import SharedStore, StoreShare
from lowtide.metadata.store import MetadataStoreError, Put, UnavailableError
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from tests.scenarios import played_by


class World:
    """Counts how often the store was opened."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.clock = SimulatedClock(loop)
        self.disk = MemoryDisk()
        self.opened = 0
        self.fails = False
        self.loop = loop
        self.shared = SharedStore(self._open)

    async def _open(self) -> MemoryStore:
        await asyncio.sleep(0.01)
        if self.fails:
            message = "no disk"
            raise MetadataStoreError(message)
        self.opened += 1
        return MemoryStore(self.disk, clock=self.clock, random=Random(7), loop=self.loop)


def play(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    run_simulation(lambda loop: scenario(World(loop)), seed=1)


async def refuses(share: StoreShare) -> None:
    with pytest.raises(UnavailableError):
        await share.get(b"k")


@played_by(play)
async def test_concurrent_users_open_it_once_and_see_each_others_writes(world: World, /) -> None:
    one, two = await asyncio.gather(world.shared.join(), world.shared.join())
    assert world.opened == 1
    await one.transact((), (Put(b"k", b"v"),))
    found = await two.get(b"k")
    assert found is not None
    assert found.value == b"v"


@played_by(play)
async def test_it_is_closed_when_the_last_has_left_and_opened_again_for_the_next(world: World, /) -> None:
    one, two = await world.shared.join(), await world.shared.join()
    await one.close()
    await one.close()
    await refuses(one)
    assert await two.get(b"k") is None
    await two.close()
    await refuses(two)
    three = await world.shared.join()
    assert world.opened == 2
    assert await three.get(b"k") is None


@played_by(play)
async def test_a_user_that_joins_while_the_last_leaves_gets_a_store_that_is_open(world: World, /) -> None:
    one = await world.shared.join()
    _, two = await asyncio.gather(one.close(), world.shared.join())
    assert await two.get(b"k") is None
    assert world.opened == 2


@played_by(play)
async def test_a_store_that_cannot_be_opened_is_tried_again_by_the_next(world: World, /) -> None:
    world.fails = True
    with pytest.raises(MetadataStoreError, match="no disk"):
        await world.shared.join()
    world.fails = False
    share = await world.shared.join()
    assert await share.get(b"k") is None


@played_by(play)
async def test_the_lease_of_a_user_that_left_without_ending_it_expires(world: World, /) -> None:
    one, two = await world.shared.join(), await world.shared.join()
    lease = await one.lease_grant(1000)
    await one.transact((), (Put(b"k", b"v", lease),))
    await one.close()
    with pytest.raises(UnavailableError):
        await one.lease_revoke(lease)
    assert await two.get(b"k") is not None
    await asyncio.sleep(1.5)
    assert await two.get(b"k") is None
