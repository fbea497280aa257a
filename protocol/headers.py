"""Frames and the headers of requests and responses.

A frame is the size of its content as an int32, and the content: a header and a message. `client.connection` and a
broker's connections split a stream into frames; a broker refuses empty ones. A frame of two bytes: `00000002 abcd`.

    request  v1  api key i16, api version i16, correlation id i32, client id (nullable string, never compact)
             v2  the same, then tagged fields
    response v0  correlation id i32
             v1  the same, then tagged fields

API key and version determine the header's version (`api_keys`). Version 0 of the request header, without a client id,
is not supported: only ControlledShutdown used it. Tagged fields of headers are ignored, and none is sent. Source:
protocol guide, KIP-482, KIP-511.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeVar

from lowtide.protocol.api_keys import request_header_is_flexible
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.primitives import skip_tags

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.protocol.primitives import Buffer

M = TypeVar("M")

_REQUEST, _CLIENT_ID_LENGTH = struct.Struct(">hhih"), struct.Struct(">h")
_CORRELATION_ID, _FLEXIBLE_RESPONSE = struct.Struct(">i"), struct.Struct(">ix")
_PLAIN_FRAME, _FLEXIBLE_FRAME = struct.Struct(">ii"), struct.Struct(">iix")
"""Size, correlation id and no tags."""

FRAME_SIZE_BYTES = 4
"""The bytes of the size before a frame."""

FRAME_BYTES_MAX = 104_857_600
"""The default maximum size of a frame: Kafka's `socket.request.max.bytes`."""

REQUEST_HEADER_BYTES_MIN = _REQUEST.size
"""The minimum size of a request."""


def check_frame_size(size: int, limit: int) -> int:
    """Returns `size`, the number before a frame. Errors: ProtocolError if it is negative or above `limit`."""
    if not 0 <= size <= limit:
        raise ProtocolError(f"a frame of {size} bytes; allowed are 0 to {limit}")
    return size


def frame(*parts: bytes) -> bytes:
    """Returns the parts as one frame with its size."""
    return b"".join((struct.pack(">i", sum(map(len, parts))), *parts))


def read_request_header(buffer: Buffer, start: int, end: int) -> tuple[int, int, int, str | None, int]:
    """Returns API key, API version, correlation id, client id and body position of the request in `buffer[start:end]`.

    API and version need not be supported. Errors: ProtocolError for a truncated or invalid header.
    """
    if end - start < REQUEST_HEADER_BYTES_MIN:
        raise ProtocolError(f"a request of {end - start} bytes; its header alone has {REQUEST_HEADER_BYTES_MIN}")
    api_key, api_version, correlation_id, _ = _REQUEST.unpack_from(buffer, start)
    client_id, position = read_client_id(buffer, start, end, flexible=request_header_is_flexible(api_key, api_version))
    return api_key, api_version, correlation_id, client_id, position


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


def request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Returns the header of a client's request. Errors: struct.error for a number out of range or a long client id."""
    encoded = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(encoded)
    tags = b"\0" if request_header_is_flexible(api_key, api_version) else b""
    return _REQUEST.pack(api_key, api_version, correlation_id, length) + encoded + tags


def response_header(correlation_id: int, flexible: bool) -> bytes:  # noqa: FBT001
    """Returns the header of a broker's response; `flexible` is the result of `response_header_is_flexible`."""
    return _FLEXIBLE_RESPONSE.pack(correlation_id) if flexible else _CORRELATION_ID.pack(correlation_id)


def read_response_header(buffer: Buffer, start: int, end: int, *, flexible: bool) -> tuple[int, int]:
    """Returns the correlation id of the response in `buffer[start:end]`, and the position of its body.

    Errors: ProtocolError for a truncated header.
    """
    position = start + _CORRELATION_ID.size
    if position > end:
        raise ProtocolError(f"a response of {end - start} bytes")
    (correlation_id,) = _CORRELATION_ID.unpack_from(buffer, start)
    return correlation_id, skip_header_tags(buffer, position, end) if flexible else position


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
