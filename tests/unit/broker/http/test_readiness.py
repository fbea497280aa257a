"""Replicas that keep a rolling restart from the next broker are found, in steps."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from lowtide.broker.http.readiness import NAMED_MAX, Readiness

LOOKED_AT_IN_A_STEP_MAX = 500


class State:
    """A partition; `looks` counts how often any is looked at."""

    looks = 0

    def __init__(self, leader: int, replicas: Sequence[int], isr: Sequence[int], adding: Sequence[int] = ()) -> None:
        self.leader, self.replicas, self.adding = leader, replicas, adding
        self._isr = isr

    @property
    def isr(self) -> Sequence[int]:
        State.looks += 1
        return self._isr


def reasons(*partitions: State, broker: int = 1, largest: list[int] | None = None) -> list[str]:
    image = SimpleNamespace(topics={"t": SimpleNamespace(name="t", partitions=partitions)})
    session: Any = SimpleNamespace(image=image, broker_id=broker)
    readiness = Readiness(session, SimpleNamespace(), SimpleNamespace(), wants_in_sync=True)
    found: list[str] = []
    before = State.looks
    for _ in readiness.out_of_sync(found):
        if largest is not None:
            largest.append(State.looks - before)
        before = State.looks
    return found


def test_replicas_of_partitions_that_it_leads_or_follows_count() -> None:
    assert reasons(State(1, [1, 2], [1, 2])) == []
    assert reasons(State(1, [1, 2], [1])) == ["replicas of 1 partitions are not in sync: t-0"]
    assert reasons(State(2, [1, 2], [2])) == ["replicas of 1 partitions are not in sync: t-0"]
    assert reasons(State(2, [1, 2, 3], [1, 2])) == []


def test_replicas_that_are_being_added_do_not_count() -> None:
    assert reasons(State(1, [1, 2], [1], adding=[2])) == []


def test_a_few_are_named() -> None:
    (reason,) = reasons(*[State(1, [1, 2], [1])] * (NAMED_MAX + 1))
    assert reason.startswith(f"replicas of {NAMED_MAX + 1} partitions")
    assert reason.endswith(f"t-{NAMED_MAX - 1}, …")


def test_a_topic_of_very_many_partitions_is_looked_at_in_steps() -> None:
    steps: list[int] = []
    assert len(reasons(*[State(1, [1, 2], [1])] * 5_000, largest=steps)) == 1
    assert max(steps) <= 2 * LOOKED_AT_IN_A_STEP_MAX  # It looks at the replicas of one that lacks some again.
    assert len(steps) >= 10
