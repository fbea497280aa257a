"""Listeners and advertised listeners, from Kafka's texts to values."""

from __future__ import annotations

import msgspec

from lowtide.broker.config_key import ConfigError

_MAX_PORT = 65_535
_EVERY_INTERFACE = ("", "0.0.0.0", "::")  # noqa: S104  names them, binds nothing


class Listener(msgspec.Struct, frozen=True, gc=False):
    """One address. `host` is empty for every interface; `security` is the protocol that its name stands for."""

    name: str
    host: str
    port: int
    security: str = "PLAINTEXT"


def parse_listeners(key: str, texts: tuple[str, ...], protocols: dict[str, str]) -> tuple[Listener, ...]:
    """Read `NAME://host:port` texts whose form was checked. Errors: ConfigError, a sentence without its full stop."""
    found = []
    for text in texts:
        name, _, address = text.partition("://")
        host, _, port = address.rpartition(":")
        security = protocols.get(name.upper())
        if security is None:
            message = f"{key}={text} is not possible: listener.security.protocol.map has no protocol for {name}"
            raise ConfigError(message)
        if security != "PLAINTEXT":
            message = f"{key}={text} is not possible: the only protocol that is served yet is PLAINTEXT, not {security}"
            raise ConfigError(message)
        if int(port) > _MAX_PORT:
            message = f"{key}={text} is not possible: a port is a number from 0 to {_MAX_PORT}"
            raise ConfigError(message)
        found.append(Listener(name, host.strip("[]"), int(port), security))
    return tuple(found)


def is_every_interface(host: str) -> bool:
    """Whether the host stands for all of this machine's addresses, which no client can connect to by that name."""
    return host in _EVERY_INTERFACE
