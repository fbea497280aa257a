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


class RoomShortage(NamedTuple):
    """Why the last attempt to erase a log lacked room or a descriptor."""

    directory: str
    needed_bytes: int
    """The most that the new segment can have; 0 if a name, a descriptor or memory was lacking."""
    free_bytes: int
    reason: str
    """What the system said; empty if nothing was begun because the volume has too little room."""

    @property
    def sentence(self) -> str:
        said = f" ({self.reason})" if self.reason else ""
        if not self.needed_bytes:
            return f"no room in {self.directory}{said}: has {self.free_bytes} bytes"
        return f"no room in {self.directory}{said}: needs {self.needed_bytes} bytes, has {self.free_bytes}"


class ErasureWait(NamedTuple):
    """What a log still has to erase because erasures name it."""

    erasures: int
    records: int
    """The offsets whose records may still be in a file."""
    waited_ms: int
    """Since this broker knows of it, or has started."""
    reason: str


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
