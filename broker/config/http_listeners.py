"""HTTP listeners and trusted proxies.

A listener is `http://host:port`, or `https://host:port`, which takes its TLS settings from `ssl.*` or
`listener.name.https.ssl.*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Final, NamedTuple

from lowtide.broker.config.key import InvalidKeysError, Value

HTTP_LISTENERS: Final = "http.listeners"

TRUST_LOCAL: Final = "http.trust.local"
TRUSTED_PROXIES: Final = "http.trusted.proxies"

HTTPS: Final = "HTTPS"
"""The listener name of all HTTPS listeners in configuration keys."""

DEFAULT_HTTP_LISTENERS: Final = "http://127.0.0.1:9644"

SERVE_DEFAULT: Final = "the default of lowtide serve"
"""The source of the built-in address. If its port is taken, the broker starts without HTTP."""

_PORT_MAX: Final = 65_535
_LOOPBACK: Final = ("127.", "localhost", "::1")


class HttpListener(NamedTuple):
    """One address. An empty `host` means all interfaces; `port` 0 lets the system choose."""

    scheme: str
    host: str
    port: int

    @property
    def text(self) -> str:
        return (
            f"{self.scheme}://[{self.host}]:{self.port}"
            if ":" in self.host
            else f"{self.scheme}://{self.host}:{self.port}"
        )

    @property
    def is_encrypted(self) -> bool:
        return self.scheme == "https"

    @property
    def is_on_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host.startswith(_LOOPBACK)


def http_listeners(values: Mapping[str, Value]) -> tuple[HttpListener, ...]:
    """Returns the HTTP listeners in the order given. Errors: InvalidKeysError."""
    given = values[HTTP_LISTENERS]
    found: list[HttpListener] = []
    for text in given if isinstance(given, tuple) else ():
        scheme, _, address = text.partition("://")
        host, _, port = address.rpartition(":")
        listener = HttpListener(scheme.lower(), host.strip("[]"), int(port))
        if listener.port > _PORT_MAX:
            message = f"{HTTP_LISTENERS}={text} is invalid: allowed is a port from 0 to {_PORT_MAX}"
            raise InvalidKeysError(message, HTTP_LISTENERS)
        if listener.port and any(listener[1:] == each[1:] for each in found):
            message = f"{HTTP_LISTENERS}={text} is invalid: allowed is each address once"
            raise InvalidKeysError(message, HTTP_LISTENERS)
        found.append(listener)
    return tuple(found)


def trusted_proxies(values: Mapping[str, Value]) -> tuple[str, ...]:
    """Returns the addresses and networks of `http.trusted.proxies`. Errors: InvalidKeysError."""
    given = values[TRUSTED_PROXIES]
    found = given if isinstance(given, tuple) else ()
    for text in found:
        try:
            ip_network(text)
        except ValueError as error:
            message = (
                f"{TRUSTED_PROXIES}={text} is invalid: "
                f"allowed are addresses and networks, such as 10.0.0.7 or 10.0.0.0/8 ({error})"
            )
            raise InvalidKeysError(message, TRUSTED_PROXIES) from None
    return found
