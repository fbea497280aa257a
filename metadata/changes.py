"""A change of the metadata, decided but not yet made: what a decision hands to the session.

A plan is a list of steps, each one transaction. Steps are carried out in order and a plan stops at the first that
conflicts, so a plan is ordered such that every prefix of it leaves something harmless (a topic's record comes last when
it is created, first when it is deleted).

Keys here are without the prefix; the session adds it, and the fences.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lowtide.metadata.store import MAX_TRANSACTION_OPERATIONS, Compare, Delete, Put

FENCES: Final = 3
"""Comparisons that the session adds to each step: the broker's registration, that nothing is suspended, and the controller's key."""

STEP_PARTITIONS: Final = 100
"""Partitions written in one step, so that its comparisons with fences and its record stay below the store's limit.
Source: measurement on etcd, where a transaction of a hundred puts costs twice one of a single put."""

assert STEP_PARTITIONS + FENCES < MAX_TRANSACTION_OPERATIONS


class Step(msgspec.Struct, frozen=True):
    """One transaction: `operations` if all of `compares` hold.

    Made again after an answer was lost, it must conflict or do no harm: it compares every key that may have another
    writer.
    """

    operations: tuple[Put | Delete, ...]
    compares: tuple[Compare, ...] = ()


class ChangePlan(msgspec.Struct, frozen=True):
    """Steps in order. `needs_controller`: each must find this broker still controller."""

    steps: tuple[Step, ...]
    needs_controller: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.steps


NO_CHANGE: Final = ChangePlan(())

NOTHING_TO_WRITE: Final = ChangePlan((), needs_controller=False)
"""What is asked for is there already: any broker may say so."""
