"""Settings, listeners and ports that the logs of a broker share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lowtide.protocol.types import Offset
from lowtide.runtime.clock import Clock
from lowtide.runtime.committer import Committer
from lowtide.runtime.filesystem import FileSystem
from lowtide.runtime.random import Random
from lowtide.runtime.worker import Worker
from lowtide.storage.directory.allowance import Allowance
from lowtide.storage.log.log_values import LogConfig
from lowtide.storage.log.producers.producer_state import DEFAULT_EXPIRATION_MS
from lowtide.storage.log.segments.open_files import FILES_MAX
from lowtide.storage.log.segments.segment_files import RemovedSegment, SegmentCache

if TYPE_CHECKING:
    from lowtide.storage.directory.directory_reports import RoomShortage
    from lowtide.storage.log.log import Log


class PrefixDeletion(NamedTuple):
    """What a log has lost: the records between two log starts, and segments that left it because they lay below.

    Either may be nothing: segments below the log start may leave later.
    """

    log: Log
    old_log_start_offset: Offset
    log_start_offset: Offset
    removed: list[RemovedSegment]


class DeletionListener(NamedTuple):
    """Someone who learns later what logs have lost, so that no delete waits for it."""

    deletions: list[PrefixDeletion]
    """Gets what logs have lost."""
    on_first: Callable[[], object]
    """Called when the list is empty and gets something."""


class ErasingListener(NamedTuple):
    """Someone who learns which logs can't be erased, or not yet."""

    on_not_erased: Callable[[Log, str], None]
    """Called with the reason when a log can't be erased; it is retried when its start rises."""
    on_without_room: Callable[[Log, RoomShortage, int], None]
    """Called with a log that lacks room to be erased, and the number of such logs in its directory."""


class LogManagerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all logs of a broker share. Times are in milliseconds."""

    recovery_point_interval_ms: int = 60_000
    """`log.flush.offset.checkpoint.interval.ms`"""
    high_watermark_interval_ms: int = 5_000
    """`replica.high.watermark.checkpoint.interval.ms`"""
    producer_id_expiration_ms: Callable[[], int] = lambda: DEFAULT_EXPIRATION_MS
    """`producer.id.expiration.ms`, read whenever it is needed."""
    producer_expiration_check_ms: int = 600_000
    """`producer.id.expiration.check.interval.ms`"""
    frees_deleted: bool = True
    """`lowtide.log.free.deleted`"""
    segment_files_max: int = FILES_MAX
    """How many `.log` files may be open."""
    default_config: LogConfig = msgspec.field(default_factory=LogConfig)
    """For logs whose topics aren't known."""


class LogListeners(msgspec.Struct, frozen=True):
    """The listeners for events of logs, in lists that all directories share."""

    flushed: list[Callable[[Log], None]] = msgspec.field(default_factory=list)
    """Called whenever a log's recovery point may have risen."""
    deleted: list[DeletionListener] = msgspec.field(default_factory=list)
    freed: list[Callable[[], None]] = msgspec.field(default_factory=list)
    """Called when a hole was made."""
    erasing: list[ErasingListener] = msgspec.field(default_factory=list)

    def on_flushed(self, log: Log) -> None:
        """Reports that a log's recovery point may have risen, unless the log is the copy of a move."""
        for listener in () if log.is_future else self.flushed:
            listener(log)

    def on_removed(self, log: Log, removed: list[RemovedSegment]) -> None:
        """Reports segments that left a log below its start, unless the log is the copy of a move."""
        log_start_offset = log.log_start_offset
        for deletions, on_first in () if log.is_future else self.deleted:
            if not deletions:
                on_first()
            deletions.append(PrefixDeletion(log, log_start_offset, log_start_offset, removed))


class DirectoryPorts(msgspec.Struct, frozen=True, kw_only=True):
    """The ports of the logs of one directory, and what they share with the other directories."""

    filesystem: FileSystem
    clock: Clock
    committer: Committer
    worker: Worker
    random: Random
    cache: SegmentCache
    erasing: Allowance = msgspec.field(default_factory=Allowance)
    """The bytes that rewriting for erasures may read and write now."""
