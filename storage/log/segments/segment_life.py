"""The life of a segment, from its first batch to the removal of its files.

    CLOSED          ── ACTIVATE ──> ACTIVE
    ACTIVE          ── CLOSE ──>    CLOSED
    CLOSED          ── SWAP_IN ──>  SWAPPED
    SWAPPED         ── ACTIVATE ──> SWAPPED_ACTIVE
    SWAPPED_ACTIVE  ── CLOSE ──>    SWAPPED
    SWAPPED         ── NAME ──>     CLOSED
    SWAPPED_ACTIVE  ── NAME ──>     ACTIVE
    CLOSED, ACTIVE, SWAPPED ── LEAVE ──> LEFT
    LEFT, MARKED    ── MARK ──>     MARKED
    LEFT, MARKED    ── ABANDON ──>  GONE
    MARKED          ── UNLINK ──>   GONE
    GONE            ── MARK, UNLINK, ABANDON ──> GONE

A segment that is opened begins in CLOSED; the one that is created is activated at once. Every other pair is a mistake
in this program, and raises. Until it has LEFT the log it is a `Segment`; what is to go then is a `RemovedSegment`. A
start goes by the names of the files only: `.swap` files take their names (`log_folder.py`), `.deleted` files are
removed. What compaction writes is no segment of the log before it is swapped in (`segment_swap.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class SegmentLife(Enum):
    """How far a segment is."""

    CLOSED = "closed"
    """action: it is read; its file and its indexes are opened when needed, and forgotten again. transition: it is the
    last one, and is written again (ACTIVATE) → ACTIVE; it is a compacted one that the log reads from now on (SWAP_IN) →
    SWAPPED; a delete, a truncation or a compaction takes it out of the log (LEAVE) → LEFT.
    """
    ACTIVE = "active"
    """action: it is written; its indexes are in memory. transition: it is rolled, or a truncation that wanted it fails
    (CLOSE) → CLOSED; a truncation takes it out of the log (LEAVE) → LEFT.
    """
    SWAPPED = "swapped"
    """action: as in CLOSED, while its file is called `.log.swap`. transition: the file has its name (NAME) → CLOSED; a
    truncation will cut it (ACTIVATE) → SWAPPED_ACTIVE; a delete takes it out of the log (LEAVE) → LEFT.
    """
    SWAPPED_ACTIVE = "swapped, active"
    """action: as in ACTIVE, but nothing is written: the truncation gives the file its name before it cuts. transition:
    it does (NAME) → ACTIVE; there is no room for the name (CLOSE) → SWAPPED.
    """
    LEFT = "left"
    """action: it is not read any more, except by those that have its file open; its files have their names. transition:
    they are renamed (MARK) → MARKED; the folder goes as a whole (ABANDON) → GONE.
    """
    MARKED = "marked"
    """action: its files are called `.deleted` until `file.delete.delay.ms` is over. transition: they are removed
    (UNLINK) → GONE; they are to be renamed once more (MARK) → MARKED; the folder goes as a whole (ABANDON) → GONE.
    """
    GONE = "gone"
    """action: nothing is renamed. transition: what was ordered before finds nothing to do (MARK, UNLINK, ABANDON) →
    GONE.
    """


class SegmentEvent(Enum):
    """What changes it."""

    ACTIVATE = "it becomes the segment that is written"
    CLOSE = "it isn't written any more"
    SWAP_IN = "the log reads a compacted segment by its `.swap` name"
    NAME = "a compacted segment's file has its name"
    LEAVE = "the log doesn't have it any more"
    MARK = "its files are renamed to `.deleted`"
    UNLINK = "its files are removed"
    ABANDON = "its folder is removed as a whole"


TRANSITIONS: Final[Mapping[tuple[SegmentLife, SegmentEvent], SegmentLife]] = {
    (SegmentLife.CLOSED, SegmentEvent.ACTIVATE): SegmentLife.ACTIVE,
    (SegmentLife.ACTIVE, SegmentEvent.CLOSE): SegmentLife.CLOSED,
    (SegmentLife.CLOSED, SegmentEvent.SWAP_IN): SegmentLife.SWAPPED,
    (SegmentLife.SWAPPED, SegmentEvent.ACTIVATE): SegmentLife.SWAPPED_ACTIVE,
    (SegmentLife.SWAPPED_ACTIVE, SegmentEvent.CLOSE): SegmentLife.SWAPPED,
    (SegmentLife.SWAPPED, SegmentEvent.NAME): SegmentLife.CLOSED,
    (SegmentLife.SWAPPED_ACTIVE, SegmentEvent.NAME): SegmentLife.ACTIVE,
    (SegmentLife.CLOSED, SegmentEvent.LEAVE): SegmentLife.LEFT,
    (SegmentLife.ACTIVE, SegmentEvent.LEAVE): SegmentLife.LEFT,
    (SegmentLife.SWAPPED, SegmentEvent.LEAVE): SegmentLife.LEFT,
    (SegmentLife.LEFT, SegmentEvent.MARK): SegmentLife.MARKED,
    (SegmentLife.MARKED, SegmentEvent.MARK): SegmentLife.MARKED,
    (SegmentLife.LEFT, SegmentEvent.ABANDON): SegmentLife.GONE,
    (SegmentLife.MARKED, SegmentEvent.ABANDON): SegmentLife.GONE,
    (SegmentLife.MARKED, SegmentEvent.UNLINK): SegmentLife.GONE,
    (SegmentLife.GONE, SegmentEvent.MARK): SegmentLife.GONE,
    (SegmentLife.GONE, SegmentEvent.UNLINK): SegmentLife.GONE,
    (SegmentLife.GONE, SegmentEvent.ABANDON): SegmentLife.GONE,
}

WRITTEN: Final = frozenset({SegmentLife.ACTIVE, SegmentLife.SWAPPED_ACTIVE})
"""States in which its file is open for writing and its indexes are in memory."""


def next_life(life: SegmentLife, event: SegmentEvent) -> SegmentLife:
    """Returns the state that an event leads to. Raises AssertionError if the event can't happen in the state."""
    following = TRANSITIONS.get((life, event))
    assert following is not None, f"{event.name} can't happen to a segment in {life.name}"
    return following
