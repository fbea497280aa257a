"""The HTTP service of a broker, built from its other parts.

Slow imports happen when the first visitor comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

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
    from lowtide.broker.lifecycle.broker_base import BrokerBase
    from lowtide.broker.lifecycle.certificates import ListenerCertificates
    from lowtide.storage.directory.log_manager import LogManager


def make_http(
    base: BrokerBase,
    context: BrokerContext,
    log_manager: LogManager,
    certificates: ListenerCertificates,
    on_login: Callable[[Any, str], None],
    sites: Sequence[SiteLoader],
) -> tuple[HttpService, Readiness]:
    """Creates the HTTP service, not yet bound, and the readiness that its owner updates.

    `on_login` gets the visitor, and why the login failed, as in `ConnectionHost`.
    """
    config = base.configs.current
    wants_in_sync = config.values["http.ready.requires.in.sync"] is True
    neighbours = base.ports.neighbours
    away: Callable[[], Sequence[int]] = tuple if neighbours is None else neighbours.away
    readiness = Readiness(
        context.metadata, log_manager.directories, context.turns, wants_in_sync=wants_in_sync, away=away
    )
    gate = partial(_load_gate, base, context, certificates, on_login)
    loaders: tuple[SiteLoader, ...] = (partial(_load_health, readiness), *sites, *base.sites)
    return HttpService(config, gate, loaders, base.ports.clock, base.tasks, base.log), readiness


def _load_health(readiness: Readiness) -> Site:
    from lowtide.broker.http.health import HealthSite  # noqa: PLC0415 - imports aiohttp

    return HealthSite(readiness)


def _load_gate(
    base: BrokerBase,
    context: BrokerContext,
    certificates: ListenerCertificates,
    on_login: Callable[[Any, str], None],
) -> Gate:
    from lowtide.broker.http.gate import Gate, LocalTrust  # noqa: PLC0415 - likewise
    from lowtide.broker.http.logins import Logins  # noqa: PLC0415 - likewise

    def delay_ms() -> int:
        return number(base.configs.current.values["connection.failed.authentication.delay.ms"])

    credentials, ports = ImageCredentials(lambda: context.metadata.image), base.ports
    logins = Logins(credentials, ports.worker, ports.clock, ports.random, delay_ms, on_login)
    https = certificates.by_listener.get(HTTPS)
    config = base.configs.current
    local = LocalTrust(config.values[TRUST_LOCAL] is True, Proxies(config.trusted_proxies))
    return Gate(logins, context.authorizer, None if https is None else https.identify, local)
