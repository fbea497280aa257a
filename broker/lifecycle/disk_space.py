"""Warns of full log directories: at once, each minute while it lasts, and when it is over.

A directory is full when its volume has less than `ROOM_MIN_BYTES` left, or when writes failed for lack of space (as
with a quota, which the volume's figures do not show). It has space again after `OVER_AFTER_MS` without either. Until
then DescribeLogDirs reports no usable bytes, so that clients see it too.

Appends are not refused here: each is tried.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from lowtide.broker.turns import run_in_slices
from lowtide.runtime.clock import Clock
from lowtide.storage.directory.log_directories import LogDirectorySet
from lowtide.storage.errors import StorageError

ROOM_MIN_BYTES: Final = 1 << 20
"""Enough for a large batch or for folding the journal. `lowtide` uses the same figure."""
OVER_AFTER_MS: Final = 10_000
INTERVAL_MS: Final = 60_000
TOPICS_NAMED: Final = 3
_LOGS_PER_STEP: Final = 500

REMEDY: Final = (
    "delete records (lowtide records delete), lower retention.ms or retention.bytes of large topics, "
    "delete topics, or enlarge the volume"
)


class _Shortage(msgspec.Struct):
    """One full directory."""

    since_ms: int
    last_ms: int
    logged_ms: int


class DiskSpace:
    """Watches the free space of log directories. Call `on_tick` about once a second."""

    def __init__(self, directories: LogDirectorySet, clock: Clock, loop: asyncio.AbstractEventLoop, log: Any) -> None:
        self._directories = directories
        self._clock = clock
        self._loop = loop
        self._log = log
        self._short: dict[str, _Shortage] = {}
        self._without_holes: set[str] = set()
        """Directories that were already reported."""

    def on_tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        offline = self._directories.offline
        for path in self._directories.without_holes:
            if path not in self._without_holes:
                self._without_holes.add(path)
                self._log.info(
                    "the file system does not support holes: deleted records keep their space until their segment is "
                    "removed",
                    directory=path,
                )
        for path in self._directories.paths:
            if path in offline:
                self._short.pop(path, None)
                self._directories.without_room.discard(path)
            else:
                self._look_at(path, now_ms)

    def _look_at(self, path: str, now_ms: int) -> None:
        was_refused = self._directories.take_refused(path)
        try:
            free_bytes = self._directories.free_bytes(path)
        except StorageError:
            return  # The next write finds the failure.
        shortage = self._short.get(path)
        if was_refused or free_bytes < ROOM_MIN_BYTES:
            if shortage is None:
                shortage = self._short[path] = _Shortage(now_ms, now_ms, now_ms - INTERVAL_MS)
                self._directories.without_room.add(path)
            shortage.last_ms = now_ms
        if shortage is None:
            return
        if now_ms - shortage.last_ms >= OVER_AFTER_MS:
            del self._short[path]
            self._directories.without_room.discard(path)
            lasted_ms = shortage.last_ms - shortage.since_ms
            self._log.info("log directory has room again", directory=path, bytes_free=free_bytes, lasted_ms=lasted_ms)
        elif now_ms - shortage.logged_ms >= INTERVAL_MS:
            shortage.logged_ms = now_ms
            self._warn(path, free_bytes)

    def _warn(self, path: str, free_bytes: int) -> None:
        """Logs the largest topics, computed in slices: there can be ten thousand logs."""
        sizes: Counter[str] = Counter()

        def steps() -> Iterator[None]:
            for number, log in enumerate(list(self._directories.logs_in(path)), 1):
                sizes[log.topic_partition.topic] += log.size_bytes
                if number % _LOGS_PER_STEP == 0:
                    yield

        def warn() -> None:
            self._log.warning(
                "log directory has no room",
                directory=path,
                bytes_free=free_bytes,
                largest_topics=dict(sizes.most_common(TOPICS_NAMED)),
                effect="appends to it are refused, followers fall behind; reads, deletes and retention continue",
                remedy=REMEDY,
            )

        run_in_slices(self._loop, self._clock, steps(), warn)
