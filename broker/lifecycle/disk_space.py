"""Tells operators of log directories without room: at once, each minute while it lasts, and when it is over.

A directory has no room when its volume has less than `ROOM_MIN_BYTES` left for this process, or when writes to it were
refused for want of room (a quota, which the volume's figures don't show). It has room again when neither was so for
`OVER_AFTER_MS`. Until then DescribeLogDirs answers that it has no usable bytes, so that clients see it too.

Nothing is decided here about appends: each is tried.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from lowtide.broker.slices import run_in_slices
from lowtide.runtime.clock import Clock
from lowtide.storage.directory.log_directories import LogDirectorySet
from lowtide.storage.errors import StorageError

ROOM_MIN_BYTES: Final = 1 << 20
"""Less is no room: a large batch, or the journal when it is folded, takes as much. `lowtide` uses the same figure."""
OVER_AFTER_MS: Final = 10_000
INTERVAL_MS: Final = 60_000
TOPICS_NAMED: Final = 3
_LOGS_PER_STEP: Final = 500

REMEDY: Final = (
    "delete records (lowtide records delete), lower retention.ms or retention.bytes of large topics, "
    "delete topics, or enlarge the volume"
)


class _Shortage(msgspec.Struct):
    """One directory without room."""

    since_ms: int
    last_ms: int
    told_ms: int


class DiskSpace:
    """Watches the free space of log directories. `on_tick` is to be called about once a second."""

    def __init__(self, directories: LogDirectorySet, clock: Clock, loop: asyncio.AbstractEventLoop, log: Any) -> None:
        self._directories = directories
        self._clock = clock
        self._loop = loop
        self._log = log
        self._short: dict[str, _Shortage] = {}
        self._without_holes: set[str] = set()
        """Of which that was said."""

    def on_tick(self) -> None:
        """Look at all directories."""
        now_ms = self._clock.monotonic_ms()
        offline = self._directories.offline
        for path in self._directories.without_holes:
            if path not in self._without_holes:
                self._without_holes.add(path)
                self._log.info(
                    "deleted records keep their space until their segment goes: the file system makes no holes",
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
            return  # What that means is found out by those who write.
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
        elif now_ms - shortage.told_ms >= INTERVAL_MS:
            shortage.told_ms = now_ms
            self._tell(path, free_bytes)

    def _tell(self, path: str, free_bytes: int) -> None:
        """In slices: there may be ten thousand logs to add up."""
        sizes: Counter[str] = Counter()

        def steps() -> Iterator[None]:
            for number, log in enumerate(list(self._directories.logs_in(path)), 1):
                sizes[log.topic_partition.topic] += log.size_bytes
                if number % _LOGS_PER_STEP == 0:
                    yield

        def tell() -> None:
            self._log.warning(
                "log directory has no room",
                directory=path,
                bytes_free=free_bytes,
                largest_topics=dict(sizes.most_common(TOPICS_NAMED)),
                effect="appends to it are refused, followers fall behind; reads, deletes and retention continue",
                remedy=REMEDY,
            )

        run_in_slices(self._loop, self._clock, steps(), tell)
