"""The configuration that decides when a segment is full."""

from __future__ import annotations

from typing import Protocol
from zlib import crc32


class RollLimits(Protocol):
    """Part of a log's configuration."""

    @property
    def segment_bytes(self) -> int: ...
    @property
    def segment_ms(self) -> int: ...
    @property
    def segment_jitter_ms(self) -> int: ...
    @property
    def segment_index_bytes(self) -> int: ...


def jitter_ms(path: str, limits: RollLimits) -> int:
    """Returns how much earlier than others the segment at `path` is closed, so that partitions don't roll together."""
    most = min(limits.segment_jitter_ms, limits.segment_ms)
    return crc32(path.encode()) % most if most else 0
