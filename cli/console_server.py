"""The HTTP server of `lowtide console`, on 127.0.0.1."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from lowtide.console.settings import ConsoleSettings, LoginKind
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
    """Prints errors of the server on standard error."""

    def error(self, event: str, *, error: object = "", **_: Any) -> None:
        print(f"lowtide console: {event}: {error}", file=sys.stderr)


class ConsoleServer:
    """Serves the console: `listen`, then `until_stopped`, then `close`."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._clock = SystemClock()
        self._log = _Log()
        self._tasks = TaskRegistry(self._on_failed)
        self._server = HttpServer(LoopbackGate, [self._load_site], self._clock, self._tasks, self._log)
        self._stopping = asyncio.Event()

    async def listen(self, port: int) -> str:
        """Begins to listen; returns the URL, with a token if it is needed. Errors: OSError."""
        bound = await self._server.listen(HOST, port)
        secret = f"#/?token={self._settings.token}" if self._settings.login is LoginKind.TOKEN else ""
        return f"http://{HOST}:{bound}/console/{secret}"

    async def until_stopped(self) -> None:
        """Waits for SIGINT or SIGTERM."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        await self._stopping.wait()

    async def close(self) -> None:
        """Closes all connections, and cancels running work."""
        await self._server.close()
        await self._tasks.cancel_all()

    def _load_site(self) -> Site:
        from lowtide.console.sessions import ConsolePorts  # noqa: PLC0415 - imports aiohttp
        from lowtide.console.site import ConsoleSite  # noqa: PLC0415

        return ConsoleSite(self._settings, ConsolePorts(self._clock, system_random(), TaskRegistry(self._on_failed)))

    def _on_failed(self, name: str, error: BaseException) -> None:
        self._log.error(f"{name} failed", error=f"{type(error).__name__}: {error}")


class LoopbackGate:
    """Accepts requests from this machine to its own name, and none from pages of other sites."""

    async def passed(self, request: web.Request) -> web.StreamResponse | str:
        """Returns an answer that refuses the request, or an empty user name: the site asks for logins itself."""
        from aiohttp import web  # noqa: PLC0415

        if comes_from_another_site(request):
            return web.Response(status=403, text="requests from pages of other sites are refused\n")
        if not is_local(request) or host_of(request) not in LOOPBACK_NAMES:
            return web.Response(status=421, text="the host must be localhost, 127.0.0.1 or [::1], without a proxy\n")
        return ""
