"""What a handler offers for an API, and the route that becomes of it for each version: what is called to read, handle and write it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from lowtide.broker.network.large_requests import Bounds, LargeRoute
from lowtide.broker.network.outgoing import Part
from lowtide.broker.network.request_times import ApiTimes
from lowtide.broker.turns import Steps
from lowtide.protocol.api_keys import ApiKey

Handle = Callable[[Any, Any], Any]
HandleLater = Callable[[Any, Any], Coroutine[Any, Any, Any]]


class HandlerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler module offers: `handle` answers in the loop, `handle_later` is a coroutine that writes metadata.

    `advertised_minimum` differs from the lowest served version where clients need to see more (KAFKA-18659). `answers_again` is how many
    responses the handler may give out more than once, as the same object that doesn't change: so many are kept in their encoded form.

    `bounds` say how many rows of a request the handler takes at once. `handle_steps` is the handler for requests of more, in bounded steps;
    without it they are cut, or handled whole (`large_requests`).
    """

    key: ApiKey
    handle: Handle | None = None
    handle_later: HandleLater | None = None
    advertised_minimum: int | None = None
    handle_steps: Callable[[Any, Any], Steps] | None = None
    bounds: Bounds = Bounds()
    sends_records: bool = False
    answers_again: int = 0


class Route(msgspec.Struct, frozen=True):
    """One API in one version."""

    name: str
    is_produce: bool
    handle: Callable[[Any, Any], Any]
    read: Callable[[Any, int, int], tuple[Any, str | None]]
    write: Callable[[int, Any], list[Part]]
    large: LargeRoute
    """For requests that `read` refuses with TooManyRowsError."""
    times: ApiTimes
    follower_times: ApiTimes
    """For requests of brokers that follow: `RequestContext.of_a_follower`."""


class VersionRange(msgspec.Struct, frozen=True, gc=False):
    """Versions as they are advertised, both inclusive."""

    minimum: int
    maximum: int
