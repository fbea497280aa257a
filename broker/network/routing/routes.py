"""What a handler declares for an API, and the route of each version: how it is read, handled and written."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec

from lowtide.broker.audit.audit_log import AuditEvent
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
"""A piece of an answer: bytes, or a slice of a file that is read when it is sent."""

Handle = Callable[[Any, Any], Any]
HandleLater = Callable[[Any, Any], Coroutine[Any, Any, Any]]
AuditLine = tuple[str, dict[str, Any], bool]
"""Event, fields, and whether something was changed."""


class JointForm(msgspec.Struct, frozen=True):
    """The short form of an API whose requests may be executed together, of one connection or several.

    `read(buffer, start, end, frame_max, is_one)` reads the frames between `start` and `end`, each of at most
    `frame_max`
    bytes; `is_one` says that one connection sent all of them. It returns groups of requests that are alike, for one
    connection at most the first. A group has `version`, `correlation_ids`, `places` (of its requests among all) and
    `stop`
    (where the last frame ends). `answer(group, buffer, clients)` executes them, and returns for each the frame of its
    answer, what a handler returns, or the promise of either; None where that isn't the way, before anything was
    changed:
    each is executed by the handler then.
    """

    read: Callable[[Any, int, int, int, bool], list[Any] | None]
    answer: Callable[[Any, Any, list[Client]], list[Any] | None]


class NoGuard(msgspec.Struct, frozen=True):
    """Declares that no guard stands before a handler, and why."""

    reason: str


class Forwarding(msgspec.Struct, frozen=True):
    """Declares that only the controller can carry out a request: other brokers forward it.

    `refused` makes the answer to a request, in a version, that can't be forwarded. `shows` returns whether an image
    shows
    what the answer says; the broker waits for that before it answers.
    """

    refused: Callable[[Any, int, Refusal], Any]
    shows: Callable[[Any, Any, MetadataImage], bool] | None = None


class AuditLines(msgspec.Struct, frozen=True):
    """Declares what the audit log says about a request.

    `lines` makes the lines from the request, its answer (None if the client has gone), what `before` returned, and the
    broker. `before` is called with the request and the broker before the request is carried out.
    """

    kind: AuditEvent
    lines: Callable[[Any, Any, Any, Any], Iterable[AuditLine]]
    before: Callable[[Any, Any], Any] = lambda _request, _broker: None


class ChangedPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """Declares that a request changes partitions, which `controller_mutation_rate` limits (KIP-599).

    `costs` returns the rows of a request and how many partitions each changes, from the request, its version, the image
    and the default number of partitions. `rows` names the field with the rows in a version, `answers` that of the
    answer.
    From version `refused_since` on `refused` makes the answer's row of one above the quota.
    """

    refused_since: int
    costs: Callable[[Any, int, MetadataImage, int], list[tuple[Any, int]]]
    refused: Callable[[Any], Any]
    answers: str
    rows: Callable[[int], str] = lambda _version: "topics"


class HandlerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an API declares. Tables of APIs elsewhere are derived from this.

    `guard` checks the permissions of a request (`guards/guard.py:Guard`); it has no default. Exactly one of `handle`,
    which answers in the
    loop, and `handle_later`, a coroutine that may wait for metadata, is set.

    `advertised_minimum` differs from the lowest served version where clients need to see more (KAFKA-18659).
    `answers_again` is how many
    responses the handler may give out more than once, as the same object that doesn't change: so many are kept in their
    encoded form. `counts_errors`: the handler counts the errors of its answers itself.

    `bounds` say how many rows of a request the handler takes at once. `cut` says how a request of more is cut, where it
    may depend on the version; without it a request is handled whole.

    Quotas count the bytes of `request_bytes` as produced and those of `answer_bytes` as consumed. They count nothing
    `between_brokers`.
    """

    key: ApiKey
    guard: Any
    handle: Handle | None = None
    handle_later: HandleLater | None = None
    advertised_minimum: int | None = None
    bounds: Bounds = Bounds()
    cut: Cut | Callable[[int], Cut | None] | None = None
    answers_again: int = 0
    joint: JointForm | None = None
    forwarding: Forwarding | None = None
    audit: AuditLines | None = None
    counts_errors: bool = False
    between_brokers: bool = False
    partition_changes: ChangedPartitions | None = None
    request_bytes: Callable[[Any], int] | None = None
    answer_bytes: Callable[[Any], int] | None = None

    def wrapped(self, **handlers: Any) -> HandlerSpec:
        """Returns it with other handlers, without the joint form, which would bypass them, unless it is given."""
        return msgspec.structs.replace(self, **({"joint": None} | handlers))


class Route(msgspec.Struct, frozen=True):
    """One API in one version."""

    name: str
    is_produce: bool
    handle: Callable[[Any, Any], Any]
    read: Callable[[Any, int, int, int, bool], tuple[Any, str | None]]
    """`Codec.read_request`, to be called with the next two."""
    rows_max: int
    """How many rows a request may have."""
    is_flexible: bool
    """Whether tagged fields end the header of a request."""
    write: Callable[[int, Any], list[Part]]
    cut: Cut | None
    """How a large request is cut; one with at most `undivided_bytes` isn't large, and has no more than
    `bounds.undivided_max` rows."""
    bounds: Bounds
    undivided_bytes: int
    times: ApiTimes
    follower_times: ApiTimes
    """For requests of brokers that follow: `Client.of_a_follower`."""
    joint: JointForm | None = None
    """Tried first."""
    is_forwarded: bool = False
    """Whether the request may come in an envelope."""

    def rows_to_cut(self, request: Any) -> int:
        """Returns the number of rows of a request that must be cut, 0 for another one."""
        rows = 0 if self.cut is None else row_count(request, self.cut.fields)
        return rows if rows > self.bounds.undivided_max else 0


class VersionRange(msgspec.Struct, frozen=True, gc=False):
    """Versions as they are advertised, both inclusive."""

    minimum: int
    maximum: int


def read_request(
    route: Route, buffer: memoryview, start: int, stop: int, on_surplus: Callable[[str, int], None] = lambda *_: None
) -> tuple[Any, str | None]:
    """Returns the request in `buffer[start:stop]` and its client id; bytes behind its fields are ignored, as in Kafka.

    `on_surplus` is called with the route's name and how many they are. Errors: those of `Route.read`.
    """
    try:
        return route.read(buffer, start, stop, route.rows_max, route.is_flexible)
    except SurplusBytesError as surplus:
        on_surplus(route.name, stop - surplus.position)
        return route.read(buffer, start, surplus.position, route.rows_max, route.is_flexible)
