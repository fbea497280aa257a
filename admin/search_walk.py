"""How a search walks through the partitions of a topic, and which of its hits are the first ones.

A walk goes through one partition, window by window, from its newest record back or from its oldest on. A number of
records is not a number of offsets: compacted and transactional logs have gaps. So the width of a window, in offsets,
follows the bytes that the last one had.

Walks of several partitions are merged by time: the next window is that of the partition whose rest may have the next
record. Timestamps of producers need not ascend, so the merge of these is as exact as they are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from lowtide.admin.batch_rows import MarkerRow

if TYPE_CHECKING:
    from lowtide.admin.batch_rows import Row
    from lowtide.protocol.types import Offset

WINDOW_BYTES: Final = 1 << 20
"""The bytes of a window, about."""

FIRST_WIDTH: Final = 16
"""The offsets of the first window."""

GROWTH: Final = 8
"""A window is at most so many times as wide as the one before."""

FULL: Final = 0.9
"""How much of `WINDOW_BYTES` a window is expected to fill."""

FETCH_BYTES_MIN: Final = 64 << 10
FIRST_BYTES: Final = 256 << 10
"""How many bytes to ask for while nothing is known of a partition."""

WINDOW_BYTES_MAX: Final = 4 * WINDOW_BYTES
"""A window that turns out to have more bytes is given up for a narrower one."""

ROW_BYTES: Final = 150
"""The bytes of the objects of a row or a header."""

LONG_AGO: Final = -(1 << 63)
FAR_AHEAD: Final = 1 << 63


class OffsetWindow(NamedTuple):
    """Offsets to search next. `end` is exclusive."""

    begin: Offset
    end: Offset


class PartitionWalk:
    """A walk through the offsets `low` to `high` (exclusive) of a partition."""

    def __init__(self, number: int, low: Offset, high: Offset, *, backwards: bool) -> None:
        self.number = number
        self.backwards = backwards
        self.low = low
        self.high = max(low, high)
        """The rest is between the two."""
        self.width = FIRST_WIDTH
        self.edge_ms = FAR_AHEAD if backwards else LONG_AGO
        """The time at which the walk has arrived: its rest is older, or if it goes forwards, newer."""
        self.is_failed = False
        self._per_offset: float | None = None
        """The bytes of an offset, in the last window."""
        self._total = self.high - self.low

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return self.is_failed or self.low >= self.high

    @property
    def searched(self) -> int:
        """How many offsets were searched."""
        return self._total - (self.high - self.low)

    @property
    def total(self) -> int:
        """How many offsets it began with."""
        return self._total

    def window(self) -> OffsetWindow:
        """Returns the next window."""
        assert not self.is_done
        if self.backwards:
            return OffsetWindow(max(self.low, self.high - self.width), self.high)
        return OffsetWindow(self.low, self.high)

    def bytes_for(self, window: OffsetWindow, offset: Offset, bytes_read: int) -> int:
        """Returns how many bytes to ask for, from `offset` of a window on, of which `bytes_read` were read.

        About those of the rest of the window, so that little is read twice.
        """
        if not self.backwards:
            return WINDOW_BYTES
        per_offset = bytes_read / (offset - window.begin) if offset > window.begin else self._per_offset
        if per_offset is None:
            return FIRST_BYTES
        return min(max(round(per_offset * (window.end - offset) / FULL), FETCH_BYTES_MIN), WINDOW_BYTES)

    def on_window(self, window: OffsetWindow, bytes_read: int, edge_ms: int | None) -> None:
        """Goes on after a window with so many bytes was searched.

        `edge_ms`: the time of its batch that was farthest on the way.
        """
        if not self.backwards:
            self.low = min(max(window.end, self.low), self.high)
        else:
            self._per_offset = bytes_read / max(1, window.end - window.begin)
            fitting = FULL * WINDOW_BYTES / self._per_offset if self._per_offset else FAR_AHEAD
            self.width = max(1, int(min(fitting, GROWTH * self.width)))
            self.high = max(self.low, window.begin)
        if edge_ms is not None:
            self.edge_ms = min(self.edge_ms, edge_ms) if self.backwards else max(self.edge_ms, edge_ms)

    def on_too_wide(self) -> bool:
        """Makes the next window narrower; returns whether it can be."""
        if self.width == 1:
            return False
        self.width = max(1, self.width // GROWTH)
        return True

    def on_deleted(self, log_start: Offset) -> None:
        """Leaves out what was deleted meanwhile."""
        removed = min(max(log_start, self.low), self.high) - self.low
        self._total -= removed
        self.low += removed

    def fail(self) -> None:
        """Gives up the rest."""
        self.is_failed = True


class Hit(NamedTuple):
    """A row that was found."""

    partition: int
    row: Row


class FirstHits:
    """Keeps the first hits in the order of the search, at most `count` of them, and about `bytes_max` bytes.

    The order is by time, then by partition, then by offset. Where the hits are that are left out is kept, so that a
    later search can go on without losing one.
    """

    def __init__(self, count: int, bytes_max: int, *, backwards: bool) -> None:
        self._count = count
        self._bytes_max = bytes_max
        self._bytes = 0
        self._sign = -1 if backwards else 1
        self._kept: list[tuple[int, int, int, Hit]] = []
        """A heap whose first item is the last hit in the order."""
        self._places: set[tuple[int, Offset]] = set()
        self._new: set[tuple[int, Offset]] = set()
        self._left_out: dict[int, Offset] = {}

    @property
    def hits(self) -> list[Hit]:
        """The hits in the order of the search."""
        return [each[-1] for each in sorted(self._kept, reverse=True)]

    @property
    def is_full(self) -> bool:
        return len(self._kept) >= self._count

    @property
    def has_left_out(self) -> bool:
        return bool(self._left_out)

    def take_new(self) -> list[Hit]:
        """Returns the kept hits that this did not return before, in their order."""
        new, self._new = self._new, set()
        return [hit for hit in self.hits if (hit.partition, hit.row.offset) in new] if new else []

    def add(self, partition: int, row: Row) -> None:
        """Adds a hit, unless it is kept already. If there are too many then, the last one is left out."""
        place, sign = (partition, row.offset), self._sign
        if place in self._places:
            return
        heapq.heappush(self._kept, (-sign * row.timestamp, -partition, -sign * row.offset, Hit(partition, row)))
        self._places.add(place)
        self._new.add(place)
        self._bytes += size_of(row)
        if len(self._kept) > self._count:
            self._leave_out_last()
        while self._bytes > self._bytes_max and len(self._kept) > 1:
            self._leave_out_last()
            self._count = len(self._kept)

    def _leave_out_last(self) -> None:
        *_, hit = heapq.heappop(self._kept)
        place = (hit.partition, hit.row.offset)
        self._places.discard(place)
        self._new.discard(place)
        self._bytes -= size_of(hit.row)
        choose = max if self._sign < 0 else min
        self._left_out[hit.partition] = choose(hit.row.offset, self._left_out.get(hit.partition, hit.row.offset))

    def is_settled(self, walks: Sequence[PartitionWalk]) -> bool:
        """Returns whether no rest can have an earlier hit than the last one that is kept."""
        if not self.is_full:
            return False
        last_ms = self._kept[0][-1].row.timestamp
        rest = [walk.edge_ms for walk in walks if not walk.is_done]
        return all(edge <= last_ms if self._sign < 0 else edge >= last_ms for edge in rest)

    def next_offset(self, walk: PartitionWalk) -> Offset:
        """Returns where a later search of a partition goes on: the end of its rest, or if it goes forwards, its begin.

        Hits that were left out are found again then.
        """
        place = self._left_out.get(walk.number)
        if walk.backwards:
            return walk.high if place is None else max(walk.high, place + 1)
        return walk.low if place is None else min(walk.low, place)


def size_of(row: Row) -> int:
    """Returns about how many bytes of memory a row has."""
    if isinstance(row, MarkerRow):
        return ROW_BYTES
    headers = sum(len(name) + len(value or b"") + ROW_BYTES for name, value in row.headers)
    return ROW_BYTES + len(row.key or b"") + len(row.value or b"") + headers


def next_walk(walks: Iterable[PartitionWalk]) -> PartitionWalk | None:
    """Returns the walk whose rest may have the next record in the order; None if all are done."""
    rest = [walk for walk in walks if not walk.is_done]
    if not rest:
        return None
    return min(rest, key=lambda walk: (-walk.edge_ms if walk.backwards else walk.edge_ms, walk.number))
