"""The fold of a journal: a new journal that begins with a snapshot takes its place, together with two exports.

The exports are `log-begin-offset-checkpoint` (KIP-107) and Kafka's `log-start-offset-checkpoint`. Values are never read
back from them, with one exception, adoption: if Kafka's file isn't the one exported or adopted last (its CRC is in the
journal's header), Kafka has used the directory, and the larger value of each partition wins, once.

All three files are written under temporary names and renamed by the same barrier, the exports before the journal. A
crash in between leaves the old journal beside newer exports, which adoption then reads; they have the old journal's
entries and unacknowledged ones, so nothing is lost.

`journal.py` decides when a fold is due and what it holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias, cast

from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.types import FilePosition, Offset, TopicId, TopicPartition
from lowtide.runtime.committer import Barrier, Committer
from lowtide.runtime.filesystem import File, FileSystem
from lowtide.storage.checkpoint import (
    LOG_BEGIN_CHECKPOINT,
    LOG_START_CHECKPOINT,
    TEMPORARY_SUFFIX,
    carry_out,
    encode_offsets,
    joined,
    staged_checkpoint,
)
from lowtide.storage.errors import is_passing
from lowtide.storage.log_start.journal_image import JOURNAL_NAME, JournalContent, JournalHeader, encode_journal

_EXPORTS = (LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT)


class FoldImage(NamedTuple):
    """What a fold writes: each export, the new journal, and the entries in it."""

    exported: bytes
    journal: bytes
    content: JournalContent


class UndoneFold(NamedTuple):
    """A fold that lacked room: the old journal stays in service, durably."""

    full: OSError


FoldOutcome: TypeAlias = File | UndoneFold | OSError
"""The file of the new journal, durable under its name; or why there is none. After an OSError the directory is
unusable.
"""


class JournalFold:
    """Folds the journal of one log directory. It keeps nothing between folds."""

    def __init__(
        self, filesystem: FileSystem, directory: str, committer: Committer, topic_name: Callable[[TopicId], str | None]
    ) -> None:
        """`topic_name` returns a topic's name for the exports; None for a topic without a log in this directory."""
        self._filesystem = filesystem
        self._directory = directory
        self._committer = committer
        self._topic_name = topic_name

    def is_done(self, image: FoldImage, header: JournalHeader, end: FilePosition) -> bool:
        """Returns whether a journal with this header and end is only its snapshot, and the exports are current."""
        unchanged = end == header.snapshot_end and header.exported_crc == image.content.header.exported_crc
        return unchanged and all(self._filesystem.exists(f"{self._directory}/{name}") for name in _EXPORTS)

    def image_of(self, entries: Mapping[tuple[TopicId, int], Offset], first_sequence: int) -> FoldImage:
        """Returns what a fold of these entries writes."""
        offsets: dict[TopicPartition, Offset] = {}
        for (topic_id, partition), offset in entries.items():
            name = self._topic_name(topic_id)
            if name is not None:
                offsets[TopicPartition(name, partition)] = offset
        exported = encode_offsets(offsets)
        snapshot = [(topic_id, partition, offset) for (topic_id, partition), offset in entries.items()]
        journal, content = encode_journal(snapshot, first_sequence=first_sequence, exported_crc=crc32c(exported))
        return FoldImage(exported, journal, content)

    def start(self, image: FoldImage, on_done: Callable[[FoldOutcome], None]) -> OSError | None:
        """Begins a fold. Returns None when it is under way; `on_done` is called later, once.

        Otherwise returns the error, and no file is left.
        """
        staged = self._stage(image)
        if isinstance(staged, OSError):
            return staged
        # The journal is the last of the files and of the renames: see the module's docstring.
        self._committer.submit(staged, partial(self._on_durable, cast("File", staged.files[-1]), on_done))
        return None

    def _on_durable(self, file: File, on_done: Callable[[FoldOutcome], None], error: OSError | None) -> None:
        if error is None or not is_passing(error):
            on_done(error or file)
            return
        try:
            self._undo()
        except OSError as failed:
            on_done(failed)
            return
        undone = Barrier(directories=(self._directory,))
        self._committer.submit(undone, lambda failed: on_done(UndoneFold(error) if failed is None else failed))

    def finish(self, image: FoldImage) -> OSError | None:
        """Folds at once.

        Blocks on a sync: called only at a stop. Returns None, or the error of a full disk: the old journal stays in
        service then.

        Errors: any other OSError.
        """
        staged = self._stage(image)
        if isinstance(staged, Barrier):
            try:
                carry_out(self._filesystem, staged)
            except OSError as error:
                if not is_passing(error):
                    raise
                self._undo()
                self._filesystem.sync_directory(self._directory)
                return error
            return None
        if not is_passing(staged):
            raise staged
        return staged

    def _stage(self, image: FoldImage) -> Barrier | OSError:
        """Writes the three files of a fold under temporary names, all or none."""
        staged: list[Barrier] = []
        contents = (
            (LOG_BEGIN_CHECKPOINT, image.exported),
            (LOG_START_CHECKPOINT, image.exported),
            (JOURNAL_NAME, image.journal),
        )
        try:
            for name, text in contents:
                staged.append(staged_checkpoint(self._filesystem, f"{self._directory}/{name}", text))
        except OSError as error:
            self._remove_staged()
            return error
        return joined(staged)

    def _undo(self) -> None:
        """Undoes a fold that lacked room for one of its names.

        The journal's name comes last, so the old journal stays in service. The export that the next start may adopt
        must not say what the journal doesn't: a later truncation could lower that, and the start would raise it again.
        A start that finds no export adopts nothing. Errors: OSError.
        """
        self._remove_staged()
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.unlink(f"{self._directory}/{LOG_START_CHECKPOINT}")

    def _remove_staged(self) -> None:
        for name in (*_EXPORTS, JOURNAL_NAME):
            with contextlib.suppress(OSError):
                self._filesystem.unlink(f"{self._directory}/{name}{TEMPORARY_SUFFIX}")
