"""Memory before logins: bounded, and who holds it gives way."""

from __future__ import annotations

import pytest

from lowtide.broker.network.admission.login_memory import LATE_MS, LoginMemory

LIMIT = 100_000


class Frame:
    def __init__(self) -> None:
        self.closed = False

    def close(self, _reason: str) -> None:
        self.closed = True


class World:
    def __init__(self) -> None:
        self.now_ms = 0
        self.memory = LoginMemory(LIMIT, lambda: self.now_ms)

    def take(self, visitor: str, size: int) -> Frame | None:
        frame = Frame()
        return frame if self.memory.take(frame, visitor, size) else None


def test_what_is_given_back_is_free_again_once():
    world = World()
    frame = world.take("a", LIMIT)
    assert frame is not None
    for _ in range(2):
        world.memory.give_back(frame, "a")
        assert world.memory.free_bytes == LIMIT


def test_the_largest_frame_gives_way_first_then_the_oldest():
    world = World()
    small, large, larger = (world.take("a", size) for size in (10_000, 40_000, 50_000))
    assert world.take("a", 12_000) is not None
    assert [frame is not None and frame.closed for frame in (small, large, larger)] == [False, True, False]


def test_a_large_frame_takes_the_place_of_small_ones_that_are_late():
    world = World()
    small = [world.take("a", 5_000) for _ in range(LIMIT // 5_000)]
    assert world.take("a", 50_000) is None
    assert not any(frame is None or frame.closed for frame in small)
    world.now_ms += LATE_MS
    assert world.take("a", 50_000) is not None
    assert [frame is not None and frame.closed for frame in small].count(True) == 10


@pytest.mark.parametrize("size", [4_500, 60_000])
def test_the_visitor_that_holds_the_most_gives_way_to_others(size: int):
    """Whatever the sizes: one that holds little of it loses nothing to one that holds much."""
    world = World()
    modest = world.take("b", 10_000)
    greedy = [world.take("a", 4_500) for _ in range(20)]
    assert modest is not None
    assert greedy[-1] is not None
    newcomer = world.take("c", size if size < 10_000 else 30_000)
    assert newcomer is not None
    assert not modest.closed
    for _ in range(50):
        world.take("a", 4_500)
    assert not modest.closed
    assert world.memory.free_bytes >= 0
