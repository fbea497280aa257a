"""Who may see what a broker serves by HTTP.

From this machine no login is needed; but then the request must name this machine as its host, or a page of another site could reach it by a
name of its own that resolves to 127.0.0.1, and it must not say that it was passed on for another. All others show a certificate that the
listener asks for, or log in by name and password (HTTP Basic); a login needs DESCRIBE on the cluster, unless what answers asks
for rights itself (`http_app.decides_itself`). What a page of another site has a browser fetch is refused.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final

from aiohttp import web

from lowtide.broker.authorizer.authorizer import Authorizer
from lowtide.broker.authorizer.resources import CLUSTER, Operation
from lowtide.broker.http.logins import NAME_CHARACTERS_MAX, Logins, TooManyLoginsError, Visitor
from lowtide.broker.security.principal import ANONYMOUS, USER_TYPE, KafkaPrincipal, ShownBy
from lowtide.runtime.http_app import asks_for_rights_itself
from lowtide.runtime.http_origin import LOOPBACK_NAMES, comes_from_another_site, host_of, is_local

VISITOR: Final = web.RequestKey("visitor", Visitor)
"""Where a request has its `Visitor`."""

LISTENER: Final = "HTTP"
"""What the audit log calls the listener."""

Identify = Callable[[bytes | None], KafkaPrincipal | None]
"""From a visitor's certificate (DER, or None without one) to its principal; None where it may not come in."""

_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="Lowtide", charset="UTF-8"'}


class Gate:
    """Lets in who is on this machine, and who has logged in."""

    def __init__(self, logins: Logins, authorizer: Authorizer, identify: Identify | None) -> None:
        """`identify`: None where no certificates are asked for."""
        self._logins = logins
        self._authorizer = authorizer
        self._identify = identify

    async def refusal(self, request: web.Request) -> web.StreamResponse | None:
        """None where the request may come in; then `visitor_of` says who sends it."""
        if comes_from_another_site(request):
            return _refusal(403, "a page of another site may not ask for this")
        visitor = self._by_certificate(request) or await self._by_password(request)
        if isinstance(visitor, web.Response):
            return visitor
        if visitor is None:
            if not is_local(request):
                return _refusal(401, "a login is needed: name and password of a user of the cluster", _CHALLENGE)
            if host_of(request) not in LOOPBACK_NAMES:
                return _refusal(421, "from this machine the host is localhost, 127.0.0.1 or [::1]")
            visitor = Visitor(ANONYMOUS, request.remote or "", LISTENER)
        elif not asks_for_rights_itself(request) and not self._authorizer.authorize(visitor, Operation.DESCRIBE, CLUSTER):
            return _refusal(403, f"{visitor.principal} needs DESCRIBE on the cluster")
        request[VISITOR] = visitor
        return None

    def _by_certificate(self, request: web.Request) -> Visitor | None:
        """Who the certificate says that it is."""
        tls = None if request.transport is None else request.transport.get_extra_info("ssl_object")
        certificate = None if tls is None or self._identify is None else tls.getpeercert(True)
        principal = None if certificate is None or self._identify is None else self._identify(certificate)
        if principal is None or principal == ANONYMOUS:
            return None
        return Visitor(principal, request.remote or "", LISTENER, ShownBy.CERTIFICATE)

    async def _by_password(self, request: web.Request) -> Visitor | web.Response | None:
        """Who it is by name and password; None where there are none."""
        given = request.headers.get("Authorization")
        if given is None:
            return None
        address, pair = request.remote or "", name_and_password(given)
        try:
            if pair is not None and await self._logins.is_right(address, LISTENER, *pair):
                return Visitor(KafkaPrincipal(USER_TYPE, pair[0]), address, LISTENER, ShownBy.LOGIN)
        except TooManyLoginsError:
            return _refusal(429, "too many logins have failed", {"Retry-After": "5"})
        return _refusal(401, "the user is unknown, or the password is wrong", _CHALLENGE)


def visitor_of(request: web.Request) -> Visitor:
    """Who sends a request that has passed the gate."""
    return request[VISITOR]


def name_and_password(authorization: str) -> tuple[str, str] | None:
    """What a header of HTTP Basic says; None for any other. Source: RFC 7617."""
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
