"""What clients of one group saw, and whether coordinators may have shown them that.

Checked (letters of the invariants): G1 a partition has one owner in a generation; G2 the generations that assignments
were given out in never go back; G3 an offset that was committed with an acknowledgement isn't lost, and what is
returned of it doesn't go back; G4 a member of an earlier generation than one that was given out before its request
commits nothing.

Every commit has an offset of its own, above all before. One whose connection was lost may still be on its way, and be
carried out after a later one: such an offset may be returned again (`on_lost`).
"""

from __future__ import annotations

from lowtide.protocol.types import UNKNOWN_OFFSET, Offset
from lowtide.simulation.history import HistoryError


class GroupHistory:
    """The history of one group. Partitions are those of one topic, by their numbers."""

    def __init__(self, name: str) -> None:
        """`name` is the group's id."""
        self.name = name
        self.generation_id = 0
        """The highest that an assignment was given out in."""
        self.committed: dict[int, Offset] = {}
        """The highest that was acknowledged or returned, for each partition."""
        self._next: dict[int, Offset] = {}
        self._lost: dict[int, set[Offset]] = {}
        self._owners: dict[tuple[int, int], str] = {}
        self.voids = 0

    def void(self) -> None:
        """The coordinator may have lost what it knew: what was is forgotten, and counts for nothing."""
        self.voids += 1
        self.generation_id = 0
        self.committed.clear()
        self._owners.clear()

    # Generations

    def on_joined(self, generation_id: int, *, given_out_before: int, voids: int) -> None:
        """A member received a generation; `given_out_before` its request an assignment was given out in that one."""
        if voids == self.voids and generation_id < given_out_before:
            self._fail(f"G2: generation {generation_id} begins, and {given_out_before} was given out before")

    def on_assigned(
        self, generation_id: int, owner: str, partitions: list[int], *, given_out_before: int, voids: int
    ) -> None:
        """A member got its assignment.

        `owner` is the member, or its instance, which another id may take the place of.
        """
        if voids != self.voids:
            return
        if generation_id < given_out_before:
            self._fail(
                f"G2: {owner} gets an assignment in generation {generation_id}, and {given_out_before} was given out before"
            )
        self.generation_id = max(self.generation_id, generation_id)
        for partition in partitions:
            other = self._owners.setdefault((generation_id, partition), owner)
            if other != owner:
                self._fail(f"G1: partition {partition} belongs to {other} and to {owner} in generation {generation_id}")

    # Offsets

    def next_offset(self, partition: int, step: int = 1) -> Offset:
        """An offset to commit that no member has committed before: so much above the last one."""
        offset = self._next[partition] = self._next.get(partition, 0) + step
        return offset

    def requested_offset(self, partition: int) -> Offset:
        """The highest that any member asked to commit."""
        return self._next.get(partition, 0)

    def on_lost(self, partition: int, offset: Offset) -> None:
        """A commit has no answer: its outcome is unknown, and so is when it is carried out."""
        self._lost.setdefault(partition, set()).add(offset)

    def on_committed(
        self, partition: int, offset: Offset, *, generation_id: int, given_out_before: int, voids: int
    ) -> None:
        """A commit was acknowledged; `generation_id` is -1 in a group without members."""
        if voids != self.voids:
            return
        if 0 <= generation_id < given_out_before:
            self._fail(
                f"G4: an offset is committed in generation {generation_id}, and {given_out_before} was given out before"
            )
        self.committed[partition] = max(offset, self.committed.get(partition, UNKNOWN_OFFSET))

    def on_fetched(self, partition: int, offset: Offset, *, committed_before: Offset, voids: int) -> None:
        """A committed offset was returned (-1: none), and `committed_before` it was asked for was known to be committed."""
        if offset > self._next.get(partition, 0):
            self._fail(f"G3: partition {partition} has the committed offset {offset}, which no member has committed")
        if voids != self.voids:
            return
        if offset < committed_before:
            lost = self._lost.get(partition, set())
            if offset not in lost:
                self._fail(
                    f"G3: partition {partition} has the committed offset {offset}, and it had {committed_before} before"
                )
            lost.discard(offset)
            self.committed[partition] = offset
        else:
            self.committed[partition] = max(offset, self.committed.get(partition, UNKNOWN_OFFSET))

    def _fail(self, reason: str) -> None:
        raise HistoryError(f"group {self.name}: {reason}")
