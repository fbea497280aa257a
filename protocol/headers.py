"""Frames and the headers of requests and responses, as clients write and read them.

A frame is the size of its content as an int32, and the content: a header and a message. `client.connection` and a
broker's connections split a stream into frames; a broker refuses empty ones. A frame of two bytes: `00000002 abcd`.

    request  v1  api key i16, api version i16, correlation id i32, client id (nullable string, never compact)
             v2  the same, then tagged fields
    response v0  correlation id i32
             v1  the same, then tagged fields

API key and version determine the header's version (`api_keys`). Version 0 of the request header, without a client id,
is not supported: only ControlledShutdown used it. Tagged fields of headers are ignored, and none is sent. A broker's
side is in `broker_frames`. Source: protocol guide, KIP-482, KIP-511.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from lowtide.protocol.api_keys import request_header_is_flexible
from lowtide.protocol.broker_frames import REQUEST, REQUEST_HEADER_BYTES_MIN, read_client_id, skip_header_tags
from lowtide.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from lowtide.protocol.primitives import Buffer

_CORRELATION_ID, _FLEXIBLE_RESPONSE = struct.Struct(">i"), struct.Struct(">ix")

FRAME_SIZE_BYTES = 4
"""The bytes of the size before a frame."""

FRAME_BYTES_MAX = 104_857_600
"""The default maximum size of a frame: Kafka's `socket.request.max.bytes`."""


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
    api_key, api_version, correlation_id, _ = REQUEST.unpack_from(buffer, start)
    client_id, position = read_client_id(buffer, start, end, flexible=request_header_is_flexible(api_key, api_version))
    return api_key, api_version, correlation_id, client_id, position


def request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Returns the header of a client's request. Errors: struct.error for a number out of range or a long client id."""
    encoded = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(encoded)
    tags = b"\0" if request_header_is_flexible(api_key, api_version) else b""
    return REQUEST.pack(api_key, api_version, correlation_id, length) + encoded + tags


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
