"""The collector of cycles waits while there are very many rows, and no longer than it may."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest

from lowtide.runtime.collector_pause import PAUSE_MS_MAX, ROWS_MIN, CollectorPause


class Time:
    """A clock that is set."""

    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms


class Node:
    """Part of a cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    gc.collect()
    yield
    gc.enable()


def collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def test_rows_come_and_go_without_a_collection() -> None:
    clock: Any = Time()
    pause = CollectorPause(clock)
    pause.note(ROWS_MIN)
    before = collections()
    rows: list[list[int]] = [[] for _ in range(50_000)]
    assert collections() == before
    rows.clear()
    pause.note(ROWS_MIN - 1)
    rows = [[] for _ in range(50_000)]
    assert collections() > before


def test_few_rows_change_nothing() -> None:
    clock: Any = Time()
    pause = CollectorPause(clock)
    gc.disable()  # By something else.
    pause.note(ROWS_MIN - 1)
    assert not gc.isenabled()


def test_garbage_is_collected_though_large_requests_never_end() -> None:
    clock: Any = Time()
    pause = CollectorPause(clock)
    pause.note(ROWS_MIN)
    node = Node()
    found = ref(node)
    del node
    clock.now_ms = PAUSE_MS_MAX - 1
    pause.on_tick()
    assert found() is not None
    clock.now_ms = PAUSE_MS_MAX
    pause.on_tick()
    assert found() is None
    assert not gc.isenabled()
