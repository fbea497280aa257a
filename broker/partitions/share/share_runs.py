"""The records of a share partition that are in flight, as runs of offsets that are alike.

Guards: the runs follow each other without a hole from `start_offset` to `end_offset` (exclusive); each offset between
the two is in one. Pure: nothing here decides what becomes of a record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import IntEnum

import msgspec

from lowtide.protocol.types import Offset


class RecordState(IntEnum):
    """The state of a record of a share partition, with the numbers of KIP-932 that the share coordinator stores."""

    AVAILABLE = 0
    """It can be delivered."""
    ACQUIRED = 1
    """A member has it, until it acknowledges it or its lock times out. This state is never stored."""
    ACKNOWLEDGED = 2
    """It was accepted; this is final."""
    ARCHIVED = 4
    """It is not delivered any more; this is final."""


FINAL = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})
"""The states that a record does not leave."""


class Run(msgspec.Struct, gc=False):
    """Offsets from `first_offset` to `last_offset` (inclusive) that are alike in everything."""

    first_offset: Offset
    last_offset: Offset
    state: RecordState
    delivery_count: int
    member_id: str = ""
    """The member that has acquired it, else empty."""
    lock_deadline_ms: int = 0
    """When the acquisition lock times out, on the monotonic clock; 0 where there is none."""
    next_state: RecordState | None = None
    """What it becomes when `write` succeeds; None while no member has acknowledged it."""
    write: int = 0
    """The number of the write that `next_state` waits for."""
    unwritten: bool = False
    """Whether its state has changed without an acknowledgement, and is to go out with the next write."""

    @property
    def count(self) -> int:
        """How many offsets it has, at least 1."""
        return self.last_offset - self.first_offset + 1

    @property
    def can_be_acquired(self) -> bool:
        """Whether it may be delivered now."""
        return self.state is RecordState.AVAILABLE and self.next_state is None

    @property
    def is_final(self) -> bool:
        """Whether nothing becomes of it any more."""
        return self.state in FINAL and self.next_state is None

    def is_like(self, other: Run) -> bool:
        """Whether the two differ in nothing but their offsets."""
        return (
            self.state is other.state
            and self.delivery_count == other.delivery_count
            and self.member_id == other.member_id
            and self.lock_deadline_ms == other.lock_deadline_ms
            and self.next_state is other.next_state
            and self.write == other.write
            and self.unwritten == other.unwritten
        )


class Runs:
    """The runs of one share partition."""

    __slots__ = ("_runs", "start_offset")

    def __init__(self, start_offset: Offset) -> None:
        self.start_offset = start_offset
        self._runs: list[Run] = []

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __len__(self) -> int:
        """How many runs there are; no more than offsets in flight."""
        return len(self._runs)

    @property
    def end_offset(self) -> Offset:
        """The first offset that is not in flight yet."""
        return self._runs[-1].last_offset + 1 if self._runs else self.start_offset

    def append(self, last_offset: Offset, state: RecordState, delivery_count: int = 0) -> None:
        """Add what follows `end_offset`, up to `last_offset` (inclusive).

        Adds nothing where that is in flight already.
        """
        if last_offset >= self.end_offset:
            self._runs.append(Run(self.end_offset, last_offset, state, delivery_count))

    def between(self, first_offset: Offset, last_offset: Offset) -> list[Run]:
        """The runs of the offsets from `first_offset` to `last_offset` (inclusive) that are in flight, cut so that they hold no others."""
        if not self._runs or last_offset < first_offset:
            return []
        begin = self._cut(first_offset)
        return self._runs[begin : self._cut(last_offset + 1)]

    def cut_for(self, ranges: Sequence[tuple[Offset, Offset]]) -> Iterator[tuple[int, Run]]:
        """The runs in ranges that ascend, cut so that they hold no other offsets, each with the index of its range.

        As `between`, in one pass for all: there may be a range for each record.
        """
        if not ranges:
            return
        begin = max(bisect_right(self._runs, ranges[0][0], key=_first) - 1, 0)
        end = bisect_right(self._runs, ranges[-1][1], key=_first)
        cut = _cut_at([offset for first, last in ranges for offset in (first, last + 1)], self._runs[begin:end])
        self._runs[begin:end] = cut
        index = 0
        for run in cut:
            while index < len(ranges) and ranges[index][1] < run.first_offset:
                index += 1
            if index < len(ranges) and ranges[index][0] <= run.first_offset:
                yield index, run

    def around(self, first_offset: Offset, last_offset: Offset) -> list[Run]:
        """The runs that hold any of these offsets, uncut: for those who only look."""
        begin = max(bisect_right(self._runs, first_offset, key=_first) - 1, 0)
        end = bisect_right(self._runs, last_offset, key=_first)
        return [run for run in self._runs[begin:end] if run.last_offset >= first_offset]

    def drop_below(self, offset: Offset) -> None:
        """Let the runs begin at `offset`; at or below the present beginning nothing happens."""
        if offset > self.start_offset:
            del self._runs[: self._cut(offset)]
            self.start_offset = offset

    def merge(self) -> None:
        """Make one run of those that follow each other and are alike."""
        merged: list[Run] = []
        for run in self._runs:
            if merged and merged[-1].is_like(run):
                merged[-1].last_offset = run.last_offset
            else:
                merged.append(run)
        self._runs = merged

    def _cut(self, offset: Offset) -> int:
        """The index of the run that begins at `offset`, which is made where one lies across it."""
        index = bisect_right(self._runs, offset, key=_first)
        if index == 0:
            return 0
        before = self._runs[index - 1]
        if before.first_offset == offset:
            return index - 1
        if before.last_offset >= offset:
            behind = msgspec.structs.replace(before, first_offset=offset)
            before.last_offset = offset - 1
            self._runs.insert(index, behind)
        return index


def _cut_at(offsets: Sequence[Offset], runs: Sequence[Run]) -> list[Run]:
    """Runs of the same offsets of which none lies across one of `offsets`, which ascend."""
    cut, points = list[Run](), iter(offsets)
    point = next(points, None)
    for run in runs:
        while point is not None and point <= run.last_offset:
            if point > run.first_offset:
                cut.append(msgspec.structs.replace(run, last_offset=point - 1))
                run.first_offset = point
            point = next(points, None)
        cut.append(run)
    return cut


def _first(run: Run) -> Offset:
    return run.first_offset
