"""The history of logs: what is kept of an hour, and how much that is."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.observation.history import HOUR_MS, INTERVAL_MS, SAMPLES_MAX, LogHistory
from lowtide.protocol.types import TopicPartition

ID = b"i" * 16


class At:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def wall_ms(self) -> int:
        return 1_000_000_000 + self.now_ms


class World:
    """Partitions that the test moves, and their history."""

    def __init__(self, count: int) -> None:
        self.clock = At()
        self.logs = [SimpleNamespace(log_start_offset=0, log_end_offset=0, size_bytes=0) for _ in range(count)]
        self.partitions: dict[tuple[str, int], Any] = {
            ("t", number): SimpleNamespace(topic_id=ID, topic_partition=TopicPartition("t", number), log=log)
            for number, log in enumerate(self.logs)
        }
        self.loop = asyncio.new_event_loop()
        self.history = LogHistory(self.partitions, self.loop, self.clock)

    def after(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.history.on_tick()

    def rows(self, number: int = 0, after_ms: int = 0) -> list[tuple[int, int, int, int]]:
        found = self.history.samples(ID, number, after_ms)
        return [
            (each.at_ms - 1_000_000_000, each.log_start_offset, each.log_end_offset, each.size_bytes) for each in found
        ]


def test_a_partition_that_does_not_change_takes_two_samples() -> None:
    world = World(1)
    for _ in range(10):
        world.after(INTERVAL_MS)
    assert world.rows() == [(INTERVAL_MS, 0, 0, 0), (10 * INTERVAL_MS, 0, 0, 0)]
    world.logs[0].log_end_offset = 7
    world.after(INTERVAL_MS)
    assert world.rows()[1:] == [(10 * INTERVAL_MS, 0, 0, 0), (11 * INTERVAL_MS, 0, 7, 0)]
    assert world.rows(after_ms=1_000_000_000 + 10 * INTERVAL_MS) == [(11 * INTERVAL_MS, 0, 7, 0)]
    world.loop.close()


def test_nothing_is_sampled_before_its_time() -> None:
    world = World(1)
    world.after(1000)
    for _ in range(9):
        world.after(1000)
    assert len(world.history) == 1
    world.loop.close()


def test_an_hour_is_kept() -> None:
    world = World(1)
    for number in range(500):
        world.logs[0].log_end_offset = number
        world.after(INTERVAL_MS)
    rows = world.rows()
    assert rows[-1][0] == 500 * INTERVAL_MS
    assert len(rows) == HOUR_MS // INTERVAL_MS + 1
    world.loop.close()


def test_a_partition_that_leaves_and_a_topic_of_the_same_name_begin_again() -> None:
    world = World(2)
    world.after(INTERVAL_MS)
    gone = world.partitions.pop(("t", 1))
    world.after(INTERVAL_MS)
    assert world.rows(1) == []
    gone.topic_id = b"j" * 16
    world.partitions["t", 1] = gone
    world.after(INTERVAL_MS)
    assert (world.rows(1), len(world.history.samples(b"j" * 16, 1, 0))) == ([], 1)
    world.loop.close()


@pytest.mark.slow
def test_ten_thousand_partitions_that_change_take_no_more_than_the_bound() -> None:
    world = World(100)
    seeded = random.Random(1)
    for _ in range(361):
        for log in world.logs:
            log.log_end_offset += seeded.randrange(1, 9)
        world.after(INTERVAL_MS)
    assert len(world.rows()) == 361
    more = World(10_000)
    world.partitions.update({("m", number): each for (_, number), each in more.partitions.items()})
    for number, each in enumerate(more.partitions.values()):
        each.topic_partition = TopicPartition("m", 1000 + number)
    assert world.history.interval_ms == 130_000
    for _ in range(40):
        for log in (*world.logs, *more.logs):
            log.log_end_offset += 1
        world.clock.now_ms += 130_000
        world.history.on_tick()
        while world.history._is_busy:
            world.loop.run_until_complete(asyncio.sleep(0))
    assert len(world.history) <= SAMPLES_MAX * 1.1
    assert len(world.rows()) <= HOUR_MS // 130_000 + 2
    world.loop.close()
    more.loop.close()
