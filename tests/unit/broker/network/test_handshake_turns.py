"""TLS handshakes take turns: a few in a pass of the event loop, in order, with other work in between."""

from __future__ import annotations

import asyncio

from lowtide.broker.network.admission.slow_lane import HANDSHAKES_A_PASS, HandshakeTurns

MANY = 5 * HANDSHAKES_A_PASS + 1


class Handshake:
    """One that notes its turn, and may take long."""

    def __init__(self, world: World, name: int, takes_ms: int = 0) -> None:
        self._world, self._name, self._takes_ms = world, name, takes_ms

    def take_turn(self) -> None:
        self._world.now_ms += self._takes_ms
        self._world.done.append(self._name)


class World:
    """The queue, and in which pass of the loop what was done."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.done: list[int] = []
        self.after_each_pass: list[int] = []
        self.turns = HandshakeTurns(lambda: self.now_ms)

    async def until_done(self, count: int) -> list[int]:
        """How many were done after each pass."""
        while len(self.done) < count:
            await asyncio.sleep(0)
            self.after_each_pass.append(len(self.done))
        return self.after_each_pass


async def test_a_few_in_a_pass_and_in_order() -> None:
    world = World()
    for name in range(MANY):
        world.turns.enter(Handshake(world, name))
    passes = await world.until_done(MANY)
    assert world.done == list(range(MANY))
    assert max(later - earlier for earlier, later in zip([0, *passes], passes, strict=False)) == HANDSHAKES_A_PASS


async def test_one_in_a_pass_where_they_take_long() -> None:
    world = World()
    for name in range(5):
        world.turns.enter(Handshake(world, name, takes_ms=1))
    passes = await world.until_done(5)
    assert max(later - earlier for earlier, later in zip([0, *passes], passes, strict=False)) == 1


async def test_one_that_asks_twice_has_one_turn_and_one_that_leaves_none() -> None:
    world = World()
    first, second, third = (Handshake(world, name) for name in range(3))
    for each in (first, second, first, third):
        world.turns.enter(each)
    world.turns.leave(second)
    world.turns.leave(second)
    assert len(world.turns) == 2
    await world.until_done(2)
    assert world.done == [0, 2]
    assert len(world.turns) == 0


async def test_the_rest_have_their_turns_where_one_fails() -> None:
    world = World()
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(str(context["exception"])))

    class Failing:
        def take_turn(self) -> None:
            raise ValueError("a bug")

    world.turns.enter(Failing())
    world.turns.enter(Handshake(world, 1))
    await world.until_done(1)
    assert world.done == [1]
    assert failures == ["a bug"]
