"""ISR changes on their way to the store: together, alone after a conflict, and without a response."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.partitions.alter_partition_manager import IsrChanges, _Change
from lowtide.metadata import keys
from lowtide.metadata.errors import ConflictError
from lowtide.metadata.store import ABSENT, AmbiguousError, Compare, UnavailableError
from lowtide.replication import in_sync_replicas
from lowtide.replication.alter_partition import BATCH_PARTITIONS, plan_alter_partition, take_batch
from lowtide.replication.eligible_leaders import IsrProposal
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from tests.unit.replication.leaders import TOPIC_ID, FakeLog, image_of, leads, partition_of


class Session:
    """Each commit has the outcome that the test gives: an exception, or None."""

    broker_id = 1
    broker_epoch = 1

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.plans: list[Any] = []
        self.image = image_of(10, {1: 1, 2: 2, 3: 3})

    async def commit(self, plan: Any) -> int:
        self.plans.append(plan)
        await asyncio.sleep(0.001)
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome
        return 11


class World:
    def __init__(self, loop: SimulatedLoop, session: Session, count: int) -> None:
        self.loop = loop
        self.session = session
        self.withdrawn: list[Any] = []
        log: Any = SimpleNamespace(info=lambda *_a, **_k: None, warning=lambda *_a, **_k: None)
        self.changes = IsrChanges(session, self.spawn, log)
        self.tasks: list[asyncio.Task[Any]] = []
        self.partitions: list[Any] = []
        for number in range(count):
            leadership = leads(FakeLog(), partition_of((1, 2, 3), (1, 2, 3)), session.image)
            leadership.number = number
            self.partitions.append(SimpleNamespace(leadership=leadership, topic_partition=("t", number)))

    def spawn(self, coro: Any, *, name: str) -> object:
        self.tasks.append(self.loop.create_task(coro, name=name))
        return self.tasks[-1]

    def propose(self) -> None:
        for partition in self.partitions:
            state = partition.leadership.state
            proposal = IsrProposal(state, 10, (1, 2), (1, 2))
            in_sync_replicas.propose(partition.leadership, proposal)
            self.changes.submit(partition, partition.leadership, proposal, self.withdrawn.append)

    async def run(self) -> None:
        self.propose()
        for task in list(self.tasks):
            await task


def sizes(session: Session) -> list[int]:
    return [len(plan.steps[0].operations) for plan in session.plans]


def simulate(count: int, *outcomes: Exception | None) -> World:
    async def main(loop: SimulatedLoop) -> World:
        world = World(loop, Session(*outcomes), count)
        await world.run()
        return world

    return run_simulation(main, 1)


def test_changes_proposed_together_are_written_together_and_count_until_the_image_shows_it() -> None:
    world = simulate(BATCH_PARTITIONS + 5)
    assert sizes(world.session) == [BATCH_PARTITIONS, 5]
    assert not world.session.plans[0].needs_controller
    assert all(partition.leadership.proposal is not None for partition in world.partitions)
    leadership = world.partitions[0].leadership
    assert leadership.maximal_isr == {1, 2, 3}
    leadership.follow(partition_of((1, 2), (1, 2), revision=11))
    assert (leadership.proposal, leadership.maximal_isr) == (None, {1, 2})


def test_a_batch_looks_only_at_the_changes_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Counter[object]()
    is_current = _Change.is_current.fget  # type: ignore[attr-defined]

    def spied(change: _Change) -> bool:
        looks[change] += 1
        return bool(is_current(change))

    monkeypatch.setattr(_Change, "is_current", property(spied))
    world = simulate(20 * BATCH_PARTITIONS)
    assert sizes(world.session) == [BATCH_PARTITIONS] * 20
    assert set(looks.values()) == {1}


def test_after_a_conflict_each_is_written_alone_and_the_refused_one_waits_for_a_newer_image() -> None:
    world = simulate(3, ConflictError(), None, ConflictError(), None)
    assert sizes(world.session) == [3, 1, 1, 1]
    assert [partition.leadership.proposal is None for partition in world.partitions] == [False, True, False]
    assert world.withdrawn == [world.partitions[1]]
    leadership = world.partitions[1].leadership
    slow_ms = 10_000
    assert in_sync_replicas.next_proposal(leadership, world.session.image, slow_ms) is None, (
        "never twice on the same image"
    )
    assert in_sync_replicas.next_proposal(leadership, image_of(11, {1: 1, 2: 2, 3: 3}), slow_ms) is not None


def test_a_change_without_an_answer_is_sent_again_unchanged_and_counts_meanwhile() -> None:
    world = simulate(1, AmbiguousError(), AmbiguousError(), None)
    assert len({plan.steps[0] for plan in map(_frozen, world.session.plans)}) == 1
    assert sizes(world.session) == [1, 1, 1]
    assert world.withdrawn == []


def _frozen(plan: Any) -> Any:
    return SimpleNamespace(steps=[repr(step) for step in plan.steps])


def test_an_unavailable_store_leaves_the_isr_unchanged() -> None:
    world = simulate(1, UnavailableError())
    leadership = world.partitions[0].leadership
    assert (leadership.proposal, leadership.maximal_isr) == (None, {1, 2, 3})
    assert world.withdrawn == world.partitions


def test_what_is_relied_on_is_compared() -> None:
    leadership = leads(FakeLog(), partition_of((1, 2), (1, 2), adding=(3,)), image_of(10, {1: 1, 2: 2, 3: 30}))
    step = plan_alter_partition([(leadership, IsrProposal(leadership.state, 10, (1, 2, 3), (1, 2, 30)))])
    assert set(step.compares) == {
        Compare(keys.partition(TOPIC_ID, 0), "modify", "==", 10),
        Compare(keys.broker(2), "create", "==", 2),
        Compare(keys.shutdown(2), "create", "==", ABSENT),
        Compare(keys.broker(3), "create", "==", 30),
        Compare(keys.shutdown(3), "create", "==", ABSENT),
    }
    [put] = step.operations
    assert b'"isr":[1,2,3]' in put.value
    assert b'"isr_epochs":[1,2,30]' in put.value
    assert b'"partition_epoch":2' in put.value


def test_two_registrations_of_a_broker_are_not_relied_on_together() -> None:
    first, second = (leads(FakeLog(), partition_of((1, 2), (1, 2)), image_of(10, {1: 1, 2: 2})) for _ in range(2))
    changes = [
        (first, IsrProposal(first.state, 10, (1, 2), (1, 2))),
        (second, IsrProposal(second.state, 10, (1, 2), (1, 20))),
    ]
    assert take_batch(changes) == 1
    assert take_batch(changes[:1]) == 1
    assert take_batch([]) == 0
