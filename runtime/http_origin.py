"""Where a request over HTTP comes from: this machine or another, a page of the server's own or of another site. Pure, over the request."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aiohttp import web

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
PASSED_ON: Final = ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip")
"""Headers of a proxy: who asked is another than who connected."""

_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:]+))(?::[0-9]+)?")


def is_local(request: web.Request) -> bool:
    """Whether a request was made on this machine, as far as it can be known."""
    return is_loopback(request.remote or "") and not any(name in request.headers for name in PASSED_ON)


def is_loopback(address: str) -> bool:
    """Whether a peer is on this machine."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def host_of(request: web.Request) -> str:
    """The host that a request names, without its port; empty for what is no host."""
    match = _HOST.fullmatch(request.headers.get("Host", ""))
    return "" if match is None else (match[1] or match[2]).lower()


def comes_from_another_site(request: web.Request) -> bool:
    """Whether a browser says that a page of another site asks: following a link is allowed. Source: Fetch Metadata Request Headers."""
    site = request.headers.get("Sec-Fetch-Site", "none")
    if site in ("same-origin", "none"):
        return False
    is_link = request.headers.get("Sec-Fetch-Mode") == "navigate" and request.headers.get("Sec-Fetch-Dest") == "document"
    return not (is_link and request.method in ("GET", "HEAD"))
