"""Request and response headers, the few bytes before every message, and the frames that they begin.

    request  v1  api key i16, api version i16, correlation id i32, client id (nullable string, int16 length, never compact)
             v2  the same, then tagged fields
    response v0  correlation id i32
             v1  the same, then tagged fields

Which version it is follows from API key and version (`api_keys.py`). Version 0 of the request header, without a client
id, was only ever used by ControlledShutdown and isn't known here. Lowtide knows no tag of either header: they are
passed over, and none is sent. Source: protocol guide, KIP-482, KIP-511.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

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

REQUEST_HEADER_BYTES_MIN = _REQUEST.size
"""A frame shorter than this is no request."""


class RequestHeader(msgspec.Struct, gc=False, frozen=True):
    """Who asks, and what for."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def read_request_header(buffer: Buffer, start: int, end: int) -> tuple[int, int, int, str | None, int]:
    """The header of the request in `buffer[start:end]` (`end` exclusive), whether or not Lowtide speaks that API and version.

    Returns API key, API version, correlation id, client id, and the position where the body begins.
    Errors: ProtocolError when it's cut short or malformed.
    """
    check_request_size(start, end)
    api_key, api_version, correlation_id, _ = _REQUEST.unpack_from(buffer, start)
    client_id, position = read_client_id(buffer, start, end, flexible=request_header_is_flexible(api_key, api_version))
    return api_key, api_version, correlation_id, client_id, position


def check_request_size(start: int, end: int) -> None:
    """Errors: ProtocolError for a request in `[start, end)` that is shorter than any header."""
    if end - start < REQUEST_HEADER_BYTES_MIN:
        message = f"a request of {end - start} bytes; its header alone has {REQUEST_HEADER_BYTES_MIN}"
        raise ProtocolError(message)


def read_client_id(buffer: Buffer, start: int, end: int, *, flexible: bool) -> tuple[str | None, int]:
    """The client id of the request in `buffer[start:end]`, and where the body begins; `flexible` says whether tagged fields come before it.

    The request is at least as long as the smallest header (`check_request_size`).
    Errors: ProtocolError when it's cut short or malformed.
    """
    position = start + REQUEST_HEADER_BYTES_MIN
    (length,) = _CLIENT_ID_LENGTH.unpack_from(buffer, position - _CLIENT_ID_LENGTH.size)
    client_id = None
    if length >= 0:
        text_start = position
        position += length
        if position > end:
            message = f"a client id of {length} bytes, but only {end - text_start} remain"
            raise ProtocolError(message)
        try:
            client_id = str(buffer[text_start:position], "utf-8")
        except UnicodeDecodeError as error:
            message = f"a client id that is not UTF-8: {error}"
            raise ProtocolError(message) from error
    elif length != -1:
        message = f"a client id of {length} bytes"
        raise ProtocolError(message)
    if not flexible:
        return client_id, position
    if position < end and buffer[position] == 0:
        return client_id, position + 1
    return client_id, skip_header_tags(buffer, position, end)


def skip_header_tags(buffer: Buffer, position: int, end: int) -> int:
    """The position after a tagged field section. Errors: ProtocolError when it doesn't end before `end` (exclusive)."""
    try:
        number = buffer[position]
        position = position + 1 if number == 0 else skip_tags(buffer, position + 1, number, end)
    except IndexError as error:
        message = "the header's tagged fields are cut short"
        raise ProtocolError(message) from error
    if position > end:
        message = "the header's tagged fields are cut short"
        raise ProtocolError(message)
    return position


def decode_request_header(buffer: Buffer, start: int, end: int) -> tuple[RequestHeader, int]:
    """As `read_request_header`, as an object and the position where the body begins."""
    api_key, api_version, correlation_id, client_id, position = read_request_header(buffer, start, end)
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header that a client sends, ready to be followed by the body.

    Errors: struct.error when a number or the client id doesn't fit.
    """
    encoded = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(encoded)
    tags = b"\0" if request_header_is_flexible(api_key, api_version) else b""
    return _REQUEST.pack(api_key, api_version, correlation_id, length) + encoded + tags


def response_header(correlation_id: int, flexible: bool) -> bytes:  # noqa: FBT001 one flag, named at the call by api_keys' function
    """The header that a broker sends; `flexible` as `response_header_is_flexible` says."""
    return _FLEXIBLE_RESPONSE.pack(correlation_id) if flexible else _CORRELATION_ID.pack(correlation_id)


def read_response_header(buffer: Buffer, start: int, end: int, *, flexible: bool) -> tuple[int, int]:
    """The correlation id of the response in `buffer[start:end]`, and the position where its body begins.

    Errors: ProtocolError when it's cut short.
    """
    position = start + _CORRELATION_ID.size
    if position > end:
        message = f"a response of {end - start} bytes"
        raise ProtocolError(message)
    (correlation_id,) = _CORRELATION_ID.unpack_from(buffer, start)
    return correlation_id, skip_header_tags(buffer, position, end) if flexible else position


def frame_encoder(encode_parts: Callable[[Any], list[Any]]) -> Callable[[int, Any, bool], list[Any]]:
    """Returns `Codec.encode_frame` for messages that `encode_parts` encodes."""

    def encode_frame(correlation_id: int, message: Any, is_flexible: bool) -> list[Any]:  # noqa: FBT001
        prefix, header_bytes = (_FLEXIBLE_FRAME.pack, 5) if is_flexible else (_PLAIN_FRAME.pack, 4)
        parts = encode_parts(message)
        parts.insert(0, prefix(sum(map(len, parts)) + header_bytes, correlation_id))
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
