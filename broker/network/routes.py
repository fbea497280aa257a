"""What a handler offers for an API, and the route that becomes of it for each version: what is called to read, handle and write it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from lowtide.broker.network.large_requests import Bounds, LargeRoute
from lowtide.broker.network.outgoing import Part
from lowtide.broker.network.request_times import ApiTimes
from lowtide.broker.request_context import Client
from lowtide.broker.turns import Steps
from lowtide.protocol.api_keys import ApiKey

Handle = Callable[[Any, Any], Any]
HandleLater = Callable[[Any, Any], Coroutine[Any, Any, Any]]


class RunPath(msgspec.Struct, frozen=True):
    """A way for requests that have arrived together and are alike: all of them read, handled and answered at once.

    `read` takes a buffer, where in it the first one's frame begins, where what was received ends, and the size of the largest frame that is
    allowed. What it returns has the correlation ids as its second item. `handle` takes that, the buffer, and the
    client; it returns the answers, where in the buffer the run ends, and of how many requests it is. The answers are
    bytes, or a list of what handlers return. Either returns None where they aren't, before anything was changed: they
    are executed one by one then.
    """

    read: Callable[[Any, int, int, int], Any]
    handle: Callable[[Any, Any, Client], tuple[bytes | list[Any], int, int] | None]


class GroupPath(msgspec.Struct, frozen=True):
    """A way for requests that have come on several connections in the same moment and are alike: see `gathering`.

    `read` takes a buffer, and where in it their frames begin and end. It returns groups, of which the fourth item has the places of their
    requests among all, and the second their correlation ids. `handle` takes a group, the buffer, and the clients of the
    group's requests; it returns for each of them the answer's frame, or what a handler returns. Either returns None
    where that isn't the way, before anything was changed: they are executed one by one.
    """

    read: Callable[[Any, int, int], list[Any] | None]
    handle: Callable[[Any, Any, list[Client]], list[Any] | None]


class QuickPath(msgspec.Struct, frozen=True):
    """A second way through a handler, for its usual requests only: fewer steps to the same answer, the same changes, the same figures.

    `read` takes a buffer, and where in it a request begins and ends; `handle` takes what it returned, the buffer, and the client. Either
    returns None for a request that isn't usual, before anything was changed: it goes the way of all others then. `handle` returns the
    answer's frame, or what a handler returns. A handler that is wrapped loses this way, unless its wrapper wraps both.
    """

    read: Callable[[Any, int, int], Any]
    handle: Callable[[Any, Any, Client], Any]
    run: RunPath | None = None
    group: GroupPath | None = None


class HandlerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler module offers: `handle` answers in the loop, `handle_later` is a coroutine that writes metadata.

    `advertised_minimum` differs from the lowest served version where clients need to see more (KAFKA-18659). `answers_again` is how many
    responses the handler may give out more than once, as the same object that doesn't change: so many are kept in their
    encoded form.

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
    quick: QuickPath | None = None

    def wrapped(self, **handlers: Any) -> HandlerSpec:
        """With handlers around these, and without the quick path, unless that is given too: it would go past them."""
        return msgspec.structs.replace(self, **({"quick": None} | handlers))


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
    """For requests of brokers that follow: `Client.of_a_follower`."""
    quick: QuickPath | None = None
    """Tried first."""


class VersionRange(msgspec.Struct, frozen=True, gc=False):
    """Versions as they are advertised, both inclusive."""

    minimum: int
    maximum: int
