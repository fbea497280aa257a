"""Which logs of a directory wait to be erased, since when, and why.

A segment is written again beside the old one, which needs room. It is begun only if the volume has enough, so that it
doesn't take the last bytes from appends, and tried again after `RETRY_MS`. Listeners get a shortage at once, then each
`REPORTED_MS` while it lasts, however many logs wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowtide.storage.directory.directory_reports import ErasureWait, RoomShortage
from lowtide.storage.errors import DISK_FULL

if TYPE_CHECKING:
    from lowtide.protocol.types import Offset
    from lowtide.runtime.filesystem import FileSystem
    from lowtide.storage.directory.log_settings import LogListeners
    from lowtide.storage.errors import StorageError
    from lowtide.storage.log.log import Log

RETRY_MS: Final = 1000
"""The time between two attempts to write a segment of a log again, if there was no room."""

NOTED_BYTES: Final = 4096
"""The room for the file with a log's erasures, which is written before a segment is."""

REPORTED_MS: Final = 60_000
"""The time between two reports about a directory."""


class ErasureWaits:
    """The logs of one directory that are due to be erased. Used from the event loop only."""

    def __init__(self, filesystem: FileSystem, listeners: LogListeners) -> None:
        self._filesystem = filesystem
        self._listeners = listeners
        self._since_ms: dict[Log, int] = {}
        self._shortages: dict[Log, RoomShortage] = {}
        self._tried_ms: dict[Log, int] = {}
        """When room was last lacking."""
        self._reported_ms: int | None = None

    def begin(self, log: Log, now_ms: int) -> None:
        """Notes since when a log waits."""
        self._since_ms[log] = now_ms

    def waited_ms(self, log: Log, now_ms: int) -> int:
        """Returns how long a log has waited."""
        return now_ms - self._since_ms.get(log, now_ms)

    def forget(self, log: Log) -> None:
        self._since_ms.pop(log, None)
        self.on_room(log)

    def on_room(self, log: Log) -> None:
        """Notes that the last attempt had room."""
        self._shortages.pop(log, None)
        self._tried_ms.pop(log, None)

    @property
    def without_room(self) -> set[Log]:
        """The logs whose last attempt lacked room or a descriptor."""
        return set(self._shortages)

    def has_room(self, log: Log, needed_bytes: int, now_ms: int) -> bool:
        """Returns whether a segment may be written now, and notes a shortage. Errors: OSError."""
        if now_ms - self._tried_ms.get(log, now_ms - RETRY_MS) < RETRY_MS:
            return False
        free_bytes = self._filesystem.free_bytes(log.parent_directory)
        if free_bytes < needed_bytes:
            self._note(log, RoomShortage(log.parent_directory, needed_bytes, free_bytes, ""), now_ms)
            return False
        self.on_room(log)
        return True

    def look_for_room(self, log: Log, now_ms: int) -> None:
        """Notes whether a log that can't begin yet lacks the room to note that it begins. Errors: OSError."""
        if self.waited_ms(log, now_ms) >= RETRY_MS:
            self.has_room(log, NOTED_BYTES, now_ms)

    def on_shortage(self, log: Log, error: OSError | StorageError, needed_bytes: int, now_ms: int) -> None:
        """Notes an error that may pass, of a segment that needs at most `needed_bytes`."""
        is_disk_full = (error.errno if isinstance(error, OSError) else error.error_number) in DISK_FULL
        said = (error.strerror or "") if isinstance(error, OSError) else error.reason
        try:
            free_bytes = self._filesystem.free_bytes(log.parent_directory)
        except OSError:
            free_bytes = 0
        shortage = RoomShortage(log.parent_directory, needed_bytes if is_disk_full else 0, free_bytes, said)
        self._note(log, shortage, now_ms)

    def _note(self, log: Log, shortage: RoomShortage, now_ms: int) -> None:
        self._shortages[log], self._tried_ms[log] = shortage, now_ms
        if self._reported_ms is None or now_ms - self._reported_ms >= REPORTED_MS:
            self._reported_ms = now_ms
            for listener in self._listeners.erasing:
                listener.on_without_room(log, shortage, len(self._shortages))

    def wait_of(self, log: Log, now_ms: int) -> ErasureWait | None:
        """Returns what a log still has to erase because erasures name it; None if that is nothing."""
        pending = log.erasures.pending
        if not pending:
            return None
        records = sum(each.left.count for each in pending)
        reason = self.why(log, pending[-1].end_offset)
        return ErasureWait(len(pending), records, self.waited_ms(log, now_ms), reason)

    def why(self, log: Log, erasures_end: Offset) -> str:
        """Returns why a log still has records below its start, or that erasures below `erasures_end` name."""
        if log.log_end_offset < erasures_end:
            return f"the replica ends at {log.log_end_offset}, below the end of the erasure at {erasures_end}"
        shortage = self._shortages.get(log)
        if shortage is not None:
            return shortage.sentence
        if log.high_watermark < erasures_end:
            return f"the erasure isn't known to be committed: the high watermark is {log.high_watermark}"
        return "segments are being written again, or wait for their turn"
