"""When a journal folds, with which entries, and who waits for it. `journal_fold` has how.

A fold is due when the file is three quarters full, at a clean stop and on request. Entries that wait at that moment
become durable with the new journal. A full disk only delays a fold: the last quarter of the file is kept for deletes,
which free the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

from lowtide.protocol.types import FilePosition, Offset, TopicId
from lowtide.runtime.committer import Barrier, Committer
from lowtide.runtime.filesystem import File
from lowtide.storage.errors import is_passing
from lowtide.storage.log_start.journal_fold import FoldImage, FoldOutcome, JournalFold, UndoneFold
from lowtide.storage.log_start.journal_format import (
    LogStartEntry,
    OnDurable,
    RequestedEntries,
    apply_entries,
    encode_frame,
    entries_of,
    frame_bytes,
)
from lowtide.storage.log_start.journal_image import JournalContent, JournalHeader


class FoldingJournal(Protocol):
    """The journal that is folded: see `LogStartJournal`."""

    file: File
    header: JournalHeader
    values: dict[tuple[TopicId, int], Offset]
    end: FilePosition
    next_sequence: int
    in_flight: bool

    def commit_next(self) -> None: ...
    def write_frame(self, batch: list[RequestedEntries]) -> None: ...
    def fail(self, error: OSError) -> None: ...
    def answer_later(self, batch: list[RequestedEntries], error: OSError) -> None: ...
    def drain_after_failure(self) -> None: ...


class JournalFolding:
    """Decides when one journal folds, and makes its waiting entries durable with a fold."""

    def __init__(self, journal: FoldingJournal, fold: JournalFold, committer: Committer) -> None:
        self._journal = journal
        self._fold = fold
        self._committer = committer
        self.due_at = _three_quarters(journal.header)
        """A frame that would end above it makes a fold due."""
        self._waiters: list[OnDurable] = []
        self.is_requested = False
        """Whether a caller waits for a fold that has not begun."""

    def request(self, on_folded: OnDurable) -> None:
        """Makes a fold due. `on_folded` gets its outcome."""
        self.is_requested = True
        self._waiters.append(on_folded)

    def take_waiters(self) -> list[OnDurable]:
        """Returns and clears those who wait for a fold that has not begun."""
        waiters, self._waiters, self.is_requested = self._waiters, [], False
        return waiters

    def begins_with(self, batch: list[RequestedEntries], end: FilePosition) -> bool:
        """Begins a fold with these entries, whose frame would end at `end`.

        Returns False if they must go into that frame.
        """
        waiters = self.take_waiters()
        full = self._start(batch, waiters)
        return full is None or self._gives_up(batch, waiters, full, end)

    def _gives_up(
        self, batch: list[RequestedEntries], waiters: list[OnDurable], full: OSError, end: FilePosition
    ) -> bool:
        """Delays a fold that the disk has no room for. Returns whether the old file has no room for `batch` either."""
        batch.append(RequestedEntries((), partial(_tell_at_least, waiters, full)))
        if end > self._journal.header.capacity:
            self._journal.answer_later(batch, full)
            return True
        self._delay(end)
        return False

    def _delay(self, end: FilePosition) -> None:
        capacity = self._journal.header.capacity
        self.due_at = min(capacity, end + capacity // 16)

    def _start(self, batch: list[RequestedEntries], waiters: list[OnDurable]) -> OSError | None:
        """Starts a fold. Returns the error of a full disk.

        Returns None when it is under way, or the journal has failed and all callers get the error.
        """
        journal, image = self._journal, self._image_with(entries_of(batch))
        if not batch and self._fold.is_done(image, journal.header, journal.end):
            self._committer.submit(Barrier(), partial(_tell, waiters))
            return None
        journal.in_flight = True
        error = self._fold.start(image, partial(self._on_fold, batch, waiters, image.content))
        if error is None:
            return None
        journal.in_flight = False
        if is_passing(error):
            return error
        journal.fail(error)
        self._waiters = waiters
        journal.answer_later(batch, error)
        return None

    def _on_fold(
        self, batch: list[RequestedEntries], waiters: list[OnDurable], content: JournalContent, outcome: FoldOutcome
    ) -> None:
        journal = self._journal
        journal.in_flight = False
        if isinstance(outcome, UndoneFold):
            entries = entries_of(batch)
            end = journal.end + (frame_bytes(len(entries)) if entries else 0)
            self._delay(end)
            if not self._gives_up(batch, waiters, outcome.full, end):
                journal.write_frame(batch)
            return
        error = outcome if isinstance(outcome, OSError) else None
        if isinstance(outcome, OSError):
            journal.fail(outcome)
        else:
            journal.file.close()
            journal.file, journal.header = outcome, content.header
            journal.values.clear()
            journal.values.update(content.entries)
            journal.end, journal.next_sequence = content.end, content.next_sequence
            self.due_at = _three_quarters(content.header)
            journal.commit_next()
        for accepted in batch:
            accepted.on_durable(error)
        _tell(waiters, error)
        journal.drain_after_failure()

    def finish(self, stalled: list[RequestedEntries], batch: list[RequestedEntries]) -> OSError | None:
        """Makes the last entries durable, and folds if necessary. Blocks on a sync: called only at a stop.

        Returns the error if an entry may not be durable; a full disk that only prevents the fold is none.
        """
        try:
            if stalled:
                self._write_now(entries_of(stalled))
            self._fold_now(entries_of(batch) if batch else ())
        except OSError as failed:
            if not is_passing(failed):
                self._journal.fail(failed)
            return failed
        return None

    def _write_now(self, entries: Sequence[LogStartEntry]) -> None:
        """Writes a frame for which the file has room."""
        journal = self._journal
        journal.file.pwritev([encode_frame(journal.next_sequence, entries)], journal.end)
        journal.file.sync()
        journal.next_sequence += 1
        journal.end += frame_bytes(len(entries))
        apply_entries(journal.values, entries)

    def _fold_now(self, entries: Sequence[LogStartEntry]) -> None:
        journal = self._journal
        if entries and journal.end + frame_bytes(len(entries)) <= journal.header.capacity:
            self._write_now(entries)
            entries = ()
        image = self._image_with(entries)
        if not entries and self._fold.is_done(image, journal.header, journal.end):
            return
        full = self._fold.finish(image)
        if full is None:
            apply_entries(journal.values, entries)
        elif entries:
            raise full

    def _image_with(self, entries: Sequence[LogStartEntry]) -> FoldImage:
        """Returns what a fold would write that also has these entries."""
        folded = dict(self._journal.values)
        apply_entries(folded, entries)
        return self._fold.image_of(folded, self._journal.next_sequence)


def _three_quarters(header: JournalHeader) -> FilePosition:
    return header.capacity // 4 * 3


def _tell(waiters: Iterable[OnDurable], error: OSError | None) -> None:
    for waiter in waiters:
        waiter(error)


def _tell_at_least(waiters: Iterable[OnDurable], least: OSError, error: OSError | None) -> None:
    _tell(waiters, error or least)
