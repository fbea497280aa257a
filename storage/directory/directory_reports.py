"""What is told of log directories, and how the answers of several become one."""

from __future__ import annotations

from typing import NamedTuple

from lowtide.storage.log.log import Log
from lowtide.storage.log_start.journal import OnDurable


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


def all_together(count: int, on_done: OnDurable) -> OnDurable:
    """One answer for `count` of them: when the last has come, with the first error."""
    if count == 1:
        return on_done
    missing = count
    first: OSError | None = None

    def one_done(error: OSError | None) -> None:
        nonlocal missing, first
        missing -= 1
        first = first or error
        if missing == 0:
            on_done(first)

    return one_done
