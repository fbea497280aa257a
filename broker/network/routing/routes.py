"""The declaration of an API by its handler, and the route of each version: how it is read, handled and written."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec

from lowtide.broker.audit.audit_log import AuditEvent
from lowtide.broker.network.routing.answer_cache import AnswerCache
from lowtide.broker.network.routing.large_requests import Bounds
from lowtide.broker.network.routing.request_parts import Cut, row_count
from lowtide.broker.network.routing.request_times import ApiTimes
from lowtide.broker.request_context import Client
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import SurplusBytesError
from lowtide.replication.refusal import Refusal
from lowtide.storage.log.segments.segment_file import FileSlice

Buffer = bytes | bytearray | memoryview
Part = Buffer | FileSlice
"""A part of an answer: bytes, or a slice of a file that is read when it is sent."""

Handle = Callable[[Any, Any], Any]
HandleLater = Callable[[Any, Any], Coroutine[Any, Any, Any]]
AuditLine = tuple[str, dict[str, Any], bool]
"""An event, its fields, and whether something was changed."""


class JointForm(msgspec.Struct, frozen=True):
    """The short form of an API that executes several requests together, of one connection or several.

    `read(buffer, start, end, frame_max, is_one)` reads the frames between `start` and `end`, each of at most
    `frame_max` bytes; `is_one` says that one connection sent all of them. It returns groups of similar requests, at
    most one group for one connection. A group has `version`, `correlation_ids`, `places` (the positions of its requests
    among all) and `stop` (the end of the last frame).

    `answer(group, buffer, clients)` executes a group and returns for each request the frame of its answer, the result
    of a handler, or a promise of either. It returns None before any change if the handler must execute them.
    """

    read: Callable[[Any, int, int, int, bool], list[Any] | None]
    answer: Callable[[Any, Any, list[Client]], list[Any] | None]


class NoGuard(msgspec.Struct, frozen=True):
    """Declares that a handler has no guard, and why."""

    reason: str


class Forwarding(msgspec.Struct, frozen=True):
    """Declares that only the controller can carry out a request; other brokers forward it.

    `refused` makes the answer to a request (in a version) that can't be forwarded. `shows` returns whether an image
    shows the result in an answer; the broker waits for that before it answers.
    """

    refused: Callable[[Any, int, Refusal], Any]
    shows: Callable[[Any, Any, MetadataImage], bool] | None = None


class AuditLines(msgspec.Struct, frozen=True):
    """Declares the lines of the audit log about a request.

    `before` is called with the request and the broker before the request is executed. `lines` makes the lines from the
    request, its answer (None if the client has gone), the result of `before`, and the broker.
    """

    kind: AuditEvent
    lines: Callable[[Any, Any, Any, Any], Iterable[AuditLine]]
    before: Callable[[Any, Any], Any] = lambda _request, _broker: None


class ChangedPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """Declares that a request changes partitions, which `controller_mutation_rate` limits (KIP-599).

    `costs` returns the rows of a request and the number of partitions that each changes, from the request, its version,
    the image and the default number of partitions. `rows` names the field with the rows in a version, and `answers` the
    field of the answer. From version `refused_since` on, `refused` makes the answer's row of a row above the quota.
    """

    refused_since: int
    costs: Callable[[Any, int, MetadataImage, int], list[tuple[Any, int]]]
    refused: Callable[[Any], Any]
    answers: str
    rows: Callable[[int], str] = lambda _version: "topics"


class HandlerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an API declares. Other tables of APIs are derived from this.

    `guard` checks the permissions of a request (`guards/guard.py:Guard`). Either `handle`, which answers in the loop,
    or `handle_later`, a coroutine that may wait for metadata, is set.

    `advertised_minimum` differs from the lowest served version if clients must see more (KAFKA-18659). `answers` keeps
    frequent answers. With `counts_errors` the handler counts the errors of its answers itself.

    `bounds` are the rows that the handler takes at once. `cut` says, perhaps by version, how a larger request is cut;
    without it a request is handled whole.

    Quotas count `request_bytes` as produced and `answer_bytes` as consumed, and nothing `between_brokers`.
    """

    key: ApiKey
    guard: Any
    handle: Handle | None = None
    handle_later: HandleLater | None = None
    advertised_minimum: int | None = None
    bounds: Bounds = Bounds()
    cut: Cut | Callable[[int], Cut | None] | None = None
    answers: AnswerCache | None = None
    joint: JointForm | None = None
    forwarding: Forwarding | None = None
    audit: AuditLines | None = None
    counts_errors: bool = False
    between_brokers: bool = False
    partition_changes: ChangedPartitions | None = None
    request_bytes: Callable[[Any], int] | None = None
    answer_bytes: Callable[[Any], int] | None = None

    def wrapped(self, **handlers: Any) -> HandlerSpec:
        """Returns a copy with other handlers. Without a new joint form it has none: the old one would bypass them."""
        return msgspec.structs.replace(self, **({"joint": None} | handlers))


class Route(msgspec.Struct, frozen=True):
    """One API in one version."""

    name: str
    is_produce: bool
    handle: Callable[[Any, Any], Any]
    read: Callable[[Any, int, int, int, bool], tuple[Any, str | None]]
    """`Codec.read_request`, called with the next two fields."""
    rows_max: int
    is_flexible: bool
    """Whether the header of a request ends with tagged fields."""
    write: Callable[[int, Any], list[Part]]
    cut: Cut | None
    """Says how a large request is cut."""
    bounds: Bounds
    undivided_bytes: int
    """A smaller request has at most `bounds.undivided_max` rows."""
    times: ApiTimes
    follower_times: ApiTimes
    """The times of requests of followers (`Client.of_a_follower`)."""
    joint: JointForm | None = None
    is_forwarded: bool = False
    """Whether the request may come in an envelope."""

    def rows_to_cut(self, request: Any) -> int:
        """Returns the number of rows of a request that must be cut, 0 for another one."""
        rows = 0 if self.cut is None else row_count(request, self.cut.fields)
        return rows if rows > self.bounds.undivided_max else 0


class VersionRange(msgspec.Struct, frozen=True, gc=False):
    """Advertised versions, both inclusive."""

    minimum: int
    maximum: int


def read_request(
    route: Route, buffer: memoryview, start: int, stop: int, on_surplus: Callable[[str, int], None] = lambda *_: None
) -> tuple[Any, str | None]:
    """Returns the request in `buffer[start:stop]` and its client id.

    Bytes behind its fields are ignored, as in Kafka, and reported to `on_surplus` with the route's name and their
    number. Errors: those of `Route.read`.
    """
    try:
        return route.read(buffer, start, stop, route.rows_max, route.is_flexible)
    except SurplusBytesError as surplus:
        on_surplus(route.name, stop - surplus.position)
        return route.read(buffer, start, surplus.position, route.rows_max, route.is_flexible)
