"""Flushes the logs of one directory: due logs with one barrier each, and all logs together at a stop.

Guards: the first flush of a log includes the file that ties its folder to its topic. A lack of room or of a descriptor
postpones a flush; any other failure is the directory's, unless the log has left it. Flushes in progress hold only few
of the files that may be open, because reads need the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem import FileToSync
from lowtide.storage.checkpoint import PARTITION_METADATA, carry_out, joined
from lowtide.storage.directory.log_settings import DirectoryPorts
from lowtide.storage.errors import StorageError, is_passing, storage_error
from lowtide.storage.log.durability import LogDurability
from lowtide.storage.log.log import Log

LOGS_PER_SYNC = 64
"""How many logs a stop syncs at once."""

FLUSHES_UNDER_WAY_MAX = 64
"""How many logs are flushed at once while serving."""


class LogFlusher:
    """Flushes the logs of one directory. Used from the event loop only."""

    def __init__(
        self,
        ports: DirectoryPorts,
        on_flushed: Callable[[Log], None],
        on_failure: Callable[[OSError | StorageError], None],
    ) -> None:
        """`on_flushed` is called when a log's recovery point may have risen."""
        self._filesystem = ports.filesystem
        self._files = ports.cache.files
        self._committer = ports.committer
        self._clock = ports.clock
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._flushed_ms: dict[Log, int] = {}
        self._new: set[Log] = set()
        self._under_way: dict[Log, int] = {}
        """Logs that are flushed, and how many open files each flush holds."""
        self._upkeep_queue: dict[Log, None] = {}
        """Logs that may be due: a segment was closed, or time alone can make them due."""
        self._waiting: dict[Log, None] = {}
        """Logs that wait until others are done, in the order in which they fell due."""
        self._stopped = False

    def add(self, log: Log, *, is_new: bool) -> None:
        """Adds a log. `is_new`: the file with its topic id was written just now."""
        self._flushed_ms[log] = self._clock.monotonic_ms()
        log.upkeep_queue = self._upkeep_queue
        if log.flush_wanted or log.config.asks_for_flushes:
            self._upkeep_queue[log] = None
        if is_new:
            self._new.add(log)

    def drop(self, log: Log) -> None:
        """Forgets a log that has left the directory; errors of its flush in progress are ignored."""
        self._flushed_ms.pop(log, None)
        self._new.discard(log)
        self._waiting.pop(log, None)
        log.upkeep_queue = {}
        self._upkeep_queue.pop(log, None)

    def is_flushing(self, log: Log) -> bool:
        """Returns whether a flush of the log is in progress."""
        return log in self._under_way

    def stop(self) -> None:
        """Begins nothing more; flushes in progress are still answered."""
        self._stopped = True
        self._waiting.clear()

    def flush(self, log: Log) -> None:
        """Begins to flush a log, perhaps after others, unless it is clean or already being flushed."""
        if log in self._under_way or log not in self._flushed_ms or self._stopped:
            return
        if self._is_full:
            self._waiting[log] = None
        else:
            self._begin(log)

    @property
    def _is_full(self) -> bool:
        """Whether no other flush may begin. One always may, because other directories could hold all files."""
        under_way = len(self._under_way)
        return under_way >= FLUSHES_UNDER_WAY_MAX or (under_way > 0 and not self._files.may_flush)

    def _begin(self, log: Log) -> None:
        try:
            barrier = self._with_identity(log, LogDurability(log).flush_barrier())
        except StorageError as error:
            if error.is_passing:
                log.flush_wanted = True  # The next tick tries again: deletes, which need no room, may have made some.
                log.upkeep_queue[log] = None
            else:
                self._fail(error)
            return
        self._flushed_ms[log] = self._clock.monotonic_ms()
        if barrier is not None:
            held = sum(type(file) is not FileToSync for file in barrier.files)
            self._under_way[log] = held
            self._files.flush_begins(held)
            self._committer.submit(barrier, partial(self._on_done, log, log.log_end_offset, barrier))

    def logs_to_check(self) -> list[Log]:
        """Returns the logs for which `flush_due` may have something to do."""
        return list(self._upkeep_queue)

    def flush_due(self, log: Log, now_ms: int) -> None:
        """Flushes a log if a segment was rolled, or `flush.messages` or `flush.ms` is reached."""
        unflushed, config = log.log_end_offset - log.recovery_point, log.config
        if (
            log.flush_wanted
            or unflushed >= config.flush_messages
            or (unflushed and now_ms - self._flushed_ms[log] >= config.flush_ms)
        ):
            self.flush(log)
        if not log.flush_wanted and not config.asks_for_flushes:
            self._upkeep_queue.pop(log, None)

    def flush_now(self, log: Log) -> None:
        """Makes a log durable at once. Start code. Errors: StorageError; the whole log is then due again."""
        barrier = self._with_identity(log, LogDurability(log).flush_barrier())
        if barrier is None:
            return
        try:
            carry_out(self._filesystem, barrier)
        except OSError as error:
            LogDurability(log).on_flush_failed(log.log_end_offset, barrier)
            raise storage_error(log.directory, error) from error
        LogDurability(log).on_flushed(log.log_end_offset)

    def close(self, logs: Iterable[Log]) -> None:
        """Closes logs: writes the files of a clean stop and makes everything durable. Errors: OSError, StorageError."""
        left = list(logs)
        while left:
            some, left = left[:LOGS_PER_SYNC], left[LOGS_PER_SYNC:]
            barriers = [self._with_identity(log, LogDurability(log).close()) for log in some]
            carry_out(self._filesystem, joined(barrier for barrier in barriers if barrier is not None))
            for log in some:
                LogDurability(log).on_flushed(log.log_end_offset)
                for file in LogDurability(log).files_to_close():
                    file.close()

    def _with_identity(self, log: Log, barrier: Barrier | None) -> Barrier | None:
        """Adds the file with the topic id to the log's first barrier."""
        if barrier is None or log not in self._new:
            return barrier
        identity = FileToSync(self._filesystem, f"{log.directory}/{PARTITION_METADATA}")
        self._new.discard(log)
        return joined([Barrier(files=(identity,)), barrier])

    def _on_done(self, log: Log, offset: int, barrier: Barrier, error: OSError | None) -> None:
        self._files.flush_ends(self._under_way.pop(log))
        if log not in self._flushed_ms:
            pass  # It was deleted or moved away meanwhile, and its files with it.
        elif error is None:
            LogDurability(log).on_flushed(offset)
            self._on_flushed(log)
            if log.flush_is_due:
                self.flush(log)
        elif is_passing(error):
            LogDurability(log).on_flush_failed(offset, barrier)
        else:
            self._fail(error)
        while self._waiting and not self._is_full:
            following = next(iter(self._waiting))
            del self._waiting[following]
            self._begin(following)

    def _fail(self, error: OSError | StorageError) -> None:
        """Reports a failure, which takes the directory offline, and begins nothing more."""
        self.stop()
        self._on_failure(error)
