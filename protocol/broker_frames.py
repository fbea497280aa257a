"""Frames of requests as a broker reads them, and of responses as it writes them. `headers` has their layout.

`Codec` has these two functions for each message: `read_request` and `encode_frame`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeVar

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.primitives import skip_tags

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.protocol.primitives import Buffer

M = TypeVar("M")

REQUEST = struct.Struct(">hhih")
"""API key, version, correlation id and the length of the client id."""

REQUEST_HEADER_BYTES_MIN = REQUEST.size
"""The minimum size of a request."""

_CLIENT_ID_LENGTH = struct.Struct(">h")
_PLAIN_FRAME, _FLEXIBLE_FRAME = struct.Struct(">ii"), struct.Struct(">iix")
"""Size, correlation id and no tags."""


def read_client_id(buffer: Buffer, start: int, end: int, *, flexible: bool) -> tuple[str | None, int]:
    """Returns the client id of the request in `buffer[start:end]`, and the position of its body.

    `flexible`: the header has tagged fields. The request has at least `REQUEST_HEADER_BYTES_MIN`. Errors: ProtocolError
    for a truncated or invalid header.
    """
    position = start + REQUEST_HEADER_BYTES_MIN
    (length,) = _CLIENT_ID_LENGTH.unpack_from(buffer, position - _CLIENT_ID_LENGTH.size)
    client_id = None
    if length >= 0:
        text_start = position
        position += length
        if position > end:
            raise ProtocolError(f"a client id of {length} bytes, but only {end - text_start} remain")
        try:
            client_id = str(buffer[text_start:position], "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a client id that is not UTF-8: {error}") from error
    elif length != -1:
        raise ProtocolError(f"a client id of {length} bytes")
    if not flexible:
        return client_id, position
    if position < end and buffer[position] == 0:
        return client_id, position + 1
    return client_id, skip_header_tags(buffer, position, end)


def skip_header_tags(buffer: Buffer, position: int, end: int) -> int:
    """Returns the end of the tagged fields at `position`. Errors: ProtocolError if it is after `end`."""
    try:
        number = buffer[position]
        position = position + 1 if number == 0 else skip_tags(buffer, position + 1, number, end)
    except IndexError as error:
        raise ProtocolError("the header's tagged fields are cut short") from error
    if position > end:
        raise ProtocolError("the header's tagged fields are cut short")
    return position


def frame_start(body_bytes: int, correlation_id: int, is_flexible: bool) -> bytes:  # noqa: FBT001
    """Returns the size and the header of a response whose body has so many bytes."""
    if is_flexible:
        return _FLEXIBLE_FRAME.pack(body_bytes + 5, correlation_id)
    return _PLAIN_FRAME.pack(body_bytes + 4, correlation_id)


def frame_encoder(encode_parts: Callable[[Any], list[Any]]) -> Callable[[int, Any, bool], list[Any]]:
    """Returns `Codec.encode_frame` for messages that `encode_parts` encodes."""

    def encode_frame(correlation_id: int, message: Any, is_flexible: bool) -> list[Any]:  # noqa: FBT001
        parts = encode_parts(message)
        parts.insert(0, frame_start(sum(map(len, parts)), correlation_id, is_flexible))
        return parts

    return encode_frame


def request_reader(decode: Callable[..., M]) -> Callable[[Buffer, int, int, int, bool], tuple[M, str | None]]:
    """Returns `Codec.read_request` for requests that `decode` decodes."""

    def read_request(
        buffer: Buffer,
        start: int,
        stop: int,
        rows_max: int,
        is_flexible: bool,  # noqa: FBT001
    ) -> tuple[M, str | None]:
        client_id, position = read_client_id(buffer, start, stop, flexible=is_flexible)
        return decode(buffer, position, stop, rows_max), client_id

    return read_request
