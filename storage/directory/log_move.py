"""The move of one log into another log directory: its copy there, the future log, and its progress (KIP-113).

    begun ── copied ──> level ── flushed, intent on the disk ──> renamed: the partition's log

The copy is an ordinary log of the other directory, in a folder that ends in `-future`; requests don't see it. It
receives the batches unchanged, and so offsets, leader epochs, holes and transactions. Other state is copied at the end
(`take_over`).

Guards: the copy has no record that its source doesn't have, except records that the source has compacted away or that
lie below its start. So after a truncation, and at a start, records that diverge by leader epochs are cut first. The
copy replaces its source only if it has everything that the source has, on the disk everything that the source has on
the disk, and its topic id.

Source: KIP-113; Kafka's ReplicaAlterLogDirsThread.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final

from lowtide.protocol.types import NO_LEADER_EPOCH, Offset
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem import FileToSync
from lowtide.storage.checkpoint import PARTITION_METADATA
from lowtide.storage.directory.directory_erasures import EraseFailedError
from lowtide.storage.directory.log_starts import LogStartIncrement
from lowtide.storage.directory.move_place import AwaitedErasure, relocate, take_over
from lowtide.storage.errors import StorageError, is_passing, storage_error
from lowtide.storage.folder_names import future_folder_name
from lowtide.storage.log.log_values import FollowerAppend
from lowtide.storage.log_directory import MOVING_TO

if TYPE_CHECKING:
    from lowtide.protocol.erasure_record import EraseGoal
    from lowtide.runtime.filesystem import FileSystem
    from lowtide.storage.directory.directory_erasures import OnErased
    from lowtide.storage.directory.directory_logs import DirectoryLogs
    from lowtide.storage.directory.move_place import MovePlace
    from lowtide.storage.log.log import Log
    from lowtide.storage.log.segments.segment_file import FileSlice

CHUNK_BYTES_MIN: Final = 16 << 10
CHUNK_BYTES_MAX: Final = 1 << 20
"""The bytes of one read, in a worker; they are appended in the loop, so there are fewer if batches are small."""

CHUNK_NS: Final = 1_000_000
"""The time that appending one chunk should take."""

FLUSH_BYTES: Final = 32 << 20
"""Bytes copied between two flushes of a copy."""

REMOVED_TO: Final = 2**63 - 1
"""Above all offsets."""


class LogMove:
    """One move. Used from the event loop only."""

    def __init__(self, source: Log, target: DirectoryLogs, place: MovePlace, *, future: Log | None = None) -> None:
        """`future` is the copy that a start has found. Nothing is done before `begin` or `step`."""
        self.source = source
        self.target = target
        self.future = future
        """None while a folder of an earlier copy is being removed."""
        self._place = place
        self._is_checked = future is None
        """Whether the copy is known to be a part of its source."""
        self._is_reading = False
        self._is_raising = False
        """Whether the copy's log start is on its way to the journal."""
        self._is_flushed = False
        """Whether most of the copy is on the disk, so that little is left for the end."""
        self._has_intent = False
        """Whether the source's folder says, durably, that the copy may take its place."""
        self._is_noting = False
        """Whether the intent is being written."""
        self._readings = 0
        """Raised to invalidate what is being read."""
        self._chunk_bytes = 64 << 10
        self._unflushed_bytes = 0
        self._erasures: list[AwaitedErasure] = []

    @property
    def lag(self) -> int:
        """How many offsets the copy is behind."""
        if self.future is None:
            return self.source.log_end_offset - self.source.log_start_offset
        return max(self.source.log_end_offset - max(self.future.log_end_offset, self.source.log_start_offset), 0)

    @property
    def needs_start(self) -> bool:
        """Whether the copy still has records that the source has deleted."""
        return self.future is None or self.future.log_start_offset < self.source.log_start_offset

    @property
    def has_begun_intent(self) -> bool:
        """Whether the source's folder has the intent, or is about to get it."""
        return self._has_intent or self._is_noting

    @property
    def durable_to(self) -> Offset:
        """The exclusive end of the source's records that are in the copy and on the disk."""
        return (
            self.source.log_start_offset if self.future is None or not self._is_checked else self.future.recovery_point
        )

    def on_truncated(self) -> None:
        """Invalidates the current read, and perhaps the copy: the source was cut or restarted."""
        self._is_checked = False
        self._readings += 1

    def erase(self, goal: EraseGoal, on_done: OnErased) -> None:
        """Erases the records of a goal from the copy too, then calls `on_done`."""
        self._readings += 1  # What is being read may have them.
        self._erasures.append(AwaitedErasure(goal, on_done))

    def end(self) -> None:
        self._readings += 1
        erasures, self._erasures = self._erasures, []
        for request in erasures:
            if not request.is_asked:
                request.on_done(EraseFailedError("the replica was moved meanwhile; ask again"))

    def begin(self) -> None:
        """Creates the copy, unless an earlier one is in the way. Errors: StorageError."""
        key, target = self.source.topic_partition, self.target
        if not target.is_online:
            raise StorageError(target.path, "the log directory is offline")
        if key in target.partitions or key in target.parts.deletions.leaving:
            return
        name = future_folder_name(key, self._place.target.random)
        if name is None:
            raise StorageError(target.path, f"the name of {key} is too long for the folder of a copy")
        self.source.files.make()
        self.future = target.loading.create_future(self.source, name)
        self._raise_start(self.future)

    def step(self) -> None:
        future = self.future
        if not self._place.is_current(self):
            return
        try:
            if future is None:
                self.begin()
            elif not (self._is_reading or future.truncating or self.source.truncating):
                self._continue(future)
        except StorageError as error:
            self._on_error(error)
        except OSError as error:
            self._on_error(storage_error(self.target.path, error))

    def _on_error(self, error: StorageError) -> None:
        """Leaves errors that may pass to a later round. A failing disk takes its directory offline."""
        if not error.is_passing:
            source = self.source.parent_directory
            self._place.on_failure(source if error.path.startswith(f"{source}/") else self.target.path, error)

    def _continue(self, future: Log) -> None:
        source = self.source
        if future.config is not source.config:
            future.configure(source.config)
        if not self._is_checked:
            self._check(future)
        elif future.log_start_offset < source.log_start_offset > future.log_end_offset:
            self._restart(future)
        else:
            if future.log_start_offset < source.log_start_offset and not self._is_raising:
                self._raise_start(future)
            self._erase(future)
            if self.lag and (not self._is_flushed or not self._may_end(future)):
                self._read(future)
            elif self._may_end(future):
                self._try_to_end(future)

    def _check(self, future: Log) -> None:
        """Cuts records of the copy that the source doesn't have. An empty source can't be compared."""
        end = common_end(self.source, future)
        self._is_checked = True

        def cut(error: OSError | None) -> None:
            self._is_checked = error is None  # Or it lacked room, and is as it was.

        if end < future.log_end_offset:
            self.target.parts.truncations.truncate(future, end, cut)

    def _restart(self, future: Log) -> None:
        """Starts the copy over, because everything copied so far lies below the log start."""
        source = self.source
        start, epoch = source.log_start_offset, source.leader_epochs.epoch_at(source.log_start_offset)

        def is_wanted() -> bool:
            return self._place.is_current(self)

        self.target.parts.truncations.restart_at(future, start, epoch, is_wanted, lambda _error: None)

    def _raise_start(self, future: Log) -> None:
        """Journals the source's log start for the copy, also for a new copy, whose start is only in memory."""

        def raised(_error: OSError | None) -> None:
            self._is_raising = False

        self._is_raising = True
        increment = LogStartIncrement(future, self.source.log_start_offset)
        self.target.parts.log_starts.request_log_starts([increment], raised)

    def _erase(self, future: Log) -> None:
        def erased(request: AwaitedErasure, error: EraseFailedError | None) -> None:
            if request in self._erasures:
                self._erasures.remove(request)
            request.on_done(error)

        for request in self._erasures:
            if not request.is_asked and future.log_start_offset >= request.goal.offset:
                request.is_asked = True
                self.target.parts.erasures.request(future, request.goal, partial(erased, request))

    def _read(self, future: Log) -> None:
        if self._place.allowance.is_used_up:
            return
        read = self._next(future, self._chunk_bytes)
        if read is None:
            return
        self._place.allowance.take(read.size)
        self._is_reading = True
        worker = self._place.target.worker
        worker.submit(partial(read.file.pread, read.size, read.position), partial(self._on_read, read, self._readings))

    def _next(self, future: Log, max_bytes: int) -> FileSlice | None:
        source = self.source
        offset = max(future.log_end_offset, source.log_start_offset)
        return source.read(offset, max_bytes, end_offset=source.log_end_offset).slice

    def _on_read(self, read: FileSlice, reading: int, outcome: bytes | BaseException) -> None:
        self._is_reading = False
        future = self.future
        if not self._place.is_current(self) or future is None or not self.target.state.is_active():
            return
        if isinstance(outcome, BaseException):
            if not isinstance(outcome, OSError):
                raise outcome
            self._on_error(storage_error(self.source.directory, outcome))
            return
        if reading != self._readings or not read.token.valid or future.truncating or not self._is_checked:
            return
        try:
            self._append(future, outcome)
        except StorageError as error:
            self._on_error(error)
        else:
            self.step()

    def _append(self, future: Log, content: bytes) -> bool:
        ports = self._place.target
        began_ns, wall_ms = ports.clock.monotonic_ns(), ports.clock.wall_ms()
        appended = future.append_as_follower(memoryview(content), now_ms=wall_ms)
        if not isinstance(appended, FollowerAppend):
            # A full disk may pass. A batch that doesn't fit was read before the copy changed; a damaged one stops the
            # move there.
            return False
        self.target.remove_segments(appended.removed)
        future.advance_high_watermark(self.source.high_watermark)
        took_ns = ports.clock.monotonic_ns() - began_ns
        self._unflushed_bytes += appended.size_bytes
        self._place.counts.on_copied(appended.size_bytes)
        fitting = appended.size_bytes * CHUNK_NS // max(took_ns, CHUNK_NS // 16)
        self._chunk_bytes = min(max(fitting, CHUNK_BYTES_MIN), 2 * self._chunk_bytes, CHUNK_BYTES_MAX)
        if self._unflushed_bytes >= FLUSH_BYTES:
            self._unflushed_bytes = 0
            self.target.flush(future)
        return True

    def _may_end(self, future: Log) -> bool:
        """Returns whether little is left, so that preparing the end is worthwhile."""
        source, last_bytes = self.source, 2 * self._chunk_bytes
        return (
            source.bytes_between(max(future.log_end_offset, source.log_start_offset), source.log_end_offset, last_bytes)
            < last_bytes
        )

    def _try_to_end(self, future: Log) -> None:
        flusher = self.target.parts.flusher
        if not self._is_flushed:
            if not flusher.is_flushing(future):
                self._is_flushed = True
                self.target.flush(future)
        elif not self._has_intent:
            self._note_intent()
        elif not (flusher.is_flushing(future) or self._is_raising or self._erasures or self.needs_start):
            # Removed segments have the folder's name until they are gone.
            is_left = self.target.parts.removal.remove_now(future.directory, Offset(REMOVED_TO))
            if future.files.is_at_rest and not is_left and self._catch_up(future):
                if is_as_durable(self.source, future):
                    self._swap(future)
                else:
                    self._flush_the_last(future)

    def _flush_the_last(self, future: Log) -> None:
        """Flushes the copy, and continues as soon as that is done.

        Half a round later the source would have flushed more.
        """

        def flushed(_error: OSError | None) -> None:
            if self._place.is_current(self) and is_as_durable(self.source, future):
                self.step()

        self.target.flush(future)
        if self.target.parts.flusher.is_flushing(future):
            self._place.target.committer.submit(Barrier(), flushed)

    def _note_intent(self) -> None:
        if self._is_noting:
            return
        source, ports = self.source, self._place.source
        directory_id = self.target.state.directory_id
        assert directory_id is not None, self.target.path
        path = f"{source.directory}/{MOVING_TO}"
        ports.filesystem.write_bytes(path, directory_id.hex().encode())
        self._is_noting = True

        def noted(error: OSError | None) -> None:
            self._is_noting = False
            self._has_intent = error is None
            if not self._place.is_current(self):
                remove_intent(self._place.source.filesystem, source)
            elif error is not None:
                self._on_error(storage_error(source.directory, error))
            else:
                self.step()

        # With the topic id, which a never flushed log may lack on the disk: both folders must say that they are of one
        # topic.
        files = tuple(FileToSync(ports.filesystem, each) for each in (f"{source.directory}/{PARTITION_METADATA}", path))
        ports.committer.submit(Barrier(files=files, directories=(source.directory,)), noted)

    def _catch_up(self, future: Log) -> bool:
        """Copies the rest within this turn of the loop. Returns whether the copy is complete.

        Errors: StorageError, OSError.
        """
        while self.lag:
            read = self._next(future, self._chunk_bytes)
            if read is None or not self._append(future, read.file.pread(read.size, read.position)):
                return False
        return future.log_end_offset == self.source.log_end_offset

    def _swap(self, future: Log) -> None:
        """Makes the copy the partition's log. Errors: OSError; nothing has changed then."""
        source, target = self.source, self.target
        folder = f"{target.path}/{source.topic_partition}"
        self._place.target.filesystem.rename(future.directory, folder)
        relocate(future, folder)
        del target.partitions.futures[source.topic_partition]
        try:
            take_over(future, source)
        except OSError as error:
            if not is_passing(error):
                target.fail(error)
        # Before anything else becomes durable in that directory, for its committer keeps the order. A power cut before
        # that may leave the source as the partition's log: no producer is answered for what only the copy has on the
        # disk until it is flushed under the new name.
        future.lower_recovery_point(source.recovery_point)
        self._place.target.committer.submit(Barrier(directories=(target.path,)), partial(self._place.on_named, self))
        target.flush(future)
        self._place.on_moved(self, future)


def common_end(source: Log, future: Log) -> Offset:
    """Returns the exclusive end up to which a copy agrees with its source, by leader epochs (KIP-101)."""
    end = min(source.log_end_offset, future.log_end_offset)
    for epoch, start in reversed(future.leader_epochs.entries()):
        if start >= end:
            continue
        found, found_end = source.leader_epochs.end_offset_for(epoch, source.log_end_offset)
        if found == epoch != NO_LEADER_EPOCH:
            return min(end, found_end)
        end = min(end, start)
    return end


def is_as_durable(source: Log, future: Log) -> bool:
    """Returns whether the copy has on the disk everything that the source has, because producers may rely on it.

    A new name may survive a power cut before it is synced, while the folder's content does not.
    """
    return future.recovery_point >= source.recovery_point and not future.flush_wanted


def remove_intent(filesystem: FileSystem, log: Log) -> None:
    """Removes the intent: the log stays where it is. Otherwise a start with a failed directory couldn't know that."""
    with contextlib.suppress(OSError):
        filesystem.unlink(f"{log.directory}/{MOVING_TO}")
