"""Answers that are given again, as bytes: to a request of the same bytes, but for its correlation id, while nothing changes.

A client that asks again asks with the same bytes, so nothing is decoded and nothing encoded for it. What an answer depends on besides them
is the handler's business: it drops all answers when that changes (`KeptAnswers.clear`).
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from lowtide.protocol.api_keys import API, ApiKey, response_header_is_flexible
from lowtide.protocol.compiler import codec_for

REQUEST_BYTES_MAX: Final = 512
ANSWER_BYTES_MAX: Final = 16 * 1024
ANSWERS_MAX: Final = 256
ANSWERS_BYTES_MAX: Final = 512 * 1024
"""Of a request whose answer is kept, of an answer, and how many of them there are, and of how many bytes, together with their requests."""

_SIZE = struct.Struct(">i")
_ID_BYTES: Final = 4
_ID_END: Final = 8


class KeptAnswer(NamedTuple):
    """A frame without its correlation id: its size, and what comes behind that."""

    size: bytes
    rest: bytes
    beside: Any = None
    """What the handler remembers with it."""

    def frame(self, asked: bytes) -> bytes:
        """The answer to a request."""
        return b"".join((self.size, asked[_ID_BYTES:_ID_END], self.rest))


class KeptAnswers:
    """Answers by listener and request, all of one API."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, bytes, bytes], KeptAnswer] = {}
        """By `key_of`."""
        self._bytes = 0

    def clear(self) -> None:
        """What they were made of has changed."""
        self.found.clear()
        self._bytes = 0

    def keep(self, key: tuple[str, bytes, bytes], answer: KeptAnswer) -> None:
        """Keep an answer; all others are dropped where there are too many."""
        size = len(answer.rest) + REQUEST_BYTES_MAX
        if size > ANSWER_BYTES_MAX:
            return
        if len(self.found) >= ANSWERS_MAX or self._bytes + size > ANSWERS_BYTES_MAX:
            self.clear()
        self.found[key] = answer
        self._bytes += size


def key_of(listener_name: str, asked: bytes) -> tuple[str, bytes, bytes]:
    """What an answer depends on: the listener by which the client came, and its request, but for the correlation id."""
    return listener_name, asked[:_ID_BYTES], asked[_ID_END:]


def read_again(buffer: memoryview, start: int, stop: int) -> bytes | None:
    """The `read` of a quick path of answers that are kept: the whole request, if it isn't large."""
    return bytes(buffer[start:stop]) if stop - start <= REQUEST_BYTES_MAX else None


def kept_answer(key: ApiKey, version: int, response: Any, beside: Any = None) -> KeptAnswer:
    """The bytes of a response."""
    tags = b"\0" if response_header_is_flexible(key, version) else b""
    rest = tags + codec_for(API[key].response, version).encode(response)
    return KeptAnswer(_SIZE.pack(len(rest) + _ID_BYTES), rest, beside)
