"""What erasures of one partition name, and since when no reader may get it.

Known are the erasures in the logs of all replicas, seen when they are appended. One is in effect when the high
watermark of some replica has passed it. Erased values are those of erasures that all replicas have confirmed.

Checked: E1 an erased record isn't read by who asked later; a record of an erasure in effect isn't read from a replica
in sync; E2 an erasure names records of the wanted keys only, and a record is missing only if an erasure in effect
names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.types import LeaderEpoch, Offset
from lowtide.simulation.history import HistoryError

if TYPE_CHECKING:
    from lowtide.storage.log.log import Log

PERSONS: Final = 50

Place = tuple[Offset, LeaderEpoch]
"""Of an erasure."""


def key_of(value: bytes) -> bytes:
    """Returns the key of a record, of those that erasures name."""
    return b"person %d" % (int(value.split(b"-")[1]) % PERSONS)


class ErasedHistory:
    """The erasures of one partition."""

    def __init__(self, name: str, key_of: Callable[[bytes], bytes] = key_of) -> None:
        """`key_of` returns the key of a record's text."""
        self.name = name
        self.key_of = key_of
        self.wanted: dict[bytes, dict[bytes, Offset]] = {}
        """By erasure id, the keys whose records clients want to be erased, each with the last offset (inclusive)."""
        self.erased: frozenset[bytes] = frozenset()
        """The values that no reader may get any more."""
        self.clean: frozenset[bytes] = frozenset()
        """The values that are in no file of any replica any more."""
        self.moment = 0
        """Counts the erasures in effect."""
        self._noted: dict[Place, OffsetRanges] = {}
        self._in_effect: dict[Place, OffsetRanges] = {}
        self._last_named: dict[bytes, Offset] = {}
        """By erasure id, the highest offset that erasures in effect name."""
        self._since: dict[Offset, int] = {}
        self._earlier: set[Offset] = set()
        """Named by erasures that may be lost: a replica may have copied what was rewritten, and not the erasure."""

    def on_log(self, log: Log, value_at: Callable[[Offset], bytes | None], *, is_void: bool) -> None:
        """Notes the erasures of a log that has changed."""
        for each in reversed(log.erasures.known):
            place = each.offset, each.leader_epoch
            if place in self._in_effect:
                break
            ranges = self._noted.setdefault(place, each.left)
            if log.high_watermark < each.end_offset:
                continue
            if is_void:
                self._earlier |= {each.offset, *_offsets(ranges)}
            else:
                self._take_effect(place, each.erasure_id.bytes, ranges, value_at)

    def _take_effect(
        self, place: Place, erasure_id: bytes, ranges: OffsetRanges, value_at: Callable[[Offset], bytes | None]
    ) -> None:
        self.moment += 1
        wanted = self.wanted.get(erasure_id, {})
        self._in_effect[place] = ranges
        self._since[place[0]] = self.moment
        for offset in _offsets(ranges):
            self._since.setdefault(offset, self.moment)
            value = value_at(offset)
            self._last_named[erasure_id] = max(self._last_named.get(erasure_id, offset), offset)
            if value is not None and offset > wanted.get(self.key_of(value), -1):
                raise HistoryError(f"E2: {self.name}: the erasure at {place[0]} names {value[:20]!r} at {offset}")

    def check_end(self, erasure_id: bytes, searched_to: Offset) -> None:
        """Checks that an erasure names no offset at or above `searched_to`, the exclusive end of its search (E2)."""
        last = self._last_named.get(erasure_id, -1)
        if last >= searched_to:
            raise HistoryError(f"E2: {self.name}: an erasure names {last}, and its search ended at {searched_to}")

    def may_lack(self, offset: Offset) -> bool:
        """Returns whether an erasure in effect names the offset, or is there."""
        return offset in self._since or offset in self._earlier

    def names_any(self, first: Offset, last: Offset) -> bool:
        """Returns whether an erasure names an offset from `first` to `last` (inclusive)."""
        return any(self.may_lack(offset) for offset in range(first, last + 1))

    def erased_values(self, places: Mapping[bytes, Offset]) -> frozenset[bytes]:
        """Returns the known values that erasures in effect name."""
        return frozenset(value for value, offset in places.items() if offset in self._since)

    def check_read(
        self, records: Mapping[Offset, bytes], *, erased: frozenset[bytes], moment: int, in_sync: bool
    ) -> None:
        """Checks a read that began at `moment`, when `erased` was erased (E1).

        `in_sync`: at a replica that was in sync.
        """
        found = [(offset, value[:20]) for offset, value in records.items() if value in erased and value in self.erased]
        if found:
            raise HistoryError(f"E1: {self.name}: a reader got {found[:3]}, which was erased before it asked")
        if in_sync:
            found = [(each, value[:20]) for each, value in records.items() if 0 < self._since.get(each, 0) <= moment]
            if found:
                raise HistoryError(f"E1: {self.name}: a reader got {found[:3]}, whose erasure was in effect before")

    # What is lost

    def forget_from(self, end_offset: Offset) -> None:
        """Forgets the erasures at or above `end_offset`, which were not flushed."""
        for place in [place for place in self._in_effect if place[0] >= end_offset]:
            self._lose(place)

    def void_records(self) -> None:
        """Handles a leader that may lack records. What all replicas have confirmed stays erased."""
        for place in list(self._in_effect):
            self._lose(place)

    def on_written_again(self, value: bytes) -> None:
        """Handles a batch without an answer that its producer repeats after an erasure: the erasure came before it."""
        self.erased -= {value}
        self.clean -= {value}

    def void_deletes(self) -> None:
        """Handles an unclean election."""
        self.erased = self.clean = frozenset()

    def _lose(self, place: Place) -> None:
        for offset in (place[0], *_offsets(self._in_effect.pop(place))):
            self._since.pop(offset, None)
            self._earlier.add(offset)


def _offsets(ranges: OffsetRanges) -> list[Offset]:
    return [Offset(each) for first, last in ranges for each in range(first, last + 1)]
