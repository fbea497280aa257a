"""Listeners of HTTP, and who is trusted there.

A listener is `http://host:port`, or `https://host:port`, which has TLS by the keys `ssl.*` or
`listener.name.https.ssl.*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Final, NamedTuple

from lowtide.broker.config.key import ImpossibleTogetherError, Value

HTTP_LISTENERS: Final = "http.listeners"

TRUST_LOCAL: Final = "http.trust.local"
TRUSTED_PROXIES: Final = "http.trusted.proxies"

HTTPS: Final = "HTTPS"
"""The name that stands for these listeners in the names of keys."""

DEFAULT_HTTP_LISTENERS: Final = "http://127.0.0.1:9644"
"""What `lowtide serve` listens on where nothing is said."""

SERVE_DEFAULT: Final = "the default of lowtide serve"
"""The source of a value that is not configured: a port that is taken doesn't stop the start then."""

_PORT_MAX: Final = 65_535
_LOOPBACK: Final = ("127.", "localhost", "::1")


class HttpListener(NamedTuple):
    """One address. `host` is empty for every interface; `port` 0 lets the system choose."""

    scheme: str
    host: str
    port: int

    @property
    def text(self) -> str:
        """As it is given."""
        return (
            f"{self.scheme}://[{self.host}]:{self.port}"
            if ":" in self.host
            else f"{self.scheme}://{self.host}:{self.port}"
        )

    @property
    def is_encrypted(self) -> bool:
        """Whether it speaks TLS."""
        return self.scheme == "https"

    @property
    def is_on_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host.startswith(_LOOPBACK)


def http_listeners(values: Mapping[str, Value]) -> tuple[HttpListener, ...]:
    """The listeners of HTTP to open, in the order given. Errors: ImpossibleTogetherError."""
    given = values[HTTP_LISTENERS]
    found: list[HttpListener] = []
    for text in given if isinstance(given, tuple) else ():
        scheme, _, address = text.partition("://")
        host, _, port = address.rpartition(":")
        listener = HttpListener(scheme.lower(), host.strip("[]"), int(port))
        if listener.port > _PORT_MAX:
            message = f"{HTTP_LISTENERS}={text} is not possible: allowed is a port from 0 to {_PORT_MAX}"
            raise ImpossibleTogetherError(message, HTTP_LISTENERS)
        if listener.port and any(listener[1:] == each[1:] for each in found):
            message = f"{HTTP_LISTENERS}={text} is not possible: allowed is each address once"
            raise ImpossibleTogetherError(message, HTTP_LISTENERS)
        found.append(listener)
    return tuple(found)


def trusted_proxies(values: Mapping[str, Value]) -> tuple[str, ...]:
    """The addresses and networks of `http.trusted.proxies`. Errors: ImpossibleTogetherError."""
    given = values[TRUSTED_PROXIES]
    found = given if isinstance(given, tuple) else ()
    for text in found:
        try:
            ip_network(text)
        except ValueError as error:
            message = (
                f"{TRUSTED_PROXIES}={text} is not possible: "
                f"allowed are addresses and networks, such as 10.0.0.7 or 10.0.0.0/8 ({error})"
            )
            raise ImpossibleTogetherError(message, TRUSTED_PROXIES) from None
    return found
