"""Deleted bytes that still take room, what they wait for, and how many bytes a delete will free."""

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


def small_room(size_bytes: int, least_bytes: int) -> UnfreedReason:
    """Returns why deleted bytes stay that no hole of at least `least_bytes` takes along."""
    return UnfreedReason.BLOCK if size_bytes < least_bytes else UnfreedReason.BATCH


class PlannedRoom(msgspec.Struct, frozen=True):
    """The bytes that a delete of all records below an offset will free."""

    file_count: int
    """The segments that will be removed whole."""
    file_bytes: int
    delay_ms: int
    """How long removed files take room; 0 if they are emptied at once."""
    hole_bytes: int
    """The bytes of the next segment that will be freed about a second later."""
    kept_bytes: int
    """The deleted bytes of that segment that stay, an estimate."""
    waits_for: UnfreedReason | None
    """Why they stay; None without such bytes."""
