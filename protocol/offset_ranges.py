"""Sets of offsets, kept as sorted ranges: the records that a search found, or that an erasure covers.

Guards: the ranges are in ascending order, disjoint and not adjacent, so equal sets have equal ranges. A question about
an offset costs a binary search, also with 100,000 ranges.

    >>> found = OffsetRanges.of_offsets([7, 3, 4, 5])
    >>> found.ranges()
    (OffsetRange(first=3, last=5), OffsetRange(first=7, last=7))
    >>> found.count, found.contains(6), found.intersects(6, 9)
    (4, False, True)
    >>> found.between(5, 6).ranges()
    (OffsetRange(first=5, last=5),)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lowtide.protocol.types import Offset


class OffsetRange(NamedTuple):
    """Consecutive offsets, from `first` to `last`, both inclusive."""

    first: int
    last: int


class OffsetRanges:
    """An immutable set of offsets. All arguments and results are inclusive."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[Offset, Offset]] = ()) -> None:
        """Takes ranges in any order, also overlapping ones. Errors: ValueError if one ends before its start."""
        self._firsts: list[Offset] = []
        self._lasts: list[Offset] = []
        end: Offset | None = None
        for first, last in sorted(ranges):
            if last < first:
                raise ValueError(f"the range from {first} to {last} ends before it starts")
            if end is not None and first <= end + 1:
                end = max(end, last)
                self._lasts[-1] = end
            else:
                self._firsts.append(first)
                self._lasts.append(last)
                end = last

    @classmethod
    def of_offsets(cls, offsets: Iterable[Offset]) -> OffsetRanges:
        """Returns the set of these offsets, which may be in any order and repeated."""
        return cls((offset, offset) for offset in offsets)

    @property
    def count(self) -> int:
        """The number of offsets."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    @classmethod
    def union_of(cls, sets: Iterable[OffsetRanges]) -> OffsetRanges:
        """Returns the offsets that are in any of the sets."""
        filled = [each for each in sets if each]
        return filled[0] if len(filled) == 1 else cls(chain.from_iterable(filled))

    @property
    def first(self) -> Offset:
        """The smallest offset. Errors: IndexError if there is none."""
        return self._firsts[0]

    @property
    def last(self) -> Offset:
        """The largest offset. Errors: IndexError if there is none."""
        return self._lasts[-1]

    def ranges(self) -> tuple[OffsetRange, ...]:
        return tuple(self)

    def contains(self, offset: Offset) -> bool:
        place = bisect_right(self._firsts, offset) - 1
        return place >= 0 and self._lasts[place] >= offset

    def intersects(self, first: Offset, last: Offset) -> bool:
        """Returns whether any offset from `first` to `last` is in the set."""
        place = bisect_left(self._lasts, first)
        return place < len(self._firsts) and self._firsts[place] <= last

    def next_inside(self, offset: Offset) -> Offset | None:
        """Returns the smallest offset of the set at or above `offset`; None if there is none."""
        place = bisect_left(self._lasts, offset)
        return max(offset, self._firsts[place]) if place < len(self._firsts) else None

    def next_outside(self, offset: Offset) -> Offset:
        """Returns the smallest offset at or above `offset` that isn't in the set."""
        place = bisect_right(self._firsts, offset) - 1
        return max(offset, self._lasts[place] + 1) if place >= 0 else offset

    def between(self, first: Offset, last: Offset) -> OffsetRanges:
        """Returns the offsets of the set from `first` to `last`."""
        start, end = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        part = OffsetRanges()
        if start < end:
            part._firsts, part._lasts = self._firsts[start:end], self._lasts[start:end]
            part._firsts[0] = max(part._firsts[0], first)
            part._lasts[-1] = min(part._lasts[-1], last)
        return part

    def union(self, other: OffsetRanges) -> OffsetRanges:
        """Returns the offsets of either set."""
        return OffsetRanges([*self, *other]) if self and other else other or self

    def without(self, other: OffsetRanges) -> OffsetRanges:
        """Returns the offsets of this set that `other` doesn't have."""
        if not self or not other.intersects(self._firsts[0], self._lasts[-1]):
            return self
        left: list[tuple[Offset, Offset]] = []
        for first, last in self:
            start = first
            for taken in other.between(first, last):
                if start < taken.first:
                    left.append((start, taken.first - 1))
                start = taken.last + 1
            if start <= last:
                left.append((start, last))
        return OffsetRanges(left)

    def __iter__(self) -> Iterator[OffsetRange]:
        return map(OffsetRange, self._firsts, self._lasts)

    def __len__(self) -> int:
        """Returns the number of ranges."""
        return len(self._firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffsetRanges):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    def __hash__(self) -> int:
        return hash((tuple(self._firsts), tuple(self._lasts)))

    def __repr__(self) -> str:
        return f"OffsetRanges({[tuple(each) for each in self]})"


NO_OFFSETS: Final = OffsetRanges()
