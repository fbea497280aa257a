"""Deleted bytes that take room still, and what they wait for."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

MUCH_BYTES: Final = 1 << 20
"""Worth a hole at once: one costs a fraction of a millisecond of CPU, and a sync for all that are noted together."""


class Waiting(Enum):
    """What must happen before deleted bytes give their room back."""

    ROUND = "round"
    """Nothing but the next round, or the worker: it is a matter of a second."""
    READER = "reader"
    """An answer is being sent from the file."""
    BATCH = "batch"
    """They share a batch with records that are kept."""
    FILE_SYSTEM = "file-system"
    """It makes no holes in files: the room goes with the whole segment."""
    COMPACTED = "compacted"
    """The log is, or was, compacted, and another process may read its files: the room goes with the names of whole segments."""
    SWITCHED_OFF = "switched-off"
    """`lowtide.log.free.deleted` is false: the room goes with the names of whole segments."""


class Unfreed(msgspec.Struct, frozen=True):
    """So many bytes; what lies within a segment is an estimate by offsets."""

    size_bytes: int
    waits_for: Waiting
