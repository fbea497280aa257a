"""The address of an etcd on the command line, `etcd://host:port,host:port/prefix`, and its credentials."""

from __future__ import annotations

import re
from typing import Final

import msgspec

SCHEME: Final = "etcd://"

DEFAULT_PREFIX: Final = b"/lowtide/"

MAX_ENDPOINTS: Final = 16
"""More members than an etcd can sensibly have: its operators' guide advises seven at most."""

_LAST_PORT: Final = 0xFFFF

_ENDPOINT: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]{1,100}(/[A-Za-z0-9._-]{1,100}){0,7}")


class EtcdAccess(msgspec.Struct, frozen=True):
    """Credentials for etcd: PEM texts for TLS, which is used if there is a `ca`; a user and a password.

    Must not be printed.
    """

    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    user: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"EtcdAccess(tls={bool(self.ca)}, certificate={bool(self.certificate)}, user={self.user!r})"


NO_ACCESS: Final = EtcdAccess()


class EtcdAddress(msgspec.Struct, frozen=True):
    """The endpoints of one etcd, each `host:port`, the prefix of the cluster's keys, and the credentials."""

    endpoints: tuple[str, ...]
    prefix: bytes = DEFAULT_PREFIX
    access: EtcdAccess = NO_ACCESS

    @property
    def text(self) -> str:
        """Its name in messages."""
        place = f"etcd at {', '.join(self.endpoints)}"
        return place if self.prefix == DEFAULT_PREFIX else f"{place}, {self.prefix.decode()}"


def parse_address(address: str) -> EtcdAddress:
    """Parses an address; endpoints keep their order. Errors: ValueError with a sentence, without a password."""
    if "@" in address:
        raise ValueError(
            "The address of a metadata store can't have a user or a password: set LOWTIDE_METADATA_USER and "
            "LOWTIDE_METADATA_PASSWORD, because every user of the machine can read a command line."
        )
    if not address.startswith(SCHEME):
        raise ValueError(f"{address!r} is not the address of a metadata store: etcd://host:port,host:port/prefix is.")
    places, _, prefix = address.removeprefix(SCHEME).partition("/")
    prefix = prefix.removesuffix("/")
    endpoints = tuple(places.split(","))
    for endpoint in endpoints:
        found = _ENDPOINT.fullmatch(endpoint)
        if found is None or not 0 < int(found["port"]) <= _LAST_PORT:
            raise ValueError(f"{endpoint!r} in {address!r} is not host:port.")
    if len(set(endpoints)) < len(endpoints):
        raise ValueError(f"{address!r} names an endpoint twice.")
    if len(endpoints) > MAX_ENDPOINTS:
        raise ValueError(f"{address!r} has {len(endpoints)} endpoints, more than {MAX_ENDPOINTS}.")
    if prefix and not _PREFIX.fullmatch(prefix):
        raise ValueError(
            f"{prefix!r} in {address!r} is not a prefix: allowed are letters, digits, '.', '_' and '-', with slashes "
            "between."
        )
    return EtcdAddress(endpoints, b"/%s/" % prefix.encode() if prefix else DEFAULT_PREFIX)
