"""When memory is returned to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.lifecycle.due_work import FREED_BYTES_MIN, LOOK_INTERVAL_MS, MemoryUpkeep
from lowtide.runtime.heap import system_heap


class World:
    """A heap, a clock, and a worker that works when the test calls for it."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.free = 0
        self.trims = 0
        self.submitted: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        heap: Any = SimpleNamespace(free_bytes=lambda: self.free, trim=self._trim)
        worker: Any = SimpleNamespace(submit=lambda work, on_done: self.submitted.append((work, on_done)))
        clock: Any = SimpleNamespace(monotonic_ms=lambda: self.now_ms)
        self.upkeep = MemoryUpkeep(heap, worker, clock)

    def _trim(self) -> None:
        self.trims += 1

    def tick(self) -> None:
        self.now_ms += LOOK_INTERVAL_MS
        self.upkeep.on_tick()
        while self.submitted:
            work, on_done = self.submitted.pop(0)
            on_done(work())


def test_what_was_freed_is_returned_once():
    world = World()
    world.tick()
    world.free = FREED_BYTES_MIN - 1
    world.tick()
    assert world.trims == 0
    world.free = FREED_BYTES_MIN
    for _ in range(5):
        world.tick()
    assert world.trims == 1, "the C library still counts it as free"


def test_what_is_freed_again_is_returned_again():
    world = World()
    for free in (10 * FREED_BYTES_MIN, FREED_BYTES_MIN, 10 * FREED_BYTES_MIN):
        world.free = free
        world.tick()
    assert world.trims == 2


def test_no_trim_is_repeated_within_the_interval_or_while_one_runs():
    world = World()
    world.free = FREED_BYTES_MIN
    world.now_ms = LOOK_INTERVAL_MS
    for _ in range(3):
        world.upkeep.on_tick()
    world.now_ms += LOOK_INTERVAL_MS
    world.upkeep.on_tick()
    assert len(world.submitted) == 1


def test_without_a_heap_nothing_is_done():
    world = World()
    world.upkeep._heap = None
    world.tick()
    assert world.submitted == []


@pytest.mark.skipif(system_heap() is None, reason="no glibc")
def test_the_systems_heap_is_read_and_trimmed():
    heap = system_heap()
    assert heap is not None
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    library.free.argtypes = (ctypes.c_void_p,)
    places = [library.malloc(4_000) for _ in range(20_000)]
    pin = library.malloc(4_000)
    before = heap.free_bytes()
    for place in places:
        library.free(place)
    assert heap.free_bytes() - before >= 20_000 * 4_000
    heap.trim()
    library.free(pin)
