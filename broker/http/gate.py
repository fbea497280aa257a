"""Decides who may see what a broker serves by HTTP.

Visitors show a certificate if the listener asks for one, or log in by name and password (HTTP Basic). A logged-in
visitor needs DESCRIBE on the cluster, unless the handler checks rights itself (`http_app.decides_itself`).

From this machine no login is needed for health, for handlers with a login of their own, and with `http.trust.local` for
everything. That key is off by default, because a proxy on this machine may pass on requests without saying so, and they
look like requests of this machine. A request without a login must name this machine as its host. Otherwise a page of
another site could reach it by a name of its own that resolves to 127.0.0.1. Requests that a page of another site makes
are refused.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final, NamedTuple

from aiohttp import web

from lowtide.broker.authorizer.authorizer import Authorizer
from lowtide.broker.authorizer.resources import CLUSTER, Operation
from lowtide.broker.http.logins import NAME_CHARACTERS_MAX, Logins, TooManyLoginsError, Visitor
from lowtide.broker.security.principal import ANONYMOUS, USER_TYPE, KafkaPrincipal, ShownBy
from lowtide.runtime.http_app import CLIENT, asks_for_rights_itself, is_open_here
from lowtide.runtime.http_origin import LOOPBACK_NAMES, Proxies, comes_from_another_site, host_of, is_local

VISITOR: Final = web.RequestKey("visitor", Visitor)
"""The key of a request's `Visitor`."""

LISTENER: Final = "HTTP"
"""The listener's name in the audit log."""

Identify = Callable[[bytes | None], KafkaPrincipal | None]
"""Maps a visitor's certificate (DER, or None) to its principal, or to None if it may not come in."""

_LOGIN_HERE: Final = (
    "a login is needed: name and password of a user of the cluster. If no proxy on this machine passes requests on, "
    "http.trust.local=true shows this machine everything without one"
)
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="Lowtide", charset="UTF-8"'}


class LocalTrust(NamedTuple):
    """The trust in requests from this machine."""

    is_given: bool
    """The value of `http.trust.local`."""
    proxies: Proxies
    """The proxies that send requests for others."""

    def trusts(self, peer: str) -> bool:
        """Returns whether a peer on this machine needs no login."""
        return self.is_given and not self.proxies.has(peer)


class Gate:
    """Decides by logins, and by what this machine may see without one."""

    def __init__(self, logins: Logins, authorizer: Authorizer, identify: Identify | None, local: LocalTrust) -> None:
        """`identify`: None if no certificates are requested."""
        self._logins = logins
        self._authorizer = authorizer
        self._identify = identify
        self._local = local

    async def passed(self, request: web.Request) -> web.StreamResponse | str:
        """Returns the login whose rate limit applies (empty for this machine), or the refusal.

        If it passed, `visitor_of` returns its sender.
        """
        if comes_from_another_site(request):
            return _refusal(403, "a page of another site may not ask for this")
        visitor = self._by_certificate(request) or await self._by_password(request)
        if isinstance(visitor, web.Response):
            return visitor
        if visitor is None:
            return self._without_login(request)
        if not asks_for_rights_itself(request) and not self._authorizer.authorize(visitor, Operation.DESCRIBE, CLUSTER):
            return _refusal(403, f"{visitor.principal} needs DESCRIBE on the cluster")
        request[VISITOR] = visitor
        return "" if is_local(request) else str(visitor.principal)

    def _without_login(self, request: web.Request) -> web.StreamResponse | str:
        """Decides about a request without a certificate and password."""
        if not is_local(request):
            return _refusal(401, "a login is needed: name and password of a user of the cluster", _CHALLENGE)
        if host_of(request) not in LOOPBACK_NAMES:
            return _refusal(421, "from this machine the host is localhost, 127.0.0.1 or [::1]")
        if not is_open_here(request) and not self._local.trusts(request.remote or ""):
            return _refusal(401, _LOGIN_HERE, _CHALLENGE)
        request[VISITOR] = Visitor(ANONYMOUS, request[CLIENT], LISTENER)
        return ""

    def _by_certificate(self, request: web.Request) -> Visitor | None:
        tls = None if request.transport is None else request.transport.get_extra_info("ssl_object")
        certificate = None if tls is None or self._identify is None else tls.getpeercert(True)
        principal = None if certificate is None or self._identify is None else self._identify(certificate)
        if principal is None or principal == ANONYMOUS:
            return None
        return Visitor(principal, request[CLIENT], LISTENER, ShownBy.CERTIFICATE)

    async def _by_password(self, request: web.Request) -> Visitor | web.Response | None:
        """Returns the visitor that logged in, the refusal of a wrong login, or None without a login."""
        given = request.headers.get("Authorization")
        if given is None:
            return None
        address, pair = request[CLIENT], name_and_password(given)
        try:
            if pair is not None and await self._logins.is_right(address, LISTENER, *pair):
                return Visitor(KafkaPrincipal(USER_TYPE, pair[0]), address, LISTENER, ShownBy.LOGIN)
        except TooManyLoginsError:
            return _refusal(429, "too many logins have failed", {"Retry-After": "5"})
        return _refusal(401, "the user is unknown, or the password is wrong", _CHALLENGE)


def visitor_of(request: web.Request) -> Visitor:
    """Returns the sender of a request that passed the gate."""
    return request[VISITOR]


def name_and_password(authorization: str) -> tuple[str, str] | None:
    """Reads an HTTP Basic header. Returns None for any other. Source: RFC 7617."""
    scheme, _, text = authorization.partition(" ")
    if scheme.lower() != "basic" or len(text) > 8 * NAME_CHARACTERS_MAX:
        return None
    try:
        name, separator, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    if not separator or not name or not password or max(len(name), len(password)) > NAME_CHARACTERS_MAX:
        return None
    return name, password


def _refusal(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=headers)
