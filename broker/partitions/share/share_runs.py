"""The records of a share partition that are in flight, as runs of consecutive offsets with equal state.

Guards: the runs cover each offset from `start_offset` to `end_offset` (exclusive) once. Pure: nothing here decides
about records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import IntEnum

import msgspec

from lowtide.protocol.types import Offset


class RecordState(IntEnum):
    """The state of a record, with the numbers of KIP-932 that the share coordinator stores."""

    AVAILABLE = 0
    """May be delivered."""
    ACQUIRED = 1
    """A member has it until it acknowledges it or its lock expires. Never stored."""
    ACKNOWLEDGED = 2
    """Accepted. Final."""
    ARCHIVING = 3
    """Given up, and its dead letter is not written yet (KIP-1191)."""
    ARCHIVED = 4
    """Never delivered again. Final."""


FINAL = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})
"""The final states."""


class Run(msgspec.Struct, gc=False):
    """Offsets from `first_offset` to `last_offset` (inclusive) with equal state."""

    first_offset: Offset
    last_offset: Offset
    state: RecordState
    delivery_count: int
    member_id: str = ""
    """The member that has acquired it, else empty."""
    lock_deadline_ms: int = 0
    """When the acquisition lock expires, on the monotonic clock; 0 without one."""
    next_state: RecordState | None = None
    """The state after `write` succeeds; None before an acknowledgement."""
    write: int = 0
    """The number of the write that `next_state` waits for."""
    unwritten: bool = False
    """Whether its state has changed without an acknowledgement and is part of the next write."""
    is_rejected: bool = False
    """Whether it was given up because a member rejected it."""

    @property
    def count(self) -> int:
        """The number of offsets, at least 1."""
        return self.last_offset - self.first_offset + 1

    @property
    def can_be_acquired(self) -> bool:
        """Whether it may be delivered now."""
        return self.state is RecordState.AVAILABLE and self.next_state is None

    @property
    def is_final(self) -> bool:
        return self.state in FINAL and self.next_state is None

    def is_like(self, other: Run) -> bool:
        """Returns whether two runs differ only in their offsets."""
        return (
            self.state is other.state
            and self.delivery_count == other.delivery_count
            and self.member_id == other.member_id
            and self.lock_deadline_ms == other.lock_deadline_ms
            and self.next_state is other.next_state
            and self.write == other.write
            and self.unwritten == other.unwritten
            and self.is_rejected == other.is_rejected
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
        return len(self._runs)

    @property
    def end_offset(self) -> Offset:
        """The first offset that is not in flight yet."""
        return self._runs[-1].last_offset + 1 if self._runs else self.start_offset

    def append(self, last_offset: Offset, state: RecordState, delivery_count: int = 0) -> None:
        """Adds a run from `end_offset` to `last_offset` (inclusive); nothing if that is in flight already."""
        if last_offset >= self.end_offset:
            self._runs.append(Run(self.end_offset, last_offset, state, delivery_count))

    def between(self, first_offset: Offset, last_offset: Offset) -> list[Run]:
        """Returns the runs in flight from `first_offset` to `last_offset` (inclusive), cut to these offsets."""
        if not self._runs or last_offset < first_offset:
            return []
        begin = self._cut(first_offset)
        return self._runs[begin : self._cut(last_offset + 1)]

    def cut_for(self, ranges: Sequence[tuple[Offset, Offset]]) -> Iterator[tuple[int, Run]]:
        """Yields the runs in ascending ranges, cut to these offsets, each with the index of its range.

        As `between`, in one pass for all ranges: there may be one for each record.
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
        """Returns the runs that have any of these offsets, uncut: read-only."""
        begin = max(bisect_right(self._runs, first_offset, key=_first) - 1, 0)
        end = bisect_right(self._runs, last_offset, key=_first)
        return [run for run in self._runs[begin:end] if run.last_offset >= first_offset]

    def drop_below(self, offset: Offset) -> None:
        """Removes offsets below `offset`. Does nothing at or below the start."""
        if offset > self.start_offset:
            del self._runs[: self._cut(offset)]
            self.start_offset = offset

    def merge(self) -> None:
        """Joins neighbouring runs with equal state."""
        merged: list[Run] = []
        for run in self._runs:
            if merged and merged[-1].is_like(run):
                merged[-1].last_offset = run.last_offset
            else:
                merged.append(run)
        self._runs = merged

    def _cut(self, offset: Offset) -> int:
        """Returns the index of the run that begins at `offset`, after cutting the run that crosses it."""
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
    """Returns the runs cut at ascending offsets."""
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
