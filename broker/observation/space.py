"""The space of a log directory: what is live, and what was deleted and takes room still, with what it waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Final

import msgspec

from lowtide.storage.directory.directory_reports import DirectoryUsage
from lowtide.storage.directory.log_directories import LogDirectorySet
from lowtide.storage.log.segments.unfreed import UnfreedReason

LOGS_A_STEP: Final = 50


class Space(msgspec.Struct):
    """Bytes of one log directory."""

    live_bytes: int
    """Of segments, without what is below log starts."""
    deleted: Counter[UnfreedReason]


def space_of(directories: LogDirectorySet, path: str, usage: DirectoryUsage) -> Generator[None, None, Space]:
    """The space of an online directory, some logs at a time."""
    space = Space(0, Counter(usage.unfreed))
    for number, log in enumerate(usage.logs, 1):
        space.live_bytes += log.size_bytes
        unfreed = directories.unfreed(path, log)
        if unfreed is not None:
            space.live_bytes -= unfreed.size_bytes
            space.deleted[unfreed.waits_for] += unfreed.size_bytes
        if number % LOGS_A_STEP == 0:
            yield
    return space
