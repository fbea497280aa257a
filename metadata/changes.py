"""A plan: changes of the metadata that are decided but not yet written.

A plan is a list of steps, each one transaction. They run in order and stop at the first that conflicts, so every prefix
of a plan leaves a harmless state: a topic's record comes last when it is created, and first when it is deleted.

Keys here are without the prefix; the session adds it, and the fences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from lowtide.metadata.store import MAX_TRANSACTION_OPERATIONS, Compare, Delete, Put

FENCES: Final = 3
"""Comparisons that the session adds to each step: the broker's registration, no suspension, the controller's key."""

STEP_PARTITIONS: Final = 100
"""Partitions written in one step, so that its comparisons, fences and record stay below the store's limit.

On etcd a transaction of a hundred puts costs twice as much as one of a single put.
"""

assert STEP_PARTITIONS + FENCES < MAX_TRANSACTION_OPERATIONS

T = TypeVar("T")


def step_sized(items: Sequence[T]) -> list[tuple[T, ...]]:
    """Splits items into groups of at most `STEP_PARTITIONS`, one for each step."""
    return [tuple(items[start : start + STEP_PARTITIONS]) for start in range(0, len(items), STEP_PARTITIONS)]


class Step(msgspec.Struct, frozen=True):
    """One transaction: `operations` if all of `compares` hold.

    Repeated after a lost answer it must conflict or be harmless: it compares every key that may have another writer.
    """

    operations: tuple[Put | Delete, ...]
    compares: tuple[Compare, ...] = ()


class ChangePlan(msgspec.Struct, frozen=True):
    """Steps in order. With `needs_controller` each must find this broker still the controller."""

    steps: tuple[Step, ...]
    needs_controller: bool = True

    @property
    def is_empty(self) -> bool:
        return not self.steps

    @property
    def plan(self) -> ChangePlan:
        """Returns this plan. Callers take the `plan` of any decision."""
        return self


NO_CHANGE: Final = ChangePlan(())

NOTHING_TO_WRITE: Final = ChangePlan((), needs_controller=False)
"""The requested state exists already: any broker may report that."""
