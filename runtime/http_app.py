"""The aiohttp side of the HTTP server, imported by its thread, because importing aiohttp takes 80 ms and 8 MB.

Around every handler, from the outside in: the visitor's rate (429), the body's size (413), the gate, the rate of all
logged-in visitors (429), the time (504). Every answer gets the headers below, unless the handler has set them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiohttp import web

from lowtide.runtime.addresses import network_of
from lowtide.runtime.http_connection import HttpConnection

if TYPE_CHECKING:
    from lowtide.runtime.http_site import AccessGate, Site
    from lowtide.runtime.http_visits import Visits

BODY_BYTES_MAX: Final = 64 * 1024
"""The largest body of a request."""

REQUEST_S: Final = 30.0
"""How long a handler may take, unless it `lives_long`."""

LINGER_S: Final = 1.0
"""How long a body that a handler left unread is still read, so that its answer arrives."""

LINE_BYTES_MAX: Final = 8190
HEADERS_MAX: Final = 64

CLOSE_S: Final = 0.05
"""How long handlers may finish when the server closes, before they are cancelled."""

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every answer; a site with pages sets its own policy."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[web.StreamResponse]])

CLIENT: Final = web.RequestKey("client", str)
"""The key of the client's address, which a trusted proxy may have reported."""

_LIVES_LONG: Final = "_lives_long"
_DECIDES_ITSELF: Final = "_decides_itself"
_ASKS_FOR_LOGIN: Final = "_asks_for_login"
_ANSWERS_PROBES: Final = "_answers_probes"
_KEPT: Final = ("Allow", "Location", "Retry-After")
"""Headers of a refusal that a client needs."""

_silent = logging.Logger("http")  # noqa: LOG001 - its own logger without handlers: visitors write nothing into the log
_silent.addHandler(logging.NullHandler())

_HANDLER: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "access_log": None,
        "auto_decompress": False,
        "keepalive_timeout": 3600,  # `Visits` ends connections earlier
        "lingering_time": LINGER_S,
        "logger": _silent,
        "max_field_size": LINE_BYTES_MAX,
        "max_headers": HEADERS_MAX,
        "max_line_size": LINE_BYTES_MAX,
    }
)


def lives_long(handler: HandlerT) -> HandlerT:
    """Marks a handler without a time limit: one that streams events. A peer that doesn't read still ends it."""
    setattr(handler, _LIVES_LONG, True)
    return handler


def decides_itself(handler: HandlerT) -> HandlerT:
    """Marks a handler that checks the visitor's rights itself; the gate checks only the login."""
    setattr(handler, _DECIDES_ITSELF, True)
    return handler


def asks_for_login_itself(handler: HandlerT) -> HandlerT:
    """Marks a handler that requires its own login; the gate requires none from this machine."""
    setattr(handler, _ASKS_FOR_LOGIN, True)
    return handler


def answers_probes(handler: HandlerT) -> HandlerT:
    """Marks a health check: this machine needs no login, and the requests have their own rate."""
    setattr(handler, _ANSWERS_PROBES, True)
    return handler


def asks_for_rights_itself(request: web.Request) -> bool:
    """Returns whether the handler of a request is marked by `decides_itself`."""
    return _is_marked(request, _DECIDES_ITSELF)


def is_open_here(request: web.Request) -> bool:
    """Returns whether the handler of a request answers this machine without a login."""
    return _is_marked(request, _ASKS_FOR_LOGIN) or _is_marked(request, _ANSWERS_PROBES)


def _is_marked(request: web.Request, mark: str) -> bool:
    return getattr(request.match_info.handler, mark, False) is True


class HttpApp:
    """Answers the requests of all connections. `begin`, then `close`."""

    def __init__(self, gate: AccessGate, sites: Sequence[Site], visits: Visits, log: Any) -> None:
        self._gate = gate
        self._visits = visits
        self._log = log
        app = web.Application(middlewares=[self._around], client_max_size=BODY_BYTES_MAX)
        app.on_response_prepare.append(_add_headers)
        for site in sites:
            site.add_to(app)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=CLOSE_S)

    async def begin(self) -> Callable[[HttpConnection], asyncio.Protocol]:
        """Returns the factory of connection handlers."""
        await self._runner.setup()
        server, loop = self._runner.server, asyncio.get_running_loop()
        assert server is not None
        return lambda _connection: _RequestHandler(server, loop=loop, **_HANDLER)

    async def close(self) -> None:
        await self._runner.cleanup()

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = None if request.transport is None else request.transport.get_protocol()
        if not isinstance(connection, HttpConnection):
            return _text(400, "")  # The connection is gone.
        connection.on_request()
        try:
            return await self._answer(connection, request, handler)
        except web.HTTPException as refusal:
            return _text(refusal.status, refusal.reason, refusal.headers)
        except TimeoutError:
            return _closing(_text(504, "the answer took too long"))
        except Exception as error:  # noqa: BLE001 - a bug of ours costs one request
            self._log.error(
                "HTTP request failed", method=request.method, error=f"{type(error).__name__}: {error}", exc_info=True
            )
            return _closing(_text(500, "the request failed, the broker's log says why"))
        finally:
            connection.on_answered()

    async def _answer(self, connection: HttpConnection, request: web.Request, handler: Handler) -> web.StreamResponse:
        is_probe = _is_marked(request, _ANSWERS_PROBES)
        request[CLIENT] = self._visits.proxies.client_of(request)
        if not self._visits.admits_request(network_of(request[CLIENT]), is_probe=is_probe):
            return _text(429, "too many requests", {"Retry-After": "1"})
        if request.content_length is not None and request.content_length > BODY_BYTES_MAX:
            return _closing(_text(413, f"a body has {BODY_BYTES_MAX} bytes at most"))
        async with asyncio.timeout(REQUEST_S):
            passed = await self._gate.passed(request)
            if isinstance(passed, web.StreamResponse):
                return passed
            if passed:
                self._visits.on_login(network_of(request[CLIENT]))
                if not is_probe and not self._visits.admits_login(passed):
                    return _text(429, "too many requests", {"Retry-After": "1"})
            if not _is_marked(request, _LIVES_LONG):
                return await handler(request)
        return await handler(request)


class _RequestHandler(web.RequestHandler):
    """aiohttp's handler, except that errors don't repeat the invalid request."""

    __slots__ = ()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answers a request that can't be read."""
        response = _closing(_text(status, "this is no HTTP/1.1 request" if status < 500 else "the request failed"))  # noqa: PLR2004
        response.headers.update(HEADERS)
        return response


def _text(status: int, text: str, headers: Mapping[str, str] = MappingProxyType({})) -> web.Response:
    kept = {name: value for name, value in headers.items() if name in _KEPT}
    return web.Response(status=status, text=f"{text}\n", headers=kept)


def _closing(response: web.Response) -> web.Response:
    response.force_close()
    return response


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers["Server"] = "Lowtide"
