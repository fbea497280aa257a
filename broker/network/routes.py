"""What a handler offers for an API, and the route that becomes of it for each version: what is called to read, handle and write it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from lowtide.broker.network.large_requests import Bounds
from lowtide.broker.network.outgoing import Part
from lowtide.broker.network.request_parts import Cut
from lowtide.broker.network.request_times import ApiTimes
from lowtide.broker.request_context import Client
from lowtide.protocol.api_keys import ApiKey

Handle = Callable[[Any, Any], Any]
HandleLater = Callable[[Any, Any], Coroutine[Any, Any, Any]]


class JointForm(msgspec.Struct, frozen=True):
    """The short form of an API whose requests may be executed together: those of one connection, or of several (`gathering`).

    `read(buffer, start, end, frame_max, is_one)` reads the frames between `start` and `end`, each of at most `frame_max`
    bytes; `is_one` says that one connection sent all of them. It returns groups of requests that are alike, for one
    connection at most the first. A group has `version`, `correlation_ids`, `places` (of its requests among all) and `stop`
    (where the last frame ends). `answer(group, buffer, clients)` executes them, and returns for each the frame of its
    answer, what a handler returns, or the promise of either; None where that isn't the way, before anything was changed:
    each is executed by the handler then.
    """

    read: Callable[[Any, int, int, int, bool], list[Any] | None]
    answer: Callable[[Any, Any, list[Client]], list[Any] | None]


class HandlerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler module offers: `handle` answers in the loop, `handle_later` is a coroutine that writes metadata.

    `advertised_minimum` differs from the lowest served version where clients need to see more (KAFKA-18659). `answers_again` is how many
    responses the handler may give out more than once, as the same object that doesn't change: so many are kept in their
    encoded form.

    `bounds` say how many rows of a request the handler takes at once. `cut` says how a request of more is cut, where it
    may depend on the version; without it a request is handled whole.
    """

    key: ApiKey
    handle: Handle | None = None
    handle_later: HandleLater | None = None
    advertised_minimum: int | None = None
    bounds: Bounds = Bounds()
    cut: Cut | Callable[[int], Cut | None] | None = None
    answers_again: int = 0
    joint: JointForm | None = None

    def wrapped(self, **handlers: Any) -> HandlerSpec:
        """Returns it with handlers around these, and without the joint form unless that is given too: it would go past them."""
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
    """How a large request is cut; one with at most `undivided_bytes` isn't large, and has no more than `bounds.undivided_max` rows."""
    bounds: Bounds
    undivided_bytes: int
    times: ApiTimes
    follower_times: ApiTimes
    """For requests of brokers that follow: `Client.of_a_follower`."""
    joint: JointForm | None = None
    """Tried first."""


class VersionRange(msgspec.Struct, frozen=True, gc=False):
    """Versions as they are advertised, both inclusive."""

    minimum: int
    maximum: int
