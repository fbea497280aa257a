"""How a log start offset is raised: requested, durable, visible.

A delete, a rule of retention and a leader's answer all raise a log start by the same value, a `LogStartIncrement`, and
in the same steps:

    request_log_start         the offset is pending; the directory's journal writes it; nothing is visible
    on_log_starts_durable     the entry can't be lost any more
    make_log_start_visible    records below it can't be read; whole segments below it leave the log

Guards: a log start is visible only when the journal has it durably (rule DR1); an increment that a truncation has
overtaken is never made visible, for the records above its end are others (`storage/log/offsets.py`, `cut`); an
increment over several directories is reported when it is durable in all of them.

Leaders are unknown here: callers decide whether an offset may be deleted. Source: KIP-107.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from lowtide.protocol.types import Offset, TopicPartition
from lowtide.runtime.clock import Clock
from lowtide.runtime.committer import Barrier, Committer
from lowtide.storage.directory.directory_holes import DirectoryHoles
from lowtide.storage.directory.file_removal import FileRemoval
from lowtide.storage.directory.log_settings import DeletionListener, PrefixDeletion
from lowtide.storage.log.log import Log
from lowtide.storage.log.segments.segment_files import RemovedSegment
from lowtide.storage.log.segments.unfreed import MUCH_BYTES
from lowtide.storage.log_start.journal import LogStartJournal
from lowtide.storage.log_start.journal_format import LogStartEntry, OnDurable


class LogStartIncrement(NamedTuple):
    """Where a log will start: requested, journalled and made visible."""

    log: Log
    log_start_offset: Offset

    @property
    def entry(self) -> LogStartEntry:
        """The entry of the journal."""
        return (self.log.topic_id, self.log.topic_partition.partition, self.log_start_offset)


class DirectoryLogStarts:
    """Raises the log starts of one directory, behind its journal. Used from the event loop only."""

    def __init__(
        self,
        journal: LogStartJournal,
        logs: Mapping[TopicPartition, Log],
        clock: Clock,
        removal: FileRemoval,
        listeners: Sequence[DeletionListener],
        freeing: tuple[DirectoryHoles, dict[Log, None]],
    ) -> None:
        """`logs` are the directory's, as they come and go.

        `listeners` are called when a log start has risen, or segments below one have left a log. `freeing` has what
        makes holes of deleted records, and the logs to be erased, to which it adds.
        """
        self._holes, self._erased = freeing
        self._journal = journal
        self._logs = logs
        self._clock = clock
        self._removal = removal
        self._listeners = listeners
        self._is_stopped = False

    def stop(self) -> None:
        """Journals nothing more by itself."""
        self._is_stopped = True

    def request_log_starts(self, increments: Sequence[LogStartIncrement], on_durable: OnDurable) -> None:
        """Raises log starts of this directory: see `LogStarts.request_log_starts`."""
        for log, offset in increments:
            log.request_log_start(offset)
        # The last entry in the journal wins, so a lower start must not follow a higher one that is there or under way.
        entries = [(log.topic_id, log.topic_partition.partition, log.log_start_pending) for log, _ in increments]
        self._journal.request_log_starts(entries, partial(self._on_log_starts_durable, increments, on_durable))

    def _on_log_starts_durable(
        self, increments: Sequence[LogStartIncrement], on_durable: OnDurable, error: OSError | None
    ) -> None:
        deleted: list[PrefixDeletion] = []
        if error is None:
            logs = self._logs
            overtaken = []
            for log, offset in increments:
                if logs.get(log.topic_partition) is log and not self._make_log_start_visible(log, offset, deleted):
                    overtaken.append(LogStartIncrement(log, log.log_start_offset).entry)
            if overtaken and not self._is_stopped:
                # A truncation came between: the journal must not keep a start above its end.
                self._journal.request_log_starts(overtaken, lambda _error: None)
            if self._holes.urgent:
                self._holes.begin_urgent_after_answers()
        try:
            on_durable(error)
        finally:
            # Those who wait for an answer come before those who only count.
            for deletions, on_first in self._listeners if deleted else ():
                if not deletions:
                    on_first()
                deletions.extend(deleted)

    def _make_log_start_visible(self, log: Log, offset: Offset, deleted: list[PrefixDeletion]) -> bool:
        """Adds to `deleted` what listeners get. Returns False if a truncation overtook the increment."""
        before, removed = log.log_start_offset, make_log_start_visible(log, offset)
        if removed:
            self._removal.remove_segments(removed, self._clock.monotonic_ms() + log.config.file_delete_delay_ms)
        after = log.log_start_offset
        if after > before:
            active, bases = log.segments.active, log.segments.bases
            if active.size - active.punched >= self._holes.least_bytes or len(bases) > 1:
                self._holes.schedule(log)
                if log.frees_many_bytes:
                    self._holes.mark_urgent(log)
            if log.config.lowtide_delete_erase:
                self._erased[log] = None
        if not log.is_future and (removed or after > before):
            deleted.append(PrefixDeletion(log, before, after, removed))
        return after >= offset


def make_log_start_visible(log: Log, offset: Offset) -> list[RemovedSegment]:
    """Raises the log start to `offset`, which is durable in the journal. A lower one changes nothing.

    Returns the segments wholly below it, never the active one: a worker renames and later unlinks their files. An
    offset above `log_start_pending` was overtaken by a truncation, and must not delete what was written since.
    """
    if offset > log.log_start_pending or not log.move_log_start(offset):
        return []
    # Producers stay known without records: they continue, and a retry of the last batch is recognised (KAFKA-7190).
    segments = log.segments
    bases, active = segments.bases, segments.active
    may_free_many = active.size - active.punched >= MUCH_BYTES or len(bases) > 1
    removed = [] if len(bases) == 1 or bases[1] > offset else log.files.remove_below(offset, log.config)
    log.frees_many_bytes = may_free_many and segments.unfreed_bytes(offset, log.log_end_offset) >= MUCH_BYTES
    return removed


class LogStarts:
    """The log starts of all directories of a broker."""

    def __init__(self, directories: Mapping[str, DirectoryLogStarts], committer: Committer) -> None:
        """`directories` are by path, as they are opened; `committer` is that of any, for answers that need no disk."""
        self._directories = directories
        self._committer = committer

    def request_log_starts(self, increments: Sequence[LogStartIncrement], on_durable: OnDurable) -> None:
        """Raises log start offsets, each at or below its high watermark, as the caller has checked.

        Each log's `log_start_pending` rises at once; nothing is visible. When all are durable, the logs' starts rise
        (except of a log that was deleted, or truncated below), segments wholly below go in the background, and
        `on_durable(None)` is called, never from within this call. Each directory's journal gets one frame, however many
        partitions. `on_durable` gets an error if a directory is or goes offline; the starts in other directories rise.
        """
        if len(increments) == 1:
            self._directories[increments[0].log.parent_directory].request_log_starts(increments, on_durable)
            return
        groups: dict[str, list[LogStartIncrement]] = {}
        for increment in increments:
            groups.setdefault(increment.log.parent_directory, []).append(increment)
        together = all_together(len(groups), on_durable)
        for path, group in groups.items():
            self._directories[path].request_log_starts(group, together)
        if not groups:
            self._committer.submit(Barrier(), lambda _error: on_durable(None))


def all_together(count: int, on_done: OnDurable) -> OnDurable:
    """Calls `on_done` once, after `count` answers, with the first error."""
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
