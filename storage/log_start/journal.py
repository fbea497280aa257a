"""The journal of log start offsets: it makes an acknowledged delete stay deleted.

One file per log directory, `lowtide-log-start.journal`, says where each of its logs starts, if not at the first
segment. `LogStartJournal` guards:

- **Durable before visible.** `value` and `entries` change only when the entry can't be lost, right before its callback.
- **The last entry wins**, not the largest: a truncation below the log start writes a lower one. Callbacks run in order.
- **One frame under way.** Entries accepted meanwhile leave together in the next frame (group commit). A frame costs one
  write and one fdatasync, however many partitions it names and however large the directory is.
- **Never "log start 0" for want of knowledge.** A torn last frame was never acknowledged and is dropped; any other
  damage raises StorageError with the file's name and the repair command. Kafka's fallback isn't followed here.

When the file is three quarters full, at a clean stop and on request it *folds* (`journal_folding.py`): a new journal
that begins with a snapshot takes its place, together with two exports.

It doesn't know logs: callers decide whether an offset is in range, and what follows from a rise. The bytes are in
`journal_format.py`. Source: KIP-107.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import msgspec

from lowtide.protocol.types import ZERO_TOPIC_ID, Offset, TopicId, TopicPartition
from lowtide.runtime.committer import Barrier, Committer
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.errors import is_passing
from lowtide.storage.log_start.journal_fold import JournalFold
from lowtide.storage.log_start.journal_folding import JournalFolding
from lowtide.storage.log_start.journal_format import (
    REMOVED,
    LogStartEntry,
    OnDurable,
    RequestedEntries,
    apply_entries,
    check_entries,
    encode_frame,
    entries_of,
    frame_bytes,
)
from lowtide.storage.log_start.journal_image import JournalContent
from lowtide.storage.log_start.journal_loading import journal_path, load_journal


class JournalHooks(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal needs from its owner, and how it notifies it."""

    topic_name: Callable[[TopicId], str | None]
    """Returns a topic's name for the exports; None for a topic without a log in this directory."""
    on_failure: Callable[[OSError], None] = lambda _error: None
    """Called once, before any callback, when a write or sync has failed: the directory must go offline."""


class LogStartJournal:
    """The journal of one open log directory. Used from the event loop only."""

    def __init__(
        self, filesystem: FileSystem, directory: str, committer: Committer, content: JournalContent, hooks: JournalHooks
    ) -> None:
        self._committer = committer
        self._hooks = hooks
        self._path = journal_path(directory)
        self.file = filesystem.open(self._path, write=True)
        self.header = content.header
        self.values = dict(content.entries)
        """The durable log start offsets by topic id and partition."""
        self.end = content.end
        """Where the next frame goes; the file has its full size from the beginning."""
        self.next_sequence = content.next_sequence
        self.in_flight = False
        """Whether a frame or a fold is under way."""
        self._waiting: list[RequestedEntries] = []
        self._stalled: list[RequestedEntries] = []
        """Entries of a frame that lacked room and may be partly written. It is written again."""
        self._stopping = False
        self.failure: OSError | None = None
        """The failed write or sync after which the journal accepts nothing more; None while it works."""
        self._folding = JournalFolding(self, JournalFold(filesystem, directory, committer, hooks.topic_name), committer)

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
        """A view of the durable log start offsets, which changes with the journal."""
        return MappingProxyType(self.values)

    @property
    def exported_crc(self) -> int | None:
        """CRC-32C of Kafka's checkpoint as it was exported or adopted; any other content was written by Kafka."""
        return self.header.exported_crc

    def value(self, topic_id: TopicId, partition: int) -> Offset | None:
        """Returns the durable log start offset of a partition; None if it has no entry."""
        return self.values.get((topic_id, partition))

    def request_log_starts(self, entries: Sequence[LogStartEntry], on_durable: OnDurable) -> None:
        """Accepts log start offsets; `on_durable(None)` runs when all are durable and visible through `value`.

        The sequence must not change afterwards. If the write fails `on_durable` gets the error, and the entries may or
        may not be found after a restart. It is called exactly once, never from within this call, unless the process
        ends before. Does not promise: that an offset is larger than the one before.
        """
        check_entries(entries)
        accepted = RequestedEntries(entries, on_durable)
        if self._stopping or self.failure is not None:
            refused = self.failure or OSError(
                errno.ESHUTDOWN, "the journal takes no more entries: the broker is stopping", self._path
            )
            self.answer_later([accepted], refused)
            return
        self._waiting.append(accepted)
        if not self.in_flight:
            self.commit_next()

    def forget(self, partitions: Iterable[tuple[TopicId, int]], on_durable: OnDurable) -> None:
        """Removes the entries of partitions whose logs are gone; otherwise like `request_log_starts`.

        Unknown partitions are ignored.
        """
        known = [(topic_id, partition, REMOVED) for topic_id, partition in partitions if topic_id != ZERO_TOPIC_ID]
        self.request_log_starts(known, on_durable)

    def fold(self, on_folded: OnDurable) -> None:
        """Folds soon. `on_folded` gets an error if that fails; after ENOSPC the journal stays in use."""
        assert not self._stopping, self._path
        self._folding.request(on_folded)
        self.commit_next()

    @property
    def is_stalled(self) -> bool:
        """Whether a frame waits for room."""
        return bool(self._stalled)

    def retry(self) -> None:
        """Writes the frame that lacked room, if there is one; later entries wait for it. Called about once a second."""
        self.commit_next()

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
        assert not self.in_flight, self._path
        stalled, batch = self._stalled, self._waiting
        self._stalled, self._waiting = [], []
        waiters = self._folding.take_waiters()
        error = self._folding.finish(stalled, batch) if self.failure is None else self.failure
        self.file.close()
        for waiter in (*(accepted.on_durable for accepted in (*stalled, *batch)), *waiters):
            waiter(error)
        if error is not None:
            raise error

    def commit_next(self) -> None:
        """Writes the waiting entries into the next frame, unless one is under way, or folds if that is due."""
        if (
            self.in_flight
            or self._stopping
            or self.failure is not None
            or not (self._waiting or self._folding.is_requested or self._stalled)
        ):
            return
        if self._stalled:
            # The very same bytes: a torn frame at this place stays the beginning of one frame.
            stalled, self._stalled = self._stalled, []
            self.write_frame(stalled)
            return
        batch, self._waiting = self._waiting, []
        folding, end = self._folding, self.end + frame_bytes(len(entries_of(batch)))
        is_due = folding.is_requested or end > folding.due_at
        if not (is_due and folding.begins_with(batch, end)):
            self.write_frame(batch)

    def write_frame(self, batch: list[RequestedEntries]) -> None:
        """Writes one frame with these entries, and answers them when it is durable."""
        entries = entries_of(batch)
        if not entries:
            self._submit(Barrier(), partial(self._on_frame_durable, batch, entries))
            return
        try:
            self.file.pwritev([encode_frame(self.next_sequence, entries)], self.end)
        except OSError as error:
            if is_passing(error):
                # The file has its size, but on some file systems overwriting takes room too.
                self._stalled = batch
                return
            self.fail(error)
            self.answer_later(batch, error)
            return
        self.next_sequence += 1
        self.end += frame_bytes(len(entries))
        self._submit(Barrier(files=(self.file,)), partial(self._on_frame_durable, batch, entries))

    def _submit(self, barrier: Barrier, on_done: OnDurable) -> None:
        self.in_flight = True
        self._committer.submit(barrier, on_done)

    def _on_frame_durable(
        self, batch: list[RequestedEntries], entries: Sequence[LogStartEntry], error: OSError | None
    ) -> None:
        self.in_flight = False
        if error is None:
            apply_entries(self.values, entries)
            self.commit_next()
        else:
            self.fail(error)
        for accepted in batch:
            accepted.on_durable(error)
        self.drain_after_failure()

    def fail(self, error: OSError) -> None:
        """Accepts nothing more, because a write or sync has failed."""
        if self.failure is None:
            self.failure = error
            self._hooks.on_failure(error)

    def answer_later(self, batch: list[RequestedEntries], error: OSError) -> None:
        """Answers `batch`, and after a failure all waiting callers, never from within their call."""

        def answer(_failed: OSError | None) -> None:
            for accepted in batch:
                accepted.on_durable(error)
            self.drain_after_failure()
            self.commit_next()

        self._committer.submit(Barrier(), answer)

    def drain_after_failure(self) -> None:
        """Answers everything that waits, if the journal has failed."""
        if self.failure is None or self.in_flight:
            return
        batch = self._stalled + self._waiting
        self._stalled, self._waiting = [], []
        waiters = self._folding.take_waiters()
        for waiter in (*(accepted.on_durable for accepted in batch), *waiters):
            waiter(self.failure)
