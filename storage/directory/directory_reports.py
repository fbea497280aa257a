"""What is reported of log directories."""

from __future__ import annotations

from typing import NamedTuple

from lowtide.storage.log.log import Log
from lowtide.storage.log.segments.unfreed import Waiting


class JournalSize(NamedTuple):
    """How large a journal of log starts is."""

    size_bytes: int
    entries: int


class Erased(NamedTuple):
    """What erasing has done since the directory was opened."""

    segments: int
    """Written again without their deleted records."""
    written_bytes: int
    """Of the segments that took their place."""


class ToErase(NamedTuple):
    """What is still to be erased."""

    logs: int
    """That have something to erase."""
    requests: int
    """That wait for their answer."""


class DirectoryUsage(NamedTuple):
    """What is in a log directory, and the bytes of its volume: all, and those that may still be written."""

    absolute_path: str
    logs: tuple[Log, ...]
    total_bytes: int
    usable_bytes: int
    unfreed: dict[Waiting, int]
    """Bytes of segments and topics that were deleted and take room still, as far as sizes are known."""
    journal: JournalSize
    erased: Erased
    to_erase: ToErase


class Recovery(NamedTuple):
    """What loading the logs of a directory took."""

    directory: str
    was_clean: bool
    """Whether the broker that used it last had stopped cleanly."""
    logs: int
    segments_checked: int
    bytes_cut: int
