"""Answers that clients request often, kept with their encoded form while what they say is valid."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable
from typing import Any, Final

_FRAME_BYTES_MAX: Final = 16 * 1024
_FRAMES_BYTES_MAX: Final = 256 * 1024
"""The largest encoded answer that is kept, and the total for an API."""

_LENGTH: Final = 4
_CORRELATION_ID_ENDS: Final = 8
"""A frame begins with its length and the correlation id."""

Write = Callable[[int, Any], list[Any]]
"""`Route.write`."""


class AnswerCache:
    """The answers of one API. A handler that declares it (`HandlerSpec.answers`) must not change what it has kept.

    It keeps at most `answers_max` answers, none with an error; when it is full, it is cleared.
    """

    def __init__(self, answers_max: int) -> None:
        self._answers_max = answers_max
        self._valid_for: object = None
        self._also_for: object = None
        self._by_key: dict[Hashable, Any] = {}
        self._frames: dict[int, dict[int, tuple[Callable[..., bytes], int, bytes]]] = {}
        """The encoded form of each kept answer, by its identity and the version: what makes a frame of its length, a
        correlation id, and the rest."""
        self._frame_bytes = 0

    def find(self, key: Hashable, valid_for: object = None, also_for: object = None) -> Any | None:
        """Returns a kept answer. Clears the cache first if one of `valid_for` and `also_for` is a new object."""
        if self._valid_for is not valid_for or self._also_for is not also_for:
            self._clear()
            self._valid_for, self._also_for = valid_for, also_for
        return self._by_key.get(key)

    def keep(self, key: Hashable, answer: Any) -> None:
        """Keeps an answer without an error, in place of an earlier one."""
        if len(self._by_key) >= self._answers_max:
            self._clear()
        self._frames.pop(id(self._by_key.get(key)), None)  # Another object may get its address.
        self._by_key[key] = answer
        self._frames[id(answer)] = {}

    def writer(self, version: int, write: Write) -> Write:
        """Returns a `Route.write` that encodes a kept answer once. `write` encodes any answer and counts its errors."""

        def write_kept(correlation_id: int, answer: Any) -> list[Any]:
            frames = self._frames.get(id(answer))
            if frames is None:
                return write(correlation_id, answer)
            kept = frames.get(version)
            if kept is not None:
                pack, length, rest = kept
                return [pack(length, correlation_id, rest)]
            parts = write(correlation_id, answer)
            self._keep_frame(frames, version, b"".join(parts))
            return parts

        return write_kept

    def _keep_frame(self, frames: dict[int, Any], version: int, frame: bytes) -> None:
        if len(frame) > _FRAME_BYTES_MAX:
            return
        if self._frame_bytes + len(frame) > _FRAMES_BYTES_MAX:
            self._clear()
            return
        rest = frame[_CORRELATION_ID_ENDS:]
        frames[version] = struct.Struct(f">ii{len(rest)}s").pack, len(frame) - _LENGTH, rest
        self._frame_bytes += len(frame)

    def _clear(self) -> None:
        self._by_key.clear()
        self._frames.clear()
        self._frame_bytes = 0
