"""The journal of log start offsets: it makes an acknowledged delete stay deleted.

One file per log directory, `lowtide-log-start.journal`, says where each of its logs starts, if not at the first
segment. `LogStartJournal` guards:

- **Durable before visible.** `value` and `entries` change only when the entry can't be lost, right before its callback.
- **The last entry wins**, not the largest: a truncation below the log start writes a lower one. Callbacks run in order.
- **One frame under way.** Entries accepted meanwhile leave together in the next frame (group commit). A frame costs one
  write and one fdatasync, however many partitions it names and however large the directory is.
- **Never "log start 0" for want of knowledge.** A torn last frame was never acknowledged and is dropped; any other
  damage raises StorageError with the file's name and the repair command. Kafka's fallback isn't followed here.

When the file is three quarters full, at a clean stop and on request it *folds* (`journal_fold.py`): a new journal that
begins with a snapshot takes its place, together with two exports. A full disk only delays a fold.

It doesn't know logs: callers decide whether an offset is in range, and what follows from a rise. The bytes are in
`journal_format.py`. Source: KIP-107.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import msgspec

from lowtide.protocol.types import ZERO_TOPIC_ID, FilePosition, Offset, TopicId, TopicPartition
from lowtide.runtime.committer import Barrier, Committer
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.errors import is_passing
from lowtide.storage.log_start.journal_fold import FoldImage, FoldOutcome, JournalFold, UndoneFold
from lowtide.storage.log_start.journal_format import (
    REMOVED,
    JournalContent,
    LogStartEntry,
    apply_entries,
    check_entries,
    encode_frame,
    frame_bytes,
)
from lowtide.storage.log_start.journal_loading import journal_path, load_journal

OnDurable: TypeAlias = Callable[[OSError | None], None]


class JournalHooks(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal needs from its owner, and how it notifies it."""

    topic_name: Callable[[TopicId], str | None]
    """Returns a topic's name for the exports; None for a topic without a log in this directory."""
    on_failure: Callable[[OSError], None] = lambda _error: None
    """Called once, before any callback, when a write or sync has failed: the directory must go offline."""


class _WaitingEntries(NamedTuple):
    entries: Sequence[LogStartEntry]
    on_durable: OnDurable


class LogStartJournal:
    """The journal of one open log directory. Used from the event loop only."""

    def __init__(
        self, filesystem: FileSystem, directory: str, committer: Committer, content: JournalContent, hooks: JournalHooks
    ) -> None:
        self._committer = committer
        self._hooks = hooks
        self._path = journal_path(directory)
        self._fold = JournalFold(filesystem, directory, committer, hooks.topic_name)
        self._file = filesystem.open(self._path, write=True)
        self._header = content.header
        self._entries = dict(content.entries)
        self.end = content.end
        """Where the next frame goes; the file has its full size from the beginning."""
        self._next_sequence = content.next_sequence
        self._fold_at = _fold_threshold(content.header.capacity)
        self._waiting: list[_WaitingEntries] = []
        self._stalled: list[_WaitingEntries] = []
        """Entries of a frame that lacked room and may be partly written. It is written again."""
        self._fold_waiters: list[OnDurable] = []
        self._fold_wanted = False
        self._in_flight = False
        self._stopping = False
        self.failure: OSError | None = None
        """The failed write or sync after which the journal accepts nothing more; None while it works."""

    @classmethod
    def open(
        cls,
        filesystem: FileSystem,
        directory: str,
        committer: Committer,
        *,
        folders: Mapping[TopicPartition, TopicId],
        expected: bool,
        hooks: JournalHooks,
    ) -> LogStartJournal:
        """Opens the directory's journal, creates it if it is not `expected`, and adopts what Kafka has written.

        `folders` are the directory's partitions with their topic ids (zeros if unknown), for adoption. `expected` says
        that the directory had a journal before, so that its absence is damage. Start code: it may sync. Errors:
        StorageError with the file's name and the repair command, for a damaged or missing journal and an offset
        checkpoint that can't be read; OSError from the file system.
        """
        content = load_journal(filesystem, directory, folders=folders, expected=expected)
        return cls(filesystem, directory, committer, content, hooks)

    @property
    def entries(self) -> Mapping[tuple[TopicId, int], Offset]:
        """The durable log start offsets by topic id and partition; a view that changes with the journal."""
        return MappingProxyType(self._entries)

    @property
    def exported_crc(self) -> int | None:
        """CRC-32C of Kafka's checkpoint as it was exported or adopted; any other content was written by Kafka."""
        return self._header.exported_crc

    def value(self, topic_id: TopicId, partition: int) -> Offset | None:
        """Returns the durable log start offset of a partition; None if it has no entry."""
        return self._entries.get((topic_id, partition))

    def request_log_starts(self, entries: Sequence[LogStartEntry], on_durable: OnDurable) -> None:
        """Accepts log start offsets; `on_durable(None)` runs when all are durable and visible through `value`.

        The sequence must not change afterwards. If the write fails `on_durable` gets the error, and the entries may or
        may not be found after a restart. It is called exactly once, never from within this call, unless the process
        ends before. Does not promise: that an offset is larger than the one before.
        """
        check_entries(entries)
        self._take(_WaitingEntries(entries, on_durable))

    def forget(self, partitions: Iterable[tuple[TopicId, int]], on_durable: OnDurable) -> None:
        """Removes the entries of partitions whose logs are gone; otherwise like `request_log_starts`.

        Unknown partitions are ignored.
        """
        known = [(topic_id, partition, REMOVED) for topic_id, partition in partitions if topic_id != ZERO_TOPIC_ID]
        self.request_log_starts(known, on_durable)

    def fold(self, on_folded: OnDurable) -> None:
        """Folds soon: new journal, fresh exports.

        `on_folded` gets an error if that fails; after ENOSPC the journal stays in use.
        """
        assert not self._stopping, self._path
        self._fold_wanted = True
        self._fold_waiters.append(on_folded)
        self._commit_next()

    @property
    def is_stalled(self) -> bool:
        """Whether a frame waits for room."""
        return bool(self._stalled)

    def retry(self) -> None:
        """Writes the frame that lacked room, if there is one; later entries wait for it. Called about once a second."""
        self._commit_next()

    def stop(self) -> None:
        """Accepts and sends nothing more; what is under way is still answered."""
        self._stopping = True

    def finish(self) -> None:
        """Makes waiting entries durable, folds if necessary, and closes the file.

        Blocks on a sync. Called after `stop`, when the committer has answered everything. On a full disk the journal
        stays unfolded, which is no error. Errors: OSError, the one after which the journal had failed or a new one;
        waiting callers get it too.
        """
        assert self._stopping, self._path
        assert not self._in_flight, self._path
        batch, stalled = self._waiting, self._stalled
        self._waiting, self._stalled = [], []
        waiters, self._fold_waiters = self._fold_waiters, []
        error = self.failure
        if error is None:
            try:
                if stalled:
                    self._write_now(_entries_of(stalled))
                self._fold_now(_entries_of(batch) if batch else ())
            except OSError as failed:
                if not is_passing(failed):
                    self._fail(failed)
                error = failed
        self._file.close()
        for accepted in (*stalled, *batch):
            accepted.on_durable(error)
        _tell(waiters, error)
        if error is not None:
            raise error

    def _write_now(self, entries: Sequence[LogStartEntry]) -> None:
        """Writes a frame for which the file has room. Blocks on a sync: called only at a stop."""
        self._file.pwritev([encode_frame(self._next_sequence, entries)], self.end)
        self._file.sync()
        self._next_sequence += 1
        self.end += frame_bytes(len(entries))
        apply_entries(self._entries, entries)

    def _fold_now(self, entries: Sequence[LogStartEntry]) -> None:
        if entries and self.end + frame_bytes(len(entries)) <= self._header.capacity:
            self._write_now(entries)
            entries = ()
        image = self._image_with(entries)
        if not entries and self._fold.is_done(image, self._header, self.end):
            return
        full = self._fold.finish(image)
        if full is None:
            apply_entries(self._entries, entries)
        elif entries:
            raise full

    def _image_with(self, entries: Sequence[LogStartEntry]) -> FoldImage:
        """Returns what a fold would write that also has these entries."""
        folded = dict(self._entries)
        apply_entries(folded, entries)
        return self._fold.image_of(folded, self._next_sequence)

    def _take(self, accepted: _WaitingEntries) -> None:
        if self._stopping or self.failure is not None:
            refused = self.failure or OSError(
                errno.ESHUTDOWN, "the journal takes no more entries: the broker is stopping", self._path
            )
            self._answer_later([accepted], refused)
            return
        self._waiting.append(accepted)
        if not self._in_flight:
            self._commit_next()

    def _commit_next(self) -> None:
        if (
            self._in_flight
            or self._stopping
            or self.failure is not None
            or not (self._waiting or self._fold_wanted or self._stalled)
        ):
            return
        if self._stalled:
            # The very same bytes: a torn frame at this place stays the beginning of one frame.
            stalled, self._stalled = self._stalled, []
            entries = _entries_of(stalled)
            self._write_frame(stalled, entries, self.end + frame_bytes(len(entries)))
            return
        batch, self._waiting = self._waiting, []
        entries = _entries_of(batch)
        end = self.end + frame_bytes(len(entries))
        if self._fold_wanted or end > self._fold_at:
            waiters, self._fold_waiters, self._fold_wanted = self._fold_waiters, [], False
            full = self._fold_with(batch, entries, waiters)
            if full is None:
                return
            batch.append(_WaitingEntries((), partial(_tell_at_least, waiters, full)))
            if end > self._header.capacity:
                self._answer_later(batch, full)
                return
            # A full disk only delays the fold: a quarter of the file is kept for deletes, which free the disk.
            self._fold_at = min(self._header.capacity, end + self._header.capacity // 16)
        self._write_frame(batch, entries, end)

    def _write_frame(self, batch: list[_WaitingEntries], entries: Sequence[LogStartEntry], end: FilePosition) -> None:
        if not entries:
            self._submit(Barrier(), partial(self._on_frame_durable, batch, entries))
            return
        try:
            self._file.pwritev([encode_frame(self._next_sequence, entries)], self.end)
        except OSError as error:
            if is_passing(error):
                # The file has its size, but on some file systems overwriting takes room too.
                self._stalled = batch
                return
            self._fail(error)
            self._answer_later(batch, error)
            return
        self._next_sequence += 1
        self.end = end
        self._submit(Barrier(files=(self._file,)), partial(self._on_frame_durable, batch, entries))

    def _submit(self, barrier: Barrier, on_done: OnDurable) -> None:
        self._in_flight = True
        self._committer.submit(barrier, on_done)

    def _on_frame_durable(
        self, batch: list[_WaitingEntries], entries: Sequence[LogStartEntry], error: OSError | None
    ) -> None:
        self._in_flight = False
        if error is None:
            apply_entries(self._entries, entries)
            self._commit_next()
        else:
            self._fail(error)
        for accepted in batch:
            accepted.on_durable(error)
        self._drain_after_failure()

    def _fold_with(
        self, batch: list[_WaitingEntries], entries: Sequence[LogStartEntry], waiters: list[OnDurable]
    ) -> OSError | None:
        """Begins a fold that also makes `entries` durable.

        Returns None when it is under way (or the journal has failed and all callers get the error), or the error of a
        full disk.
        """
        image = self._image_with(entries)
        if not batch and self._fold.is_done(image, self._header, self.end):
            self._committer.submit(Barrier(), partial(_tell, waiters))
            return None
        self._in_flight = True
        error = self._fold.start(image, partial(self._on_fold, batch, waiters, image.content))
        if error is None:
            return None
        self._in_flight = False
        if is_passing(error):
            return error
        self._fail(error)
        self._fold_waiters = waiters
        self._answer_later(batch, error)
        return None

    def _on_fold(
        self, batch: list[_WaitingEntries], waiters: list[OnDurable], content: JournalContent, outcome: FoldOutcome
    ) -> None:
        self._in_flight = False
        if isinstance(outcome, UndoneFold):
            self._on_fold_undone(batch, waiters, outcome.full)
            return
        error = outcome if isinstance(outcome, OSError) else None
        if isinstance(outcome, OSError):
            self._fail(outcome)
        else:
            self._file.close()
            self._file, self._header = outcome, content.header
            self._entries.clear()
            self._entries.update(content.entries)
            self.end = content.end
            self._next_sequence = content.next_sequence
            self._fold_at = _fold_threshold(content.header.capacity)
            self._commit_next()
        for accepted in batch:
            accepted.on_durable(error)
        _tell(waiters, error)
        self._drain_after_failure()

    def _on_fold_undone(self, batch: list[_WaitingEntries], waiters: list[OnDurable], full: OSError) -> None:
        """Writes the entries of a fold that lacked room into a frame of the old journal."""
        batch.append(_WaitingEntries((), partial(_tell_at_least, waiters, full)))
        entries = _entries_of(batch)
        end = self.end + (frame_bytes(len(entries)) if entries else 0)
        self._fold_at = min(self._header.capacity, end + self._header.capacity // 16)
        if end > self._header.capacity:
            self._answer_later(batch, full)
        else:
            self._write_frame(batch, entries, end)

    def _fail(self, error: OSError) -> None:
        if self.failure is None:
            self.failure = error
            self._hooks.on_failure(error)

    def _answer_later(self, batch: list[_WaitingEntries], error: OSError) -> None:
        """Answers `batch`, and after a failure all waiting callers, never from within their call."""

        def answer(_failed: OSError | None) -> None:
            for accepted in batch:
                accepted.on_durable(error)
            self._drain_after_failure()
            self._commit_next()

        self._committer.submit(Barrier(), answer)

    def _drain_after_failure(self) -> None:
        if self.failure is None or self._in_flight:
            return
        batch = self._stalled + self._waiting
        self._stalled, self._waiting = [], []
        waiters, self._fold_waiters = self._fold_waiters, []
        for accepted in batch:
            accepted.on_durable(self.failure)
        _tell(waiters, self.failure)


def _entries_of(batch: Sequence[_WaitingEntries]) -> Sequence[LogStartEntry]:
    return batch[0].entries if len(batch) == 1 else [entry for accepted in batch for entry in accepted.entries]


def _fold_threshold(capacity: int) -> FilePosition:
    return capacity // 4 * 3


def _tell(waiters: Iterable[OnDurable], error: OSError | None) -> None:
    for waiter in waiters:
        waiter(error)


def _tell_at_least(waiters: Iterable[OnDurable], least: OSError, error: OSError | None) -> None:
    _tell(waiters, error or least)
