"""What is reported of log directories."""

from __future__ import annotations

from typing import NamedTuple

from lowtide.storage.log.log import Log


class DirectoryUsage(NamedTuple):
    """What is in a log directory, and the bytes of its volume: all, and those that may still be written."""

    absolute_path: str
    logs: tuple[Log, ...]
    total_bytes: int
    usable_bytes: int


class Recovery(NamedTuple):
    """What loading the logs of a directory took."""

    directory: str
    was_clean: bool
    """Whether the broker that used it last had stopped cleanly."""
    logs: int
    segments_checked: int
    bytes_cut: int
