"""Waiting requests on the loop: a request that fails does not affect the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pytest

from lowtide.broker.pending import DelayedQueue
from lowtide.protocol.types import TopicPartition
from lowtide.replication.purgatory import DelayedOperation
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock

KEY = TopicPartition("t", 0)


class Waiting(DelayedOperation):
    """Records its outcome; `raises` names the step that fails."""

    def __init__(self, name: str, outcomes: list[str], deadline_ms: int, raises: str = "") -> None:
        super().__init__(deadline_ms)
        self.name = name
        self.outcomes = outcomes
        self.raises = raises

    def _step(self, step: str) -> None:
        if self.raises == step:
            raise RuntimeError(self.name)

    def try_complete(self) -> bool:
        self._step("test")
        if self.raises == "again":
            self.raises = "thresholds"
            return False
        self.outcomes.append(f"{self.name} answered")
        return True

    def on_expiration(self) -> None:
        self._step("late")
        self.outcomes.append(f"{self.name} answered late")

    def fail(self) -> None:
        self.outcomes.append(f"{self.name} closed")

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        self._step("thresholds")
        return [(KEY, 1)]


def outcomes_of(
    raises: str, act: Callable[[DelayedQueue], None], wait_s: float = 0.1
) -> tuple[list[str], list[str], int]:
    """Three requests wait, the one in the middle raises: the outcome of each, the reports, and how many are left."""
    outcomes: list[str] = []
    bugs: list[str] = []

    async def main(loop: SimulatedLoop) -> int:
        queue = DelayedQueue(
            SimulatedClock(loop),
            loop,
            maximum_per_key=10,
            on_bug=lambda request, error: bugs.append(f"{type(request).__name__} {error}"),
        )
        for name, fault in (("first", ""), ("second", raises), ("third", "")):
            assert queue.watch(Waiting(name, outcomes, 1000, fault))
        act(queue)
        await asyncio.sleep(wait_s)
        return len(queue)

    return outcomes, bugs, run_simulation(main, 1)


@pytest.mark.parametrize("raises", ["test", "again"])
def test_a_request_that_raises_does_not_affect_the_others(raises: str) -> None:
    outcomes, bugs, left = outcomes_of(raises, lambda queue: queue.advance(KEY, 1))
    assert outcomes == ["first answered", "second closed", "third answered"]
    assert bugs == ["Waiting second"]
    assert left == 0


def test_it_does_not_affect_the_others_at_the_deadline() -> None:
    outcomes, bugs, left = outcomes_of("late", lambda _queue: None, wait_s=2)
    assert outcomes == ["first answered late", "second closed", "third answered late"]
    assert bugs == ["Waiting second"]
    assert left == 0


def test_it_does_not_affect_the_others_when_the_broker_stops() -> None:
    outcomes, bugs, left = outcomes_of("late", lambda queue: queue.close())
    assert outcomes == ["first answered late", "second closed", "third answered late"]
    assert bugs == ["Waiting second"]
    assert left == 0


def test_the_timer_is_set_again_after_a_failure() -> None:
    """A request with a later deadline is answered at that time, though an earlier one raised in between."""
    outcomes: list[str] = []

    async def main(loop: SimulatedLoop) -> None:
        queue = DelayedQueue(SimulatedClock(loop), loop, maximum_per_key=10, on_bug=lambda _request, _error: None)
        queue.watch(Waiting("early", outcomes, 100, "late"))
        queue.watch(Waiting("later", outcomes, 500))
        await asyncio.sleep(1)

    run_simulation(main, 1)
    assert outcomes == ["early closed", "later answered late"]


def test_a_closed_queue_parks_nothing() -> None:
    """An answer at a stop lets the next request of its connection execute, and nothing would complete that one."""
    outcomes: list[str] = []

    async def main(loop: SimulatedLoop) -> int:
        queue = DelayedQueue(SimulatedClock(loop), loop, maximum_per_key=10, on_bug=lambda _request, _error: None)
        assert queue.watch(Waiting("first", outcomes, 1000))
        queue.close()
        assert not queue.watch(Waiting("second", outcomes, 1000))
        return len(queue)

    assert run_simulation(main, 1) == 0
    assert outcomes == ["first answered late"]
