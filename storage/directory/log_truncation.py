"""Truncates the logs of one directory in steps, so that no crash mixes old records with new ones.

Guards: nothing is appended to a log (`Log.truncating`) from the cut until the cut, the lowered log start and the
lowered recovery point are on the disk. A log start that falls is journalled after the cut: a crash in between leaves an
empty log at the old start, not deleted records. A log start that rises, because the log restarts at a later offset, is
journalled before. A truncation ends rises in progress, because other records may soon have these offsets.

A step that lacks room or a descriptor is repeated by `retry`, and the log stays `truncating`; only a cut that has
changed nothing is refused. Each step first checks that its log is still here: the files of a deleted or moved log are
missing, which isn't the disk's fault. A stop begins no step: a log whose new start is journalled restarts there at the
next start.

Source: the models of log starts and log ends; Kafka's Partition.truncateTo has no such steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from lowtide.protocol.types import LeaderEpoch, Offset, TopicPartition
from lowtide.runtime.committer import Barrier
from lowtide.storage.directory.file_removal import FileRemoval
from lowtide.storage.directory.log_settings import DirectoryPorts
from lowtide.storage.directory.log_starts import LogStartIncrement
from lowtide.storage.directory.offset_checkpoint import OffsetCheckpoint
from lowtide.storage.errors import StorageError, is_passing, stopping_error
from lowtide.storage.log.log import Log
from lowtide.storage.log.log_values import Truncation
from lowtide.storage.log.truncation import LogTruncation
from lowtide.storage.log_start.journal import LogStartJournal
from lowtide.storage.log_start.journal_format import OnDurable


class _PendingCut(msgspec.Struct, frozen=True, kw_only=True):
    """A log that is cut in memory and not yet on the disk."""

    log: Log
    on_settled: OnDurable
    must_journal: bool
    """Whether its log start is journalled once the cut is durable."""


class _PendingRestart(msgspec.Struct, frozen=True, kw_only=True):
    """A log that will restart at another offset."""

    log: Log
    offset: Offset
    leader_epoch: LeaderEpoch
    is_wanted: Callable[[], bool]
    on_settled: OnDurable


class LogTruncations:
    """Truncates the logs of one directory. Used from the event loop only."""

    def __init__(
        self,
        ports: DirectoryPorts,
        logs: Mapping[TopicPartition, Log],
        removal: FileRemoval,
        recovery_points: OffsetCheckpoint,
        journal: LogStartJournal,
        on_failure: Callable[[OSError | StorageError], None],
    ) -> None:
        self._ports = ports
        self._logs = logs
        self._removal = removal
        self._recovery_points = recovery_points
        self._journal = journal
        self._on_failure = on_failure
        self._stalled: list[Callable[[], None]] = []
        self._is_stopped = False

    def truncate(self, log: Log, offset: Offset, on_settled: OnDurable) -> None:
        """Cuts a log at `offset`, its new end, at once; calls `on_settled` later. Only then may records follow.

        A log start above `offset` falls too. At or above the log end only leader epochs are dropped. If the log is
        unchanged, `on_settled` gets an error that passes (`is_passing`), and the caller may try again.
        """
        start, had_rise = log.log_start_offset, log.log_start_pending > log.log_start_offset
        try:
            truncation = LogTruncation(log).truncate_to(offset, now_ms=self._ports.clock.wall_ms())
        except StorageError as error:
            self._refuse(error, on_settled)
            return
        must_journal = had_rise or log.log_start_offset < start
        if truncation.barrier is None and not truncation.lacks_barrier and not must_journal:
            self._ports.committer.submit(Barrier(), on_settled)
            return
        log.truncating += 1
        self._settle(_PendingCut(log=log, on_settled=on_settled, must_journal=must_journal), truncation)

    def restart_at(
        self, log: Log, offset: Offset, leader_epoch: LeaderEpoch, is_wanted: Callable[[], bool], on_settled: OnDurable
    ) -> None:
        """Empties a log, which then starts and ends at `offset`, at or above its end; then calls `on_settled`.

        `leader_epoch` is that of the leader whose log starts there. `is_wanted` is called once the journal has the
        offset: if it returns False, the journal is corrected and the log stays. `on_settled` gets an error that passes
        if the journal had no room.
        """
        beginning = _PendingRestart(
            log=log, offset=offset, leader_epoch=leader_epoch, is_wanted=is_wanted, on_settled=on_settled
        )
        log.truncating += 1
        self._journal.request_log_starts([LogStartIncrement(log, offset).entry], partial(self._on_begun, beginning))

    def make_durable_later(self, log: Log) -> None:
        """Schedules the sync of a cut for which a start had no room; nothing is appended before. Start code."""
        log.truncating += 1
        settling = _PendingCut(log=log, on_settled=lambda _error: None, must_journal=False)
        self._stalled.append(partial(self._make_durable, settling))

    def retry(self) -> None:
        """Repeats steps that lacked room or a descriptor. Called about once a second."""
        stalled, self._stalled = self._stalled, []
        for step in stalled:
            step()

    def stop(self) -> None:
        """Cuts nothing more: the last answers of the journal come when committers are closed."""
        self._is_stopped = True

    # A new beginning

    def _on_begun(self, beginning: _PendingRestart, error: OSError | None) -> None:
        log = beginning.log
        if error is not None:
            if is_passing(error):
                log.truncating -= 1
            beginning.on_settled(error)
        elif self._is_stopped:
            beginning.on_settled(stopping_error(log.directory))
        elif not self._is_here(log):
            beginning.on_settled(None)
        elif beginning.is_wanted():
            self._empty(beginning)
        else:
            self._write_start(
                _PendingCut(log=log, on_settled=beginning.on_settled, must_journal=True), self._on_settled
            )

    def _empty(self, beginning: _PendingRestart) -> None:
        log = beginning.log
        try:
            truncation = LogTruncation(log).truncate_fully_and_start_at(
                beginning.offset, leader_epoch=beginning.leader_epoch, now_ms=self._ports.clock.wall_ms()
            )
        except StorageError as error:
            if error.is_passing:
                self._stalled.append(partial(self._on_begun, beginning, None))
            else:
                self._fail(error, beginning.on_settled)
        else:
            self._settle(_PendingCut(log=log, on_settled=beginning.on_settled, must_journal=False), truncation)

    # What follows a cut

    def _settle(self, settling: _PendingCut, truncation: Truncation) -> None:
        self._removal.remove_segments(truncation.removed, self._ports.clock.monotonic_ms())
        if truncation.lacks_barrier:
            self._stalled.append(partial(self._make_durable, settling))
        else:
            self._submit(settling, truncation.barrier or Barrier())

    def _make_durable(self, settling: _PendingCut) -> None:
        if not self._is_here(settling.log):
            settling.on_settled(None)
            return
        try:
            barrier = LogTruncation(settling.log).barrier(now_ms=self._ports.clock.wall_ms())
        except StorageError as error:
            if error.is_passing:
                self._stalled.append(partial(self._make_durable, settling))
            else:
                self._fail(error, settling.on_settled)
        else:
            self._submit(settling, barrier)

    def _submit(self, settling: _PendingCut, barrier: Barrier) -> None:
        self._ports.committer.submit(barrier, partial(self._on_cut, settling, barrier))

    def _on_cut(self, settling: _PendingCut, barrier: Barrier, error: OSError | None) -> None:
        if not self._is_here(settling.log):
            settling.on_settled(None)
        elif error is None:
            if settling.must_journal:
                self._write_start(settling, self._on_journalled)
            else:
                self._on_journalled(settling, None)
        elif is_passing(error):
            settling.log.files.sync.on_failed(barrier)
            self._stalled.append(partial(self._make_durable, settling))
        else:
            self._fail(error, settling.on_settled)

    def _write_start(self, settling: _PendingCut, on_written: Callable[[_PendingCut, OSError | None], None]) -> None:
        """Journals where the log starts, or will start, after every rise in progress.

        A log that has left has no entry any more.
        """
        log = settling.log

        def written(error: OSError | None) -> None:
            if error is not None and is_passing(error):
                self._stalled.append(partial(self._write_start, settling, on_written))
            else:
                on_written(settling, error)

        if self._is_here(log):
            self._journal.request_log_starts([LogStartIncrement(log, log.log_start_pending).entry], written)
        else:
            settling.on_settled(None)

    def _on_journalled(self, settling: _PendingCut, error: OSError | None) -> None:
        if error is not None or not self._is_here(settling.log):
            settling.on_settled(error)
        else:
            self._recovery_points.write_and_call(partial(self._on_settled, settling))

    @staticmethod
    def _on_settled(settling: _PendingCut, error: OSError | None) -> None:
        """Allows appends again. After an error nothing is appended to the log any more."""
        if error is None:
            settling.log.truncating -= 1
        settling.on_settled(error)

    def _is_here(self, log: Log) -> bool:
        """Returns whether this log is still the directory's: another one may have its name by now."""
        return self._logs.get(log.topic_partition) is log

    def _refuse(self, error: StorageError, on_settled: OnDurable) -> None:
        if error.is_passing:
            refused = OSError(error.error_number, error.reason, error.path)
            self._ports.committer.submit(Barrier(), lambda _error: on_settled(refused))
        else:
            self._fail(error, on_settled)

    def _fail(self, error: OSError | StorageError, on_settled: OnDurable) -> None:
        self._on_failure(error)
        failed = error if isinstance(error, OSError) else OSError(error.reason)
        self._ports.committer.submit(Barrier(), lambda _error: on_settled(failed))
