"""Deleted bytes that still take room, and what they wait for."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

MUCH_BYTES: Final = 1 << 20
"""Worth a hole at once: it costs a fraction of a millisecond of CPU, and a sync for all that are noted together."""

HOLE_BLOCKS: Final = 4
"""The fewest blocks of the file system that become a hole: a hole of one costs as much CPU as one of many."""


class UnfreedReason(Enum):
    """What must happen before the room of deleted bytes is free."""

    ROUND = "round"
    """The next round, or the worker: about a second."""
    READER = "reader"
    """An answer is being sent from the file."""
    BATCH = "batch"
    """They share a batch with records that are kept."""
    BLOCK = "block"
    """They are less than `HOLE_BLOCKS` of the file system; they become part of the next hole."""
    FILE_SYSTEM = "file-system"
    """The file system makes no holes: the room is freed with the whole segment."""
    COMPACTED = "compacted"
    """The log is, or was, compacted, and another process may read its files: the room is freed with whole segments."""
    SWITCHED_OFF = "switched-off"
    """`lowtide.log.free.deleted` is false: the room is freed with whole segments."""


class UnfreedRoom(msgspec.Struct, frozen=True):
    """Deleted bytes that still take room; within a segment they are an estimate by offsets."""

    size_bytes: int
    waits_for: UnfreedReason
