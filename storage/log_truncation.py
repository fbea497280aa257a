"""Truncations of the logs of one directory, carried out so that no crash mixes what was cut with what is new.

Guards: nothing is appended to a log (`Log.unsettled`) from the moment in which it is cut until the cut, the log start that falls with it,
and the lowered recovery point are on the disk. A log start that falls is journalled after the cut: a crash in between leaves an empty log
at the old start, not records that had been deleted. One that rises, with a log that begins anew at another place, is journalled before.
A truncation ends the rises that are under way, for the records that they were meant for may be others soon.

Source: the models of log starts and log ends say what must hold; Kafka's Partition.truncateTo has no such steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from lowtide.protocol.types import LeaderEpoch, Offset, TopicPartition
from lowtide.runtime.committer import Barrier
from lowtide.storage.errors import StorageError
from lowtide.storage.file_removal import FileRemoval
from lowtide.storage.log import Log
from lowtide.storage.log_settings import DirectoryPorts
from lowtide.storage.log_start import LogStartJournal, OnDurable
from lowtide.storage.log_values import Truncation
from lowtide.storage.offset_checkpoint import OffsetCheckpoint


class LogTruncations:
    """See the module. Used from the event loop only."""

    def __init__(
        self,
        ports: DirectoryPorts,
        logs: Mapping[TopicPartition, Log],
        removal: FileRemoval,
        recovery_points: OffsetCheckpoint,
        journal: Callable[[], LogStartJournal],
        on_failure: Callable[[OSError | StorageError], None],
    ) -> None:
        """`logs` are those of the directory, as they come and go; `on_failure` takes it offline."""
        self._ports = ports
        self._logs = logs
        self._removal = removal
        self._recovery_points = recovery_points
        self._journal = journal
        self._on_failure = on_failure

    def truncate(self, log: Log, offset: Offset, on_settled: OnDurable) -> None:
        """Cuts a log at `offset`, its new end, at once. `on_settled` is called later: from then on records may follow.

        Below the log start that falls, too. At or above the log end nothing goes but leader epochs.
        """
        start, had_rise = log.log_start_offset, log.log_start_pending > log.log_start_offset
        try:
            truncation = log.truncate_to(offset, now_ms=self._ports.clock.wall_ms())
        except StorageError as error:
            self._fail(error, on_settled)
            return
        must_journal = had_rise or log.log_start_offset < start
        if truncation.barrier is None and not must_journal:
            self._ports.committer.submit(Barrier(), on_settled)
            return
        log.unsettled += 1
        self._settle(log, truncation, on_settled, must_journal=must_journal)

    def begin_anew(self, log: Log, offset: Offset, leader_epoch: LeaderEpoch, is_wanted: Callable[[], bool], on_settled: OnDurable) -> None:
        """Empties a log, which then starts and ends at `offset`, at or above its end: in the journal, on the disk, then `on_settled`.

        `leader_epoch` is that of the leader whose log starts there. `is_wanted` is asked in between: if it isn't any more, the journal is
        put right and the log stays as it is.
        """

        def journalled(error: OSError | None) -> None:
            if error is not None:
                on_settled(error)
            elif is_wanted():
                self._empty(log, offset, leader_epoch, on_settled)
            else:
                self._journal_start(log, partial(self._on_settled, log, on_settled))

        log.unsettled += 1
        self._journal().accept([(log.topic_id, log.topic_partition.partition, offset)], journalled)

    def _empty(self, log: Log, offset: Offset, leader_epoch: LeaderEpoch, on_settled: OnDurable) -> None:
        try:
            truncation = log.truncate_fully_and_start_at(offset, leader_epoch=leader_epoch, now_ms=self._ports.clock.wall_ms())
        except StorageError as error:
            self._fail(error, on_settled)
        else:
            self._settle(log, truncation, on_settled, must_journal=False)

    def _settle(self, log: Log, truncation: Truncation, on_settled: OnDurable, *, must_journal: bool) -> None:
        def cut(error: OSError | None) -> None:
            if error is not None:
                self._fail(error, on_settled)
            elif must_journal:
                self._journal_start(log, journalled)
            else:
                journalled(None)

        def journalled(error: OSError | None) -> None:
            if error is not None:
                on_settled(error)
            else:
                self._recovery_points.write_and_tell(partial(self._on_settled, log, on_settled))

        self._removal.remove_segments(truncation.removed, self._ports.clock.monotonic_ms())
        self._ports.committer.submit(truncation.barrier or Barrier(), cut)

    def _journal_start(self, log: Log, on_durable: OnDurable) -> None:
        """Writes where the log starts, or will: behind every rise that was on its way. A log that is gone has no entry any more."""
        if self._logs.get(log.topic_partition) is log:
            self._journal().accept([(log.topic_id, log.topic_partition.partition, log.log_start_pending)], on_durable)
        else:
            on_durable(None)

    @staticmethod
    def _on_settled(log: Log, on_settled: OnDurable, error: OSError | None) -> None:
        """After an error nothing is appended to the log any more."""
        if error is None:
            log.unsettled -= 1
        on_settled(error)

    def _fail(self, error: OSError | StorageError, on_settled: OnDurable) -> None:
        self._on_failure(error)
        failed = error if isinstance(error, OSError) else OSError(error.reason)
        self._ports.committer.submit(Barrier(), lambda _error: on_settled(failed))
