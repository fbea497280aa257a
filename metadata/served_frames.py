"""The messages between a served store and a process that uses it, over a local socket.

A frame is a length of four bytes, big-endian, and that many bytes of MessagePack. Requests have a number, which their
answers repeat; a client may have many open requests, which are answered in any order. An answer is a number, a kind and
a content: `DONE` ends the request, `MORE` is a part of a range, and each other kind is an error of the port, whose
content is its message.

A watch is a request for the next batch from a revision, which the server answers when there is one. So a slow client
costs the server nothing, and the store's history is the only queue.

Pure. Both ends are of one installation: the format has no version, and is never stored.
"""

from __future__ import annotations

import struct
from typing import Any, Final, TypeAlias

import msgspec

from lowtide.metadata.store import (
    AmbiguousError,
    CompactedError,
    Compare,
    KeyValue,
    LeaseGoneError,
    LeaseId,
    MetadataStoreError,
    Operation,
    Revision,
    UnavailableError,
)

HEAD: Final = struct.Struct(">I")

MAX_REQUEST_BYTES: Final = 4 << 20
"""More than `MAX_TRANSACTION_BYTES` with overhead. A server closes a connection that sends a larger request."""

MAX_ANSWER_BYTES: Final = 256 << 20
"""More than one transaction can read (`MAX_TRANSACTION_OPERATIONS` values of `MAX_TRANSACTION_BYTES`)."""

PART_BYTES: Final = 1 << 20
"""The size of keys and values from which on a part of a range is sent."""

DONE: Final = 0
MORE: Final = 1
UNAVAILABLE: Final = 2
AMBIGUOUS: Final = 3
LEASE_GONE: Final = 4
COMPACTED: Final = 5

_ERRORS: Final[tuple[tuple[int, type[MetadataStoreError]], ...]] = (
    (LEASE_GONE, LeaseGoneError),
    (COMPACTED, CompactedError),
    (AMBIGUOUS, AmbiguousError),
    (UNAVAILABLE, UnavailableError),
)


class GetRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`MetadataStore.get`."""

    number: int
    key: bytes


class RangeRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`MetadataStore.range`."""

    number: int
    prefix: bytes


class RevisionRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`MetadataStore.revision`."""

    number: int


class TransactRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`MetadataStore.transact`."""

    number: int
    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]
    otherwise: tuple[Operation, ...]


class GrantRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`MetadataStore.lease_grant`."""

    number: int
    time_to_live_ms: int


class KeepAliveRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`MetadataStore.lease_keep_alive`."""

    number: int
    lease: LeaseId


class RevokeRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`MetadataStore.lease_revoke`."""

    number: int
    lease: LeaseId


class WatchRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The first batch of `MetadataStore.watch`."""

    number: int
    prefix: bytes
    start_revision: Revision


class CancelRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Cancels the request with this number, which then gets no answer."""

    number: int


Request: TypeAlias = (
    GetRequest
    | RangeRequest
    | RevisionRequest
    | TransactRequest
    | GrantRequest
    | KeepAliveRequest
    | RevokeRequest
    | WatchRequest
    | CancelRequest
)


class RangePart(msgspec.Struct, frozen=True, array_like=True):
    """Some keys of a range, in order, and the revision of the range."""

    pairs: tuple[KeyValue, ...]
    revision: Revision


class ServedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer to the request with this number."""

    number: int
    kind: int
    content: msgspec.Raw


class FrameError(Exception):
    """The bytes are no frame of this format."""


_encoder: Final = msgspec.msgpack.Encoder()
_requests: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_answers: Final = msgspec.msgpack.Decoder(ServedAnswer)
_text: Final = msgspec.msgpack.Decoder(str)


def request_frame(request: Request) -> bytes:
    """Returns the frame of a request."""
    return _frame(_encoder.encode(request), MAX_REQUEST_BYTES)


def answer_frame(number: int, kind: int, content: Any) -> bytes:
    """Returns the frame of an answer."""
    return _frame(_encoder.encode((number, kind, content)), MAX_ANSWER_BYTES)


def error_frame(number: int, error: MetadataStoreError) -> bytes:
    """Returns the answer that raises `error` at the client."""
    kind = next((kind for kind, of_error in _ERRORS if isinstance(error, of_error)), UNAVAILABLE)
    return answer_frame(number, kind, str(error))


def read_request(content: bytes) -> Request:
    """Decodes a request. Errors: FrameError."""
    try:
        return _requests.decode(content)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not a request: {error}") from error


def read_answer(content: bytes) -> ServedAnswer:
    """Decodes an answer. Errors: FrameError."""
    try:
        return _answers.decode(content)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not an answer: {error}") from error


def error_of(answer: ServedAnswer) -> MetadataStoreError | None:
    """Returns the error of an answer; None if it has a result. Errors: FrameError."""
    if answer.kind in (DONE, MORE):
        return None
    of_error = dict(_ERRORS).get(answer.kind)
    if of_error is None:
        raise FrameError(f"not a kind of answer: {answer.kind}")
    return of_error(_text.decode(answer.content))


def length_of(head: bytes, most: int) -> int:
    """Returns how many bytes follow a head. Errors: FrameError for more than `most`."""
    (length,) = HEAD.unpack(head)
    if length > most:
        raise FrameError(f"a frame of {length} bytes, {most} are allowed")
    return int(length)


def parts_of(pairs: list[KeyValue], revision: Revision) -> list[RangePart]:
    """Splits a range into parts of about `PART_BYTES`; returns at least one."""
    parts: list[RangePart] = []
    begin, size_bytes = 0, 0
    for place, pair in enumerate(pairs):
        size_bytes += len(pair.key) + len(pair.value)
        if size_bytes >= PART_BYTES:
            parts.append(RangePart(tuple(pairs[begin : place + 1]), revision))
            begin, size_bytes = place + 1, 0
    return [*parts, RangePart(tuple(pairs[begin:]), revision)]


def _frame(content: bytes, most: int) -> bytes:
    assert len(content) <= most, f"a frame of {len(content)} bytes"
    return HEAD.pack(len(content)) + content
