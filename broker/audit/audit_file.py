"""Writes the audit log file beside the event loop, rotates it by size, and reopens it if another program moved it.

While the disk is slow, lines wait in memory, at most `WAITING_BYTES_MAX`. Lines beyond that limit, and lines refused by
a full disk, are counted in a warning of the broker's log once a minute, and in a line of the audit log once it can be
written again. Lines survive the death of the process. They aren't synced, so a power failure may lose the last ones.

Guards: each line is complete or absent. Only the owner may read the file.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec

from lowtide.runtime.clock import Clock
from lowtide.runtime.filesystem import File, FileSystem
from lowtide.runtime.worker import Worker

WAITING_BYTES_MAX: Final = 16 << 20
"""The maximum size of the lines that wait for the disk: tens of thousands of events."""

WARN_INTERVAL_MS: Final = 60_000
"""How often the broker's log warns that the audit log can't be written."""


class WriteOutcome(msgspec.Struct, frozen=True):
    """How many lines were written, and why the others weren't."""

    lines: int
    failure: str = ""


class RotatedFile:
    """The current file `path` and older ones, `path.1` and so on.

    Its methods block. Only one thread may use it at a time.
    """

    def __init__(self, filesystem: FileSystem, path: str, *, bytes_max: int, files_max: int) -> None:
        """Keeps at most `files_max` files of `bytes_max` each; a longer line has a file of its own. Errors: OSError."""
        assert files_max > 1, files_max
        self._filesystem = filesystem
        self.path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._file: File | None = None
        self._size = 0
        self._open()

    def write(self, lines: list[bytes]) -> WriteOutcome:
        """Appends lines until the disk refuses one."""
        start = 0
        try:
            self._follow_others()
            while start < len(lines):
                if self._size and self._size + len(lines[start]) > self._bytes_max:
                    self._rotate()
                stop, size = start + 1, self._size + len(lines[start])
                while stop < len(lines) and size + len(lines[stop]) <= self._bytes_max:
                    size += len(lines[stop])
                    stop += 1
                self._append(lines[start:stop], size)
                start = stop
        except OSError as error:
            self.close()
            return WriteOutcome(start, error.strerror or str(error))
        return WriteOutcome(start)

    def close(self) -> None:
        """Closes the file. The next write reopens it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, lines: list[bytes], size: int) -> None:
        assert self._file is not None
        try:
            self._file.pwritev(lines, self._size)
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._size)
            raise
        self._size = size

    def _open(self) -> None:
        self._file = self._filesystem.open(self.path, write=True, create=True)
        self._size = self._file.size()

    def _follow_others(self) -> None:
        """Reopens the file if its size shows that it was moved, removed or truncated."""
        if self._file is not None:
            try:
                if self._filesystem.file_size(self.path) == self._size:
                    return
            except FileNotFoundError:
                pass
            self.close()
        self._open()

    def _rotate(self) -> None:
        self.close()
        names = [self.path, *(f"{self.path}.{number}" for number in range(1, self._files_max))]
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if self._filesystem.exists(newer):
                self._filesystem.rename(newer, older)
        self._open()


class AuditFile:
    """The destination of a logger: buffers lines in the event loop, which a worker writes."""

    def __init__(self, file: RotatedFile, worker: Worker, clock: Clock, log: Any) -> None:
        self._file = file
        self._worker = worker
        self._clock = clock
        self._log = log
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._is_writing = False
        self._is_closed = False
        self._lost = 0
        self._warned_ms: int | None = None

    def info(self, line: bytes) -> None:
        """Writes a line soon. It ends with a line feed."""
        if self._waiting_bytes + len(line) > WAITING_BYTES_MAX:
            self._lose(1, "the disk is too slow")
            return
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        if not self._is_writing:
            self._write_waiting()

    def close(self) -> None:
        """Stops using the worker after its present write. Later calls of `info` write directly."""
        self._is_closed = True
        if not self._is_writing:
            self._file.close()

    def _write_waiting(self) -> None:
        lines, self._waiting, self._waiting_bytes = self._waiting, [], 0
        lost = self._lost
        if lost:
            lines.insert(
                0,
                msgspec.json.encode({"event": "lost", "count": lost, "timestamp": _time(self._clock.wall_ms())})
                + b"\n",
            )
        self._is_writing = True
        if self._is_closed:
            self._on_written(lines, lost, self._file.write(lines))
        else:
            self._worker.submit(partial(self._file.write, lines), partial(self._on_written, lines, lost))

    def _on_written(self, lines: list[bytes], lost: int, outcome: WriteOutcome | BaseException) -> None:
        self._is_writing = False
        if isinstance(outcome, BaseException):
            outcome = WriteOutcome(0, f"{type(outcome).__name__}: {outcome}")
        if outcome.lines and lost:
            self._lost -= lost
        if outcome.failure:
            unwritten = len(lines) - outcome.lines
            self._lose(unwritten - (1 if lost and not outcome.lines else 0), outcome.failure)
        if self._waiting:
            self._write_waiting()
        elif self._is_closed:
            self._file.close()

    def _lose(self, count: int, reason: str) -> None:
        self._lost += count
        now_ms = self._clock.monotonic_ms()
        if self._warned_ms is None or now_ms - self._warned_ms >= WARN_INTERVAL_MS:
            self._warned_ms = now_ms
            self._log.warning(
                "the audit log can't be written", path=self._file.path, reason=reason, lines_lost=self._lost
            )


def _time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
