"""Where an etcd is, as the command line has it: `etcd://host:port,host:port`."""

from __future__ import annotations

import re
from typing import Final

SCHEME: Final = "etcd://"

MAX_ENDPOINTS: Final = 16
"""More members than an etcd can sensibly have: seven are the most that its operators' guide advises."""

_LAST_PORT: Final = 0xFFFF

_ENDPOINT: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


def parse_endpoints(address: str) -> tuple[str, ...]:
    """The endpoints of an address, each `host:port`, in its order. Errors: ValueError with a sentence."""
    if not address.startswith(SCHEME):
        message = f"{address!r} is not the address of a metadata store: etcd://host:port,host:port is."
        raise ValueError(message)
    endpoints = tuple(address.removeprefix(SCHEME).removesuffix("/").split(","))
    for endpoint in endpoints:
        found = _ENDPOINT.fullmatch(endpoint)
        if found is None or not 0 < int(found["port"]) <= _LAST_PORT:
            message = f"{endpoint!r} in {address!r} is not host:port."
            raise ValueError(message)
    if len(set(endpoints)) < len(endpoints):
        message = f"{address!r} names an endpoint twice."
        raise ValueError(message)
    if len(endpoints) > MAX_ENDPOINTS:
        message = f"{address!r} has {len(endpoints)} endpoints, more than {MAX_ENDPOINTS}."
        raise ValueError(message)
    return endpoints
