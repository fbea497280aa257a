"""Opens the broker's HTTP listeners with those of clients, and closes them at the very end of a stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.config.http_listeners import HTTP_LISTENERS, SERVE_DEFAULT, TRUSTED_PROXIES, HttpListener
from lowtide.runtime.clock import Clock
from lowtide.runtime.http_origin import Proxies
from lowtide.runtime.http_server import HttpServer
from lowtide.runtime.http_site import GateLoader, SiteLoader, TlsContext
from lowtide.runtime.http_visits import Visits
from lowtide.runtime.tasks import TaskRegistry


class HttpService:
    """Serves HTTP for one broker. Call `listen` once, then `close`."""

    def __init__(
        self,
        config: BrokerConfig,
        gate: GateLoader,
        sites: Sequence[SiteLoader],
        clock: Clock,
        tasks: TaskRegistry,
        log: Any,
    ) -> None:
        """Loads `gate` and `sites` at the first visit."""
        self._listeners = config.http_listeners
        given = config.given.get(HTTP_LISTENERS)
        self._is_default = given is not None and given.source == SERVE_DEFAULT
        self._log = log
        self._server = HttpServer(gate, sites, clock, tasks, log, Proxies(config.trusted_proxies))
        self.addresses: tuple[str, ...] = ()
        """The addresses of the listeners, as URLs."""

    @property
    def visits(self) -> Visits:
        """Returns the connections, and the counts of them and their requests."""
        return self._server.visits

    async def listen(self, tls: Callable[[], TlsContext]) -> None:
        """Binds all listeners. `tls` returns the contexts of encrypted ones.

        Errors: OSError, in one sentence. If only the default port is taken, it logs a warning instead.
        """
        for listener in self._listeners:
            try:
                port = await self._server.listen(listener.host, listener.port, tls() if listener.is_encrypted else None)
            except OSError as error:
                reason = (error.strerror or str(error)).rpartition(": ")[2]
                if not self._is_default:
                    raise OSError(f"{HTTP_LISTENERS}={listener.text} is not possible: {reason}.") from error
                remedy = f"set {HTTP_LISTENERS} to another address, or to nothing"
                self._log.warning("no listener of HTTP", address=listener.text, reason=reason, remedy=remedy)
                continue
            self.addresses = (*self.addresses, listener._replace(port=port).text)
        if in_clear := beyond_loopback(self._listeners):
            remedy = f"https://, or an address of this machine behind a proxy that is listed in {TRUSTED_PROXIES}"
            self._log.warning(
                "other machines send their passwords to listeners of HTTP in the clear",
                listeners=in_clear,
                remedy=remedy,
            )

    async def close(self) -> None:
        """Ends all connections. A second call does nothing."""
        await self._server.close()


def beyond_loopback(listeners: Sequence[HttpListener]) -> list[str]:
    """Returns the listeners that other machines reach without TLS."""
    return [each.text for each in listeners if not each.is_on_loopback and not each.is_encrypted]
