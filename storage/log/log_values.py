"""Configuration and results of a log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from lowtide.protocol.types import Offset
from lowtide.runtime.committer import Barrier
from lowtide.storage.log.segments.segment_files import RemovedSegment
from lowtide.storage.log.validation.validation_rules import (
    MAXIMUM_DECOMPRESSED_BYTES,
    QUICK_BYTES,
    QUICK_COMPRESSION_BYTES,
    QUICK_HEADERS,
    QUICK_RECORDS,
    ValidationRules,
)

_NEVER: Final = 2**63 - 1
_LAST_MS: Final = 253_402_300_799_000
"""The last second of the year 9999, after which there are no dates."""


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a topic's configuration that concerns its logs, with Kafka's names and defaults."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    max_decompressed_message_bytes: int = 2_147_483_639
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = _NEVER
    message_timestamp_after_max_ms: int = 3_600_000
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_type: str = "producer"
    flush_messages: int = _NEVER
    flush_ms: int = _NEVER
    file_delete_delay_ms: int = 60_000
    preallocate: bool = False
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    log_retention_min_timestamp: int = 0
    retention_commitoffset_ms: int = -1
    """-1 if nothing is deleted because it was consumed."""
    lowtide_retention_commitoffset_groups: tuple[str, ...] = ()
    """The groups that must have consumed a record; empty: all."""
    min_insync_replicas: int = 1
    delete_retention_ms: int = 86_400_000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = _NEVER
    lowtide_delete_erase: bool = False
    """Whether deleted records are erased without a request."""
    lowtide_erasure_key_filter: str = "search"
    """Whether searches build filters of the keys of closed segments ("search") or not ("none")."""
    lowtide_hold_reason: str = ""
    lowtide_hold_until: int = -1
    """Until this wall-clock time nothing is deleted, compacted or erased; -1 is no hold."""

    def is_held(self, now_ms: int) -> bool:
        """Returns whether the topic is held, so that nothing of it may be deleted, compacted or erased now."""
        return now_ms < self.lowtide_hold_until

    @property
    def hold_sentence(self) -> str:
        """Says that the topic is held, until when, and why."""
        until = datetime.fromtimestamp(min(self.lowtide_hold_until, _LAST_MS) / 1000, UTC)
        reason = f": {self.lowtide_hold_reason}" if self.lowtide_hold_reason else ""
        return f"The topic is held until {until:%Y-%m-%dT%H:%M:%SZ}{reason}."

    @property
    def asks_for_flushes(self) -> bool:
        """Whether records are flushed after a time or a number, not just when a segment is closed."""
        return self.flush_messages != _NEVER or self.flush_ms != _NEVER

    @property
    def validation_rules(self) -> ValidationRules:
        """The rules for produced batches, of Produce versions with zstd."""
        return ValidationRules(
            max_message_bytes=self.max_message_bytes,
            timestamp_type="log_append" if self.message_timestamp_type == "LogAppendTime" else "create",
            timestamp_before_max_ms=self.message_timestamp_before_max_ms,
            timestamp_after_max_ms=self.message_timestamp_after_max_ms,
            compacted="compact" in self.cleanup_policy,
            compression_type=self.compression_type,
            max_decompressed_bytes=MAXIMUM_DECOMPRESSED_BYTES,
            max_record_bytes=self.max_decompressed_message_bytes,
            allow_zstd=True,
            quick_records=QUICK_RECORDS,
            quick_headers=QUICK_HEADERS,
            quick_bytes=QUICK_BYTES,
            quick_compression_bytes=QUICK_COMPRESSION_BYTES,
        )


class AppendedBatch(msgspec.Struct, gc=False):
    """A batch in the log. `last_offset` is inclusive; `duplicate` says that it was there before (KIP-98)."""

    base_offset: Offset
    last_offset: Offset
    log_append_time_ms: int
    """-1 under CreateTime, except for a duplicate."""
    duplicate: bool = False


class FollowerAppend(msgspec.Struct):
    """What a follower appended: `first_offset` to `last_offset` inclusive, both -1 if there was no whole batch."""

    first_offset: Offset
    last_offset: Offset
    size_bytes: int
    removed: list[RemovedSegment]
    """Segments replaced by a first batch that straddles the log start; renamed already, to be unlinked later."""


class Truncation(msgspec.Struct):
    """The result of a truncation."""

    barrier: Barrier | None
    """Until it is done, a power cut may bring back what was truncated. None if nothing was, or if it lacks room."""
    removed: list[RemovedSegment]
    """Segments that are out of the log and renamed already; to be unlinked later."""
    lacks_barrier: bool = False
    """The log is cut, but there was no room for the barrier: `LogTruncation.barrier` returns it later."""
