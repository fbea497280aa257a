"""What an HTTP server is given: sites, which are served, and a gate, which decides who may come in.

A *site* is brought as a loader: a function that is called once, in a thread, when the first visitor comes. It is the
place for imports, aiohttp's too, and for reading the files that are served. What it returns has an `add_to`:

    class Hello:
        def add_to(self, app: web.Application) -> None:
            app.router.add_get("/hello", self._hello)

        async def _hello(self, request: web.Request) -> web.StreamResponse:
            return web.Response(text="hello")

    def load_hello() -> Site:
        from somewhere.hello import Hello

        return Hello()

What holds for every site: whom the gate refuses never gets to a handler, answers have headers against their misuse, a
handler has
`http_app.REQUEST_S` unless it is marked by `http_app.lives_long`, bodies have `http_app.BODY_BYTES_MAX`, and the limits of
`http_connection` and `http_visits` hold. A site serves no file by its path: what it serves is read when it is loaded, so there is
nothing to escape from. Handlers run in the event loop: work that takes more than a millisecond goes in slices, or
elsewhere.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from aiohttp import web


class Site(Protocol):
    """Some routes, and what answers there."""

    def add_to(self, app: web.Application) -> None:
        """Add the routes. Called once, in the event loop."""
        ...


SiteLoader: TypeAlias = Callable[[], Site]
"""Imports what a site needs and makes it. Called once, in a thread, at the first visit."""


class Gate(Protocol):
    """Decides who may come in."""

    async def passed(self, request: web.Request) -> web.StreamResponse | str:
        """Returns the login whose share of all requests this one uses (empty for this machine), or the answer that refuses it."""
        ...


GateLoader: TypeAlias = Callable[[], Gate]
"""Likewise for the gate."""

TlsContext: TypeAlias = Callable[[], ssl.SSLContext]
"""The context that is in force now."""
