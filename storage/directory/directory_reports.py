"""Reports about log directories."""

from __future__ import annotations

from typing import NamedTuple

from lowtide.storage.log.log import Log
from lowtide.storage.log.segments.unfreed import UnfreedReason


class JournalSize(NamedTuple):
    """The size of a journal of log starts."""

    size_bytes: int
    entries: int


class ErasureTotals(NamedTuple):
    """The work of erasing since the directory was opened."""

    segments: int
    """Segments rewritten without their deleted records."""
    written_bytes: int
    """The bytes of the new segments."""


class PendingErasures(NamedTuple):
    """The work that erasing still has to do."""

    logs: int
    """Logs that have something to erase."""
    requests: int
    """Requests that wait for their answer."""
    oldest_ms: int
    """How long the log that waits longest has waited; 0 if none waits."""
    without_room: int
    """Logs whose last attempt lacked room or a descriptor."""


class DirectoryUsage(NamedTuple):
    """The contents of a log directory, and the bytes of its volume: all, and those that may still be written."""

    absolute_path: str
    logs: tuple[Log, ...]
    total_bytes: int
    usable_bytes: int
    unfreed: dict[UnfreedReason, int]
    """Deleted bytes of segments and topics that still take room, as far as sizes are known."""
    journal: JournalSize
    erased: ErasureTotals
    to_erase: PendingErasures


class Recovery(NamedTuple):
    """The result of loading the logs of a directory."""

    directory: str
    was_clean: bool
    """Whether the last broker that used it stopped cleanly."""
    logs: int
    segments_checked: int
    bytes_cut: int
