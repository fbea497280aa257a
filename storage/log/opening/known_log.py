"""What is known of a log before it is opened, and the result of opening it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from lowtide.protocol.types import Offset
from lowtide.storage.log.segments.hole import Hole


class LogRepairs(msgspec.Struct):
    """The repairs made while loading a log, for one line in the broker's log."""

    bytes_cut: int = 0
    """Bytes after the last sound batch of the segment that was cut."""
    reason: str | None = None
    """What was wrong with the first of them."""
    segments_dropped: int = 0
    segments_checked: int = 0
    indexes_rebuilt: int = 0
    epochs_rebuilt: bool = False
    restarted_at_log_start: bool = False
    removed_files: list[str] = msgspec.field(default_factory=list)


class LoadTotals(NamedTuple):
    """The totals of loading several logs."""

    logs: int
    segments_checked: int
    bytes_cut: int

    def plus(self, report: LogRepairs) -> LoadTotals:
        return LoadTotals(
            self.logs + 1, self.segments_checked + report.segments_checked, self.bytes_cut + report.bytes_cut
        )


class KnownLog(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of a log in the files of its log directory.

    `log_start_offset` is 0 without an entry; `clean`: the broker stopped cleanly after writing them.
    """

    recovery_point: Offset
    log_start_offset: Offset
    clean: bool
    high_watermark: Offset = 0
    """0 if unknown."""
    hole: Hole | None = None
    """A hole that may lack its header after an unclean stop."""
    cleaned_to: Offset = 0
    """Gaps between unsynced segments below it are left by another broker's compaction."""
