"""Answers that clients request often, kept with their encoded form while what they say is valid."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

from lowtide.protocol.broker_frames import frame_start

_BODY_BYTES_MAX: Final = 16 * 1024
_BODIES_BYTES_MAX: Final = 256 * 1024
"""The largest encoded answer that is kept, and the total for an API."""


class AnswerCache:
    """The answers of one API. A handler that declares it (`HandlerSpec.answers`) must not change what it has kept.

    It keeps at most `answers_max` answers; when it is full, it is cleared.
    """

    def __init__(self, answers_max: int) -> None:
        self._answers_max = answers_max
        self._valid_for: object = None
        self._also_for: object = None
        self._by_key: dict[Hashable, Any] = {}
        self._bodies: dict[int, dict[int, bytes]] = {}
        """The encoded form of each kept answer, by its identity and the version."""
        self._body_bytes = 0

    def find(self, key: Hashable, valid_for: object = None, also_for: object = None) -> Any | None:
        """Returns a kept answer. Clears the cache first if one of `valid_for` and `also_for` is a new object."""
        if self._valid_for is not valid_for or self._also_for is not also_for:
            self._clear()
            self._valid_for, self._also_for = valid_for, also_for
        return self._by_key.get(key)

    def keep(self, key: Hashable, answer: Any) -> None:
        """Keeps an answer, in place of an earlier one."""
        if len(self._by_key) >= self._answers_max:
            self._clear()
        self._bodies.pop(id(self._by_key.get(key)), None)  # Another object may get its address.
        self._by_key[key] = answer
        self._bodies[id(answer)] = {}

    def frame_encoder(self, version: int, encode: Callable[[Any], bytes]) -> Callable[[int, Any, bool], list[Any]]:
        """Returns a `Codec.encode_frame` that encodes a kept answer once."""

        def encode_frame(correlation_id: int, answer: Any, is_flexible: bool) -> list[Any]:  # noqa: FBT001
            bodies = self._bodies.get(id(answer))
            body = None if bodies is None else bodies.get(version)
            if body is None:
                body = encode(answer)
                if bodies is not None and len(body) <= _BODY_BYTES_MAX:
                    if self._body_bytes + len(body) > _BODIES_BYTES_MAX:
                        self._clear()
                    else:
                        bodies[version] = body
                        self._body_bytes += len(body)
            start = frame_start(len(body), correlation_id, is_flexible)
            return [start + body] if len(body) <= _BODY_BYTES_MAX else [start, body]

        return encode_frame

    def _clear(self) -> None:
        self._by_key.clear()
        self._bodies.clear()
        self._body_bytes = 0
