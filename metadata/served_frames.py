"""What goes over a local socket between a store that is served and a process that uses it.

A frame is a length of four bytes, big-endian, and as many bytes of MessagePack. Requests have a number, which their
answers repeat; a client may have many requests under way, and they are answered in any order. An answer is a number, a
kind and a content: `DONE` ends the request, `MORE` is a part of a range, and each other kind is an error of the port,
whose content is its sentence.

A watch is a request for the next batch from a revision on, which the server answers when there is one. So a slow client
costs the server nothing, and the history that the store keeps is the only queue.

Pure. Both ends are of one installation: the format has no version, and is never written down.
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
"""More than `MAX_TRANSACTION_BYTES` and what is around it. A server closes a connection that sends a larger one."""

MAX_ANSWER_BYTES: Final = 256 << 20
"""More than all that one transaction can read (`MAX_TRANSACTION_OPERATIONS` values of `MAX_TRANSACTION_BYTES`)."""

PART_BYTES: Final = 1 << 20
"""From this size on a part of a range is sent; the keys and values in it count."""

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
    """The request with this number is given up; it is not answered any more."""

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
    """Some keys of a range, in their order, and the revision of all of it."""

    pairs: tuple[KeyValue, ...]
    revision: Revision


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """Of the request with this number."""

    number: int
    kind: int
    content: msgspec.Raw


class FrameError(Exception):
    """What came is no frame of this format."""


_encoder: Final = msgspec.msgpack.Encoder()
_requests: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_answers: Final = msgspec.msgpack.Decoder(Answer)
_text: Final = msgspec.msgpack.Decoder(str)


def request_frame(request: Request) -> bytes:
    """A request as it is sent."""
    return _frame(_encoder.encode(request), MAX_REQUEST_BYTES)


def answer_frame(number: int, kind: int, content: Any) -> bytes:
    """An answer as it is sent."""
    return _frame(_encoder.encode((number, kind, content)), MAX_ANSWER_BYTES)


def error_frame(number: int, error: MetadataStoreError) -> bytes:
    """The answer that raises `error` at the client."""
    kind = next((kind for kind, of_error in _ERRORS if isinstance(error, of_error)), UNAVAILABLE)
    return answer_frame(number, kind, str(error))


def read_request(content: bytes) -> Request:
    """What a frame asks for. Errors: FrameError."""
    try:
        return _requests.decode(content)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a request: {error}") from error


def read_answer(content: bytes) -> Answer:
    """What a frame answers. Errors: FrameError."""
    try:
        return _answers.decode(content)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not an answer: {error}") from error


def error_of(answer: Answer) -> MetadataStoreError | None:
    """The error that an answer stands for; None for one that has a result. Errors: FrameError."""
    if answer.kind in (DONE, MORE):
        return None
    of_error = dict(_ERRORS).get(answer.kind)
    if of_error is None:
        raise FrameError(f"not a kind of answer: {answer.kind}")
    return of_error(_text.decode(answer.content))


def length_of(head: bytes, most: int) -> int:
    """How many bytes follow a head. Errors: FrameError for more than `most`."""
    (length,) = HEAD.unpack(head)
    if length > most:
        raise FrameError(f"a frame of {length} bytes, {most} are allowed")
    return int(length)


def parts_of(pairs: list[KeyValue], revision: Revision) -> list[RangePart]:
    """A range in parts of about `PART_BYTES`, one at least."""
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
