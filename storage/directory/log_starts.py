"""The way of a log start offset in storage: requested, durable, visible.

A delete, a rule of retention and a leader's answer all raise a log start by the same value, a `LogStartIncrement`, and in the same steps:

    request_log_start         the offset is pending; the journal of its directory writes it; nothing is visible
    on_log_starts_durable     the entry can't be lost any more
    make_log_start_visible    records below it can't be read; whole segments below it leave the log

Guards: a log start is visible only when the journal has it durably (rule DR1); an increment that a truncation has overtaken is never made
visible, for the records above its end are others (`storage/log/offsets.py`, `cut`); an increment that spans directories is reported when
it is durable in all of them.

It doesn't know leaders: that an offset may be deleted is decided by its callers. Source: KIP-107.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from lowtide.protocol.types import Offset, TopicPartition
from lowtide.runtime.clock import Clock
from lowtide.runtime.committer import Barrier, Committer
from lowtide.storage.directory.file_removal import FileRemoval
from lowtide.storage.directory.log_settings import OnPrefixDeleted
from lowtide.storage.log.log import Log
from lowtide.storage.log_start.journal import LogStartJournal, OnDurable
from lowtide.storage.log_start.journal_format import LogStartEntry


class LogStartIncrement(NamedTuple):
    """Where a log is to start: what is asked of it, journalled and made visible."""

    log: Log
    log_start_offset: Offset

    @property
    def entry(self) -> LogStartEntry:
        """What the journal writes of it."""
        return (self.log.topic_id, self.log.topic_partition.partition, self.log_start_offset)


class DirectoryParts(msgspec.Struct, frozen=True, kw_only=True):
    """What the log starts of a directory need of it."""

    logs: Mapping[TopicPartition, Log]
    """As they come and go."""
    clock: Clock
    removal: FileRemoval


class DirectoryLogStarts:
    """The log starts of one directory, behind its journal. Used from the event loop only."""

    def __init__(self, parts: DirectoryParts) -> None:
        self.on_prefix_deleted: OnPrefixDeleted = lambda _log, _before, _removed: None
        """Called when a log start has risen, with what it was before, and the segments that left the log."""
        self._logs = parts.logs
        self._clock = parts.clock
        self._removal = parts.removal
        self._journal: LogStartJournal | None = None
        self._is_stopped = False

    def begin(self, journal: LogStartJournal) -> None:
        """The directory's journal is open."""
        self._journal = journal

    def stop(self) -> None:
        """Journals nothing any more by itself."""
        self._is_stopped = True

    def request_log_starts(self, increments: Sequence[LogStartIncrement], on_durable: OnDurable) -> None:
        """See `LogStarts.request_log_starts`; all of the logs are of this directory."""
        for log, offset in increments:
            log.request_log_start(offset)
        # In the journal the last one wins, so a lower start than one that is on its way, or there, must not follow it.
        entries = [LogStartIncrement(log, log.log_start_pending).entry for log, _ in increments]
        assert self._journal is not None
        self._journal.request_log_starts(entries, partial(self._on_log_starts_durable, increments, on_durable))

    def _on_log_starts_durable(self, increments: Sequence[LogStartIncrement], on_durable: OnDurable, error: OSError | None) -> None:
        if error is None:
            logs = self._logs
            overtaken = []
            for log, offset in increments:
                if logs.get(log.topic_partition) is log and not self._make_log_start_visible(log, offset):
                    overtaken.append(LogStartIncrement(log, log.log_start_offset).entry)
            if overtaken and not self._is_stopped and self._journal is not None:
                # A truncation came between, and whatever is written above its end now wasn't meant: the journal may not say so either.
                self._journal.request_log_starts(overtaken, lambda _error: None)
        on_durable(error)

    def _make_log_start_visible(self, log: Log, offset: Offset) -> bool:
        """Returns False if the increment was overtaken by a truncation."""
        before, removed = log.log_start_offset, log.make_log_start_visible(offset)
        if removed:
            self._removal.remove_segments(removed, self._clock.monotonic_ms() + log.config.file_delete_delay_ms)
        self.on_prefix_deleted(log, before, removed)
        return log.log_start_offset >= offset


class LogStarts:
    """The log starts of all directories of a broker."""

    def __init__(self, directories: Mapping[str, DirectoryLogStarts], committer: Committer) -> None:
        """`directories` by their paths; `committer` of any of them, for answers that need no disk."""
        self._directories = directories
        self._committer = committer

    def request_log_starts(self, increments: Sequence[LogStartIncrement], on_durable: OnDurable) -> None:
        """Raises log start offsets, each at or below its high watermark, as the caller has checked.

        At once each log's `log_start_pending` rises; nothing is visible. When all are durable, the logs' starts rise (but for a log that
        was deleted, or truncated below meanwhile), segments wholly below go in the background, and `on_durable(None)` is called: never
        from within this call. One frame in the journal of each directory concerned, whatever the number of partitions.
        `on_durable` is given an error if a directory is, or goes, offline; the other directories' starts rise.
        """
        groups: dict[str, list[LogStartIncrement]] = {}
        for increment in increments:
            groups.setdefault(increment.log.parent_directory, []).append(increment)
        together = all_together(len(groups), on_durable)
        for path, group in groups.items():
            self._directories[path].request_log_starts(group, together)
        if not groups:
            self._committer.submit(Barrier(), lambda _error: on_durable(None))


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
