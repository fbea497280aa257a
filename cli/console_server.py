"""The HTTP server of `lowtide console`, its gate, and its certificate."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowtide.cli.printing import remark
from lowtide.console.settings import ConsoleSettings, LoginKind
from lowtide.runtime.addresses import is_loopback
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.http_origin import LOOPBACK_NAMES, NO_PROXIES, Proxies, comes_from_another_site, host_of, is_local
from lowtide.runtime.http_server import HttpServer
from lowtide.runtime.random import system_random
from lowtide.runtime.server_tls import ServerMaterial, server_context
from lowtide.runtime.tasks import TaskRegistry
from lowtide.runtime.tls import TlsError

if TYPE_CHECKING:
    from aiohttp import web

    from lowtide.console.site import ConsoleSite
    from lowtide.runtime.http_site import Site, TlsContext

HOST: Final = "127.0.0.1"
EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104 - names of all interfaces
HEALTH: Final = "/health/live"
PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """Where the console listens, and through which proxies visitors come."""

    host: str = HOST
    """Empty: all interfaces."""
    tls: TlsContext | None = None
    proxies: Proxies = NO_PROXIES

    @property
    def is_open(self) -> bool:
        """Whether other machines can connect."""
        return self.host != "localhost" and not is_loopback(self.host)

    def url(self, port: int) -> str:
        """Returns the URL for a browser on this machine."""
        host = HOST if self.host in EVERYWHERE else self.host
        return f"{'http' if self.tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"


LOOPBACK: Final = Entrance()


class _Log:
    """Prints errors of the server on standard error."""

    def error(self, event: str, *, error: object = "", **_: Any) -> None:
        remark(f"lowtide console: {event}: {error}")


class ConsoleServer:
    """Serves the console: `listen`, then `until_stopped`, then `close`."""

    def __init__(self, settings: ConsoleSettings, entrance: Entrance = LOOPBACK) -> None:
        self._settings = settings
        self._entrance = entrance
        self._clock = SystemClock()
        self._log = _Log()
        self._tasks = TaskRegistry(self._on_failed)
        self._server = HttpServer(
            self._load_gate, [self._load_site, LiveSite], self._clock, self._tasks, self._log, entrance.proxies
        )
        self._stopping = asyncio.Event()

    def stop_on_signals(self) -> None:
        """Makes SIGINT and SIGTERM end `until_stopped`. To be called before the URL is printed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)

    async def listen(self, port: int) -> str:
        """Begins to listen; returns the URL, with a token if it is needed. Errors: OSError."""
        bound = await self._server.listen(self._entrance.host, port, self._entrance.tls)
        secret = f"#/?token={self._settings.token}" if self._settings.login is LoginKind.TOKEN else ""
        return f"{self._entrance.url(bound)}/console/{secret}"

    async def until_stopped(self) -> None:
        """Waits until SIGINT or SIGTERM arrives (see `stop_on_signals`)."""
        await self._stopping.wait()

    async def close(self) -> None:
        """Closes all connections, and cancels running work."""
        await self._server.close()
        await self._tasks.cancel_all()

    @cached_property
    def _site(self) -> ConsoleSite:
        from lowtide.console.sessions import ConsolePorts  # noqa: PLC0415 - imports aiohttp
        from lowtide.console.site import ConsoleSite  # noqa: PLC0415

        return ConsoleSite(self._settings, ConsolePorts(self._clock, system_random(), TaskRegistry(self._on_failed)))

    def _load_site(self) -> Site:
        return self._site

    def _load_gate(self) -> ConsoleGate:
        return ConsoleGate(self._entrance, self._site.login_of)

    def _on_failed(self, name: str, error: BaseException) -> None:
        self._log.error(f"{name} failed", error=f"{type(error).__name__}: {error}")


class ConsoleGate:
    """Decides which requests reach the console, which has its own logins.

    Without other machines and trusted proxies it accepts requests from this machine to its own name only. It never
    accepts requests from pages of other sites.
    """

    def __init__(self, entrance: Entrance, login_of: Callable[[web.Request], str]) -> None:
        self._entrance = entrance
        self._login_of = login_of

    async def passed(self, request: web.Request) -> web.StreamResponse | str:
        """Returns an answer that refuses the request, or the login whose rate applies (empty for this machine)."""
        from aiohttp import web  # noqa: PLC0415

        if comes_from_another_site(request):
            return web.Response(status=403, text="requests from pages of other sites are refused\n")
        is_forwarded = self._entrance.proxies.has(request.remote or "")
        if is_local(request) and not is_forwarded and host_of(request) in LOOPBACK_NAMES:
            return ""
        if self._entrance.is_open or is_forwarded:
            return self._login_of(request)
        return web.Response(
            status=421,
            text="the host must be localhost, 127.0.0.1 or [::1]; --trusted-proxies allows requests of a proxy\n",
        )


class LiveSite:
    """Answers the probes of containers, without a login: the event loop runs."""

    def add_to(self, app: web.Application) -> None:
        from aiohttp import web  # noqa: PLC0415

        from lowtide.runtime.http_app import answers_probes, decides_itself  # noqa: PLC0415 - imports aiohttp

        @decides_itself
        @answers_probes
        async def live(_request: web.Request) -> web.StreamResponse:
            return web.json_response({"live": True})

        app.router.add_get(HEALTH, live)


class CertificateFiles:
    """A certificate and its key in PEM files. New connections use renewed files."""

    def __init__(self, certificate: str, key: str | None) -> None:
        """Reads the files. Errors: TlsError, OSError."""
        self._paths = [Path(certificate), *([Path(key)] if key is not None else [])]
        self._seen = self._stamps()
        self._context = self._loaded()
        self._trouble = ""

    def context(self) -> ssl.SSLContext:
        """Returns the context of the files as they are now, or of the last valid ones."""
        try:
            stamps = self._stamps()
            if stamps != self._seen:
                self._context, self._seen, self._trouble = self._loaded(), stamps, ""
        except (OSError, TlsError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                remark(f"lowtide console: {self._paths[0]}: the last valid certificate stays in use: {error}")
        return self._context

    def _loaded(self) -> ssl.SSLContext:
        certificate, *keys = (path.read_bytes() for path in self._paths)
        material = ServerMaterial(certificate, b"".join(keys))
        return server_context(material, client_auth="none", protocols=PROTOCOLS)

    def _stamps(self) -> list[tuple[int, int, int]]:
        """Returns what changes with the files. Errors: OSError."""
        found = [path.stat() for path in self._paths]
        return [(each.st_mtime_ns, each.st_size, each.st_ino) for each in found]
