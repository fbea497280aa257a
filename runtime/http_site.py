"""The interfaces of an HTTP server: sites, which it serves, and a gate, which decides about access.

A *site* is passed as a loader: a function that is called once, in a thread, at the first visit. It does the imports,
including aiohttp's, and reads the files to serve. It returns an object with `add_to`:

    class Hello:
        def add_to(self, app: web.Application) -> None:
            app.router.add_get("/hello", self._hello)

        async def _hello(self, request: web.Request) -> web.StreamResponse:
            return web.Response(text="hello")

    def load_hello() -> Site:
        from somewhere.hello import Hello

        return Hello()

For every site: requests that the gate refuses don't reach a handler; answers have protective headers; a handler has
`http_app.REQUEST_S` unless it is marked by `http_app.lives_long`; bodies have at most `http_app.BODY_BYTES_MAX`; the
limits of `http_connection` and `http_visits` apply. A site serves no file by path: everything is read when it is
loaded, so path traversal is impossible. Handlers run in the event loop: work of more than a millisecond is sliced or
runs elsewhere.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from aiohttp import web


class Site(Protocol):
    """Routes and their handlers."""

    def add_to(self, app: web.Application) -> None:
        """Adds the routes. Called once, in the event loop."""


SiteLoader: TypeAlias = Callable[[], Site]
"""Imports what a site needs and creates it. Called once, in a thread, at the first visit."""


class AccessGate(Protocol):
    """Decides about access."""

    async def passed(self, request: web.Request) -> web.StreamResponse | str:
        """Returns the login whose rate limit applies (empty for this machine), or the refusal."""


GateLoader: TypeAlias = Callable[[], AccessGate]
"""Likewise for the gate."""

TlsContext: TypeAlias = Callable[[], ssl.SSLContext]
"""Returns the current TLS context."""
