"""Deleting many topics at once: as many in a transaction as it holds.

Pure, as the controller. One topic after the other would cost a synced transaction each, and each time all brokers a change of the image.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lowtide.metadata.changes import ChangePlan, Step
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.store import MAX_TRANSACTION_OPERATIONS
from lowtide.replication.controller import MAX_STEP_COMPARES, Refusal, TopicDeletion, plan_deletion


class DeletionGroup(msgspec.Struct, frozen=True):
    """Topics that go together, by the numbers that the caller gave them: all of them or, if any has changed meanwhile, none."""

    members: tuple[int, ...]
    plan: ChangePlan


def plan_deletions(image: MetadataImage, wanted: Mapping[int, TopicDeletion]) -> tuple[list[DeletionGroup], dict[int, Refusal]]:
    """How to delete topics, and which ones can't be. A topic that takes more than one transaction is a group of its own."""
    groups: list[DeletionGroup] = []
    refusals: dict[int, Refusal] = {}
    members: list[int] = []
    together: list[Step] = []

    def close() -> None:
        if members:
            operations = tuple(operation for step in together for operation in step.operations)
            compares = tuple(compare for step in together for compare in step.compares)
            groups.append(DeletionGroup(tuple(members), ChangePlan((Step(operations, compares),))))
            members.clear()
            together.clear()

    for number, deletion in wanted.items():
        plan = plan_deletion(image, deletion)
        if isinstance(plan, Refusal):
            refusals[number] = plan
        elif len(plan.steps) > 1:
            groups.append(DeletionGroup((number,), plan))
        else:
            (step,) = plan.steps
            if not _fits(together, step):
                close()
            members.append(number)
            together.append(step)
    close()
    return groups, refusals


def _fits(steps: list[Step], another: Step) -> bool:
    operations = sum(len(step.operations) for step in (*steps, another))
    compares = sum(len(step.compares) for step in (*steps, another))
    return operations <= MAX_TRANSACTION_OPERATIONS and compares <= MAX_STEP_COMPARES
