"""The server of `lowtide console`: one site on 127.0.0.1, for browsers of this machine."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from lowtide.console.settings import ConsoleSettings, Login
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.http_origin import LOOPBACK_NAMES, comes_from_another_site, host_of, is_local
from lowtide.runtime.http_server import HttpServer
from lowtide.runtime.random import system_random
from lowtide.runtime.tasks import TaskRegistry

if TYPE_CHECKING:
    from aiohttp import web

    from lowtide.runtime.http_site import Site

HOST: Final = "127.0.0.1"


class _Log:
    """What goes wrong in the server itself, on standard error."""

    def error(self, event: str, *, error: object = "", **_: Any) -> None:
        print(f"lowtide console: {event}: {error}", file=sys.stderr)


class ConsoleServer:
    """`listen`, then `until_stopped`, then `close`."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._clock = SystemClock()
        self._log = _Log()
        self._tasks = TaskRegistry(self._on_failed)
        self._server = HttpServer(LoopbackGate, [self._load_site], self._clock, self._tasks, self._log)
        self._stopping = asyncio.Event()

    async def listen(self, port: int) -> str:
        """Listen; returns the address for a browser, with the token if it needs one. Errors: OSError."""
        bound = await self._server.listen(HOST, port)
        secret = f"#/?token={self._settings.token}" if self._settings.login is Login.TOKEN else ""
        return f"http://{HOST}:{bound}/console/{secret}"

    async def until_stopped(self) -> None:
        """Wait for SIGINT or SIGTERM."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        await self._stopping.wait()

    async def close(self) -> None:
        """End all connections, and what visitors have under way."""
        await self._server.close()
        await self._tasks.cancel_all()

    def _load_site(self) -> Site:
        from lowtide.console.sessions import Ports  # noqa: PLC0415 - aiohttp comes with it
        from lowtide.console.site import ConsoleSite  # noqa: PLC0415

        return ConsoleSite(self._settings, Ports(self._clock, system_random(), TaskRegistry(self._on_failed)))

    def _on_failed(self, name: str, error: BaseException) -> None:
        self._log.error(f"{name} failed", error=f"{type(error).__name__}: {error}")


class LoopbackGate:
    """Lets in what comes from this machine, by its own name, and from no page of another site."""

    async def passed(self, request: web.Request) -> web.StreamResponse | str:
        """Returns an empty name: the site itself asks for logins. An answer refuses the request."""
        from aiohttp import web  # noqa: PLC0415 - imported by then

        if comes_from_another_site(request):
            return web.Response(status=403, text="a page of another site may not ask for this\n")
        if not is_local(request) or host_of(request) not in LOOPBACK_NAMES:
            return web.Response(status=421, text="the host is localhost, 127.0.0.1 or [::1], and no proxy is between\n")
        return ""
