"""Groups partition changes of the controller into transactions.

Guards: each change compares the partition that it was decided on and the registrations that it relies on; a step stays
within the limits of a transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowtide.metadata import keys
from lowtide.metadata.changes import FENCES, NO_CHANGE, STEP_PARTITIONS, ChangePlan, Step
from lowtide.metadata.records import NO_LEADER, encode
from lowtide.metadata.store import MAX_TRANSACTION_OPERATIONS, Compare, Put

if TYPE_CHECKING:
    from lowtide.metadata.image import MetadataImage, PartitionImage
    from lowtide.metadata.records import PartitionRecord
    from lowtide.protocol.types import TopicId

MAX_STEP_COMPARES: Final = MAX_TRANSACTION_OPERATIONS - FENCES
"""The most comparisons that a step may have of its own."""


class PartitionChanges:
    """Partition changes, in as few steps as possible."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._steps: list[Step] = []
        self._operations: list[Put] = []
        self._compares: dict[bytes, Compare] = {}

    def add(self, topic_id: TopicId, number: int, before: PartitionImage, after: PartitionRecord) -> None:
        """Adds a change, valid if the partition is unchanged and the new ISR members keep their registrations."""
        brokers = self._image.brokers
        key = keys.partition(topic_id, number)
        needed = [Compare(key, "modify", "==", before.modify_revision)]
        if after.leader != NO_LEADER:
            needed += [Compare(keys.broker(member), "create", "==", brokers[member].epoch) for member in after.isr]
        if len(self._operations) == STEP_PARTITIONS or len(self._compares) + len(needed) > MAX_STEP_COMPARES:
            self.close_step()
        self._compares.update((compare.key, compare) for compare in needed)
        self._operations.append(Put(key, encode(after)))

    def plan(self) -> ChangePlan:
        self.close_step()
        return ChangePlan(tuple(self._steps)) if self._steps else NO_CHANGE

    def close_step(self) -> None:
        """Begins a new step: later changes don't share one with earlier changes."""
        if self._operations:
            self._steps.append(Step(tuple(self._operations), tuple(self._compares.values())))
            self._operations, self._compares = [], {}
