"""Producer ids: each is given once, and the next block is fetched once for all who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

from lowtide.broker.coordinator.transactions.transaction_coordinator import ProducerIds
from lowtide.metadata.store import MetadataStoreError


class World:
    """A store that gives blocks of three ids; a block that is an error is raised."""

    def __init__(self, *blocks: range | Exception) -> None:
        self.blocks = list(blocks)
        self.tasks: list[Coroutine[Any, Any, None]] = []
        self.warnings: list[str] = []
        broker: Any = SimpleNamespace(
            metadata=self,
            tasks=SimpleNamespace(spawn=lambda task, name: self.tasks.append(task)),
            log=SimpleNamespace(warning=lambda text, **_values: self.warnings.append(text)),
        )
        self.ids = ProducerIds(broker)

    async def allocate_producer_ids(self) -> range:
        block = self.blocks.pop(0)
        if isinstance(block, Exception):
            raise block
        return block

    def run(self) -> None:
        asyncio.run(self.tasks.pop(0))


def test_each_id_is_given_once() -> None:
    world = World(range(3), range(3000, 3003))

    async def several() -> list[int]:
        return [await world.ids.take() for _ in range(6)]

    assert asyncio.run(several()) == [0, 1, 2, 3000, 3001, 3002]


def test_without_one_at_hand_a_block_is_fetched_once() -> None:
    world = World(range(4, 6), range(3000, 3001))
    assert [world.ids.take_now() for _ in range(3)] == [None] * 3
    assert len(world.tasks) == 1
    world.run()
    assert [world.ids.take_now() for _ in range(3)] == [4, 5, None]
    assert len(world.tasks) == 1, "the next block"
    world.run()
    assert world.ids.take_now() == 3000


def test_a_fetch_that_fails_is_followed_by_another_one() -> None:
    world = World(MetadataStoreError("away"), range(4, 6))
    assert world.ids.take_now() is None
    world.run()
    assert world.warnings == ["producer id allocation failed"]
    assert world.ids.take_now() is None
    world.run()
    assert world.ids.take_now() == 4


def test_who_has_reserved_one_finds_it_at_hand() -> None:
    world = World(range(0), range(4, 6))
    asyncio.run(world.ids.reserve())
    asyncio.run(world.ids.reserve())
    assert (world.ids.take_now(), world.tasks, world.blocks) == (4, [], [])
