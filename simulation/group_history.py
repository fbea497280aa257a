"""Records what clients saw of one group, and checks that it was allowed.

Checked (letters of the invariants): G1 a partition has one owner per generation; G2 generations of assignments never
decrease; G3 an acknowledged offset is not lost, and returned offsets do not decrease; G4 a member of an earlier
generation commits nothing. Every commit has a new, higher offset. A commit whose connection was lost may be executed
after a later one, so its offset may be returned again (`on_lost`).
"""

from __future__ import annotations

from lowtide.protocol.types import UNKNOWN_OFFSET, Offset
from lowtide.simulation.history import HistoryError


class GroupHistory:
    """The history of one group. Partitions are those of one topic."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation_id = 0
        """The highest generation with an assignment."""
        self.committed: dict[int, Offset] = {}
        """The highest acknowledged or returned offset of each partition."""
        self._next: dict[int, Offset] = {}
        self._lost: dict[int, set[Offset]] = {}
        self._owners: dict[tuple[int, int], str] = {}
        self.voids = 0

    def void(self) -> None:
        """Forgets everything, because the coordinator may have lost its state."""
        self.voids += 1
        self.generation_id = 0
        self.committed.clear()
        self._owners.clear()

    # Generations

    def on_joined(self, generation_id: int, *, given_out_before: int, voids: int) -> None:
        """Notes that a member got a generation. `given_out_before` is the highest assigned one before its request."""
        if voids == self.voids and generation_id < given_out_before:
            self._fail(f"G2: generation {generation_id} begins, and {given_out_before} was given out before")

    def on_assigned(
        self, generation_id: int, owner: str, partitions: list[int], *, given_out_before: int, voids: int
    ) -> None:
        """Notes that a member got its assignment. `owner` is the member or its instance, whose member id can change."""
        if voids != self.voids:
            return
        if generation_id < given_out_before:
            self._fail(
                f"G2: {owner} gets an assignment in generation {generation_id}, and {given_out_before} was given out "
                "before"
            )
        self.generation_id = max(self.generation_id, generation_id)
        for partition in partitions:
            other = self._owners.setdefault((generation_id, partition), owner)
            if other != owner:
                self._fail(f"G1: partition {partition} belongs to {other} and to {owner} in generation {generation_id}")

    # Offsets

    def next_offset(self, partition: int, step: int = 1) -> Offset:
        """Returns a new offset to commit, above the last one."""
        offset = self._next[partition] = self._next.get(partition, 0) + step
        return offset

    def requested_offset(self, partition: int) -> Offset:
        """Returns the highest requested offset."""
        return self._next.get(partition, 0)

    def on_lost(self, partition: int, offset: Offset) -> None:
        """Notes a commit without a response, whose outcome and time are unknown."""
        self._lost.setdefault(partition, set()).add(offset)

    def on_committed(
        self, partition: int, offset: Offset, *, generation_id: int, given_out_before: int, voids: int
    ) -> None:
        """Notes that a commit was acknowledged. `generation_id` is -1 in a group without members."""
        if voids != self.voids:
            return
        if 0 <= generation_id < given_out_before:
            self._fail(
                f"G4: an offset is committed in generation {generation_id}, and {given_out_before} was given out before"
            )
        self.committed[partition] = max(offset, self.committed.get(partition, UNKNOWN_OFFSET))

    def on_fetched(self, partition: int, offset: Offset, *, committed_before: Offset, voids: int) -> None:
        """Checks a committed offset that was returned (-1: none). `committed_before` was known before the request."""
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
