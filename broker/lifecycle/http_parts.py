"""The HTTP service of a broker, built from its other parts.

Slow imports happen when the first visitor comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from lowtide.broker.config.http_listeners import HTTPS, TRUST_LOCAL
from lowtide.broker.config.key import number
from lowtide.broker.http.readiness import Readiness
from lowtide.broker.http.service import HttpService
from lowtide.broker.lifecycle.listener_security import ImageCredentials
from lowtide.runtime.http_origin import Proxies
from lowtide.runtime.http_site import Site, SiteLoader

if TYPE_CHECKING:
    from lowtide.broker.context import BrokerContext
    from lowtide.broker.http.gate import Gate
    from lowtide.broker.http.logins import Visitor
    from lowtide.broker.lifecycle.broker_base import BrokerBase
    from lowtide.broker.lifecycle.certificates import ListenerCertificates
    from lowtide.storage.directory.log_manager import LogManager


class HttpParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that HTTP serves."""

    base: BrokerBase
    context: BrokerContext
    log_manager: LogManager
    certificates: ListenerCertificates
    on_login: Callable[[Any, str], None]
    """As in `ConnectionHost`: the visitor, and why the login failed, if it did."""
    sites: tuple[SiteLoader, ...]


def make_http(parts: HttpParts) -> tuple[HttpService, Readiness]:
    """Creates the HTTP service, not yet bound, and the readiness that its owner updates."""
    base, context = parts.base, parts.context
    config = base.configs.current
    wants_in_sync = config.values["http.ready.requires.in.sync"] is True
    neighbours = base.ports.neighbours
    away: Callable[[], Sequence[int]] = tuple if neighbours is None else neighbours.away
    readiness = Readiness(
        context.metadata, parts.log_manager.directories, context.turns, wants_in_sync=wants_in_sync, away=away
    )
    sites: tuple[SiteLoader, ...] = (partial(_load_health, readiness), *parts.sites, *base.sites)
    return HttpService(config, partial(_load_gate, parts), sites, base.ports.clock, base.tasks, base.log), readiness


def _load_health(readiness: Readiness) -> Site:
    from lowtide.broker.http.health import HealthSite  # noqa: PLC0415 - imports aiohttp

    return HealthSite(readiness)


def _load_gate(parts: HttpParts) -> Gate:
    from lowtide.broker.http.gate import Gate, LocalTrust  # noqa: PLC0415 - likewise
    from lowtide.broker.http.logins import Logins  # noqa: PLC0415 - likewise

    base, session = parts.base, parts.context.metadata

    def delay_ms() -> int:
        return number(base.configs.current.values["connection.failed.authentication.delay.ms"])

    def on_login(visitor: Visitor, failure: str) -> None:
        parts.on_login(visitor, failure)

    credentials, ports = ImageCredentials(lambda: session.image), base.ports
    logins = Logins(credentials, ports.worker, ports.clock, ports.random, delay_ms, on_login)
    https = parts.certificates.by_listener.get(HTTPS)
    config = base.configs.current
    local = LocalTrust(config.values[TRUST_LOCAL] is True, Proxies(config.trusted_proxies))
    return Gate(logins, parts.context.authorizer, None if https is None else https.identify, local)
