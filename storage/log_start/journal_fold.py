"""What a fold of the journal writes: a new journal that begins with a snapshot, and the two exports.

The exports are `log-begin-offset-checkpoint` (KIP-107) and Kafka's `log-start-offset-checkpoint`. All three files are written under
temporary names and get their own ones by the same barrier, the journal last; `journal.py` says why, and when a fold is due.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from crc32c import crc32c

from lowtide.protocol.types import Offset, TopicId, TopicPartition
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.checkpoint import (
    LOG_BEGIN_CHECKPOINT,
    LOG_START_CHECKPOINT,
    TEMPORARY_SUFFIX,
    encode_offsets,
    joined,
    staged_checkpoint,
)
from lowtide.storage.log_start.journal_format import JOURNAL_NAME, JournalContent, encode_journal

_EXPORTS = (LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT)


class JournalFold:
    """The files of folds in one log directory. It keeps nothing between them."""

    def __init__(self, filesystem: FileSystem, directory: str, topic_name: Callable[[TopicId], str | None]) -> None:
        """`topic_name` gives the topic's name for the exports; None for a topic that this directory has no log of."""
        self._filesystem = filesystem
        self._directory = directory
        self._topic_name = topic_name

    @property
    def are_exports_there(self) -> bool:
        """Whether both exports exist."""
        return all(self._filesystem.exists(f"{self._directory}/{name}") for name in _EXPORTS)

    def content_of(self, entries: Mapping[tuple[TopicId, int], Offset], first_sequence: int) -> tuple[bytes, bytes, JournalContent]:
        """What a fold writes: the exports, the new journal, and what it will hold."""
        offsets: dict[TopicPartition, Offset] = {}
        for (topic_id, partition), offset in entries.items():
            name = self._topic_name(topic_id)
            if name is not None:
                offsets[TopicPartition(name, partition)] = offset
        exported = encode_offsets(offsets)
        snapshot = [(topic_id, partition, offset) for (topic_id, partition), offset in entries.items()]
        image, content = encode_journal(snapshot, first_sequence=first_sequence, exported_crc=crc32c(exported))
        return exported, image, content

    def stage(self, exported: bytes, image: bytes) -> Barrier | OSError:
        """Writes the three files of a fold under temporary names, all of them or none."""
        staged: list[Barrier] = []
        try:
            for name, text in ((LOG_BEGIN_CHECKPOINT, exported), (LOG_START_CHECKPOINT, exported), (JOURNAL_NAME, image)):
                staged.append(staged_checkpoint(self._filesystem, f"{self._directory}/{name}", text))
        except OSError as error:
            self._remove_staged()
            return error
        return joined(staged)

    def undo(self) -> None:
        """There was no room for one of the names of a fold. The journal's comes last, so the old journal stays in service.

        The export that the next start may adopt must not say what the journal doesn't: a later truncation could lower that, and the start
        would raise it again. A start that finds no export adopts nothing. Errors: OSError.
        """
        self._remove_staged()
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.unlink(f"{self._directory}/{LOG_START_CHECKPOINT}")

    def _remove_staged(self) -> None:
        """Gives back the space of temporary files that couldn't be finished."""
        for name in (*_EXPORTS, JOURNAL_NAME):
            with contextlib.suppress(OSError):
                self._filesystem.unlink(f"{self._directory}/{name}{TEMPORARY_SUFFIX}")
