"""The origin of an HTTP request: this machine or another, a page of this server or of another site."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final

from lowtide.runtime.addresses import is_loopback, normal_address

if TYPE_CHECKING:
    from aiohttp import web

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
PASSED_ON: Final = ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip")
"""Headers that a proxy adds: the client isn't the peer."""

_FORWARDED_FOR: Final = "X-Forwarded-For"
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:]+))(?::[0-9]+)?")


def is_local(request: web.Request) -> bool:
    """Returns whether a request was made on this machine, as far as can be known."""
    return is_loopback(request.remote or "") and not any(name in request.headers for name in PASSED_ON)


class Proxies:
    """The trusted proxies, which may report the client's address."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """`networks` are addresses or networks such as `10.0.0.0/8`. Errors: ValueError."""
        self._networks: tuple[IPv4Network | IPv6Network, ...] = tuple(ip_network(each) for each in networks)

    def has(self, address: str) -> bool:
        """Returns whether a trusted proxy is at an address."""
        found = normal_address(address)
        return found is not None and any(ip_address(found) in each for each in self._networks)

    def client_of(self, request: web.Request) -> str:
        """Returns the client's address: the peer's, or the one that trusted proxies report in `X-Forwarded-For`.

        Each proxy appends its peer, so the last address that isn't a trusted proxy is the client's. Earlier ones may be
        forged.
        """
        address = request.remote or ""
        for text in reversed(",".join(request.headers.getall(_FORWARDED_FOR, ())).split(",")):
            if not self.has(address):
                break
            match = _HOST.fullmatch(text.strip())
            named = normal_address(text.strip() if match is None else match[1] or match[2])
            if named is None:
                break
            address = named
        return address


NO_PROXIES: Final = Proxies()


def host_of(request: web.Request) -> str:
    """Returns the host that a request names, without its port; empty if invalid."""
    match = _HOST.fullmatch(request.headers.get("Host", ""))
    return "" if match is None else (match[1] or match[2]).lower()


def comes_from_another_site(request: web.Request) -> bool:
    """Returns whether the browser reports a request from a page of another site; following a link is allowed.

    Source: Fetch Metadata Request Headers.
    """
    site = request.headers.get("Sec-Fetch-Site", "none")
    if site in ("same-origin", "none"):
        return False
    is_link = (
        request.headers.get("Sec-Fetch-Mode") == "navigate" and request.headers.get("Sec-Fetch-Dest") == "document"
    )
    return not (is_link and request.method in ("GET", "HEAD"))
