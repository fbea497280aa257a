"""Listeners: `NAME://host:port`, what each name's security protocol is, and which address clients are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from lowtide.broker.config_key import ImpossibleTogetherError, Value

_PORT_MAX: Final = 65_535
_SERVED_PROTOCOLS: Final = ("PLAINTEXT",)
_EVERY_INTERFACE: Final = ("0.0.0.0", "::")  # noqa: S104  compared with, not bound


class Listener(NamedTuple):
    """One address. `host` is empty for every interface; `port` 0 lets the system choose."""

    name: str
    protocol: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """Host and port, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def text(self) -> str:
        """As it is given in `listeners`."""
        return f"{self.name}://{self.address}"


def client_listeners(values: Mapping[str, Value]) -> tuple[Listener, ...]:
    """The listeners to open, in the order given. Those that `controller.listener.names` names belong to KRaft and aren't.

    Errors: ImpossibleTogetherError.
    """
    controllers = _texts(values, "controller.listener.names")
    listeners = [each for each in _parse("listeners", values) if each.name not in controllers]
    if not listeners:
        message = f"listeners={','.join(_texts(values, 'listeners'))} leaves nothing to listen on: allowed is at least one NAME://host:port"
        raise ImpossibleTogetherError(message, "listeners", "controller.listener.names")
    if len(listeners) > 1:
        names = ",".join(each.name for each in listeners)
        message = f"listeners={names} is not possible: allowed is one, for more are not served yet"
        raise ImpossibleTogetherError(message, "listeners", "controller.listener.names")
    for listener in listeners:
        if listener.protocol not in _SERVED_PROTOCOLS:
            message = (
                f"listeners={listener.text} is not possible: {listener.protocol} is not served yet, "
                f"allowed is {', '.join(_SERVED_PROTOCOLS)}"
            )
            raise ImpossibleTogetherError(message, "listeners", "listener.security.protocol.map")
    return tuple(listeners)


def advertised_listeners(values: Mapping[str, Value], listeners: tuple[Listener, ...], host_name: str) -> tuple[Listener, ...]:
    """For each of the listeners the address that clients are told; one that isn't advertised by name advertises itself.

    `host_name` is told where a listener has no host. Errors: ImpossibleTogetherError.
    """
    by_name = {each.name: each for each in _parse("advertised.listeners", values)}
    names = [each.name for each in listeners]
    for name in by_name:
        if name not in names and name not in _texts(values, "controller.listener.names"):
            message = f"advertised.listeners={name}://… is not possible: allowed are the names in listeners, {', '.join(names)}"
            raise ImpossibleTogetherError(message, "advertised.listeners", "listeners")
    advertised = [by_name.get(each.name, each) for each in listeners]
    for each in advertised:
        if each.host in _EVERY_INTERFACE:
            message = f"{each.text} cannot be advertised: allowed in advertised.listeners is an address that clients reach"
            raise ImpossibleTogetherError(message, "advertised.listeners", "listeners")
    return tuple(each._replace(host=each.host or host_name) for each in advertised)


def _parse(key: str, values: Mapping[str, Value]) -> list[Listener]:
    """Split the addresses of a key whose members have been matched against the pattern.

    Errors: ImpossibleTogetherError for a port that is too large, a name without a protocol, or a name or address given twice.
    """
    protocols = _protocols(values)
    listeners: list[Listener] = []
    for text in _texts(values, key):
        name, _, address = text.partition("://")
        host, _, port = address.rpartition(":")
        protocol = protocols.get(name.upper())
        if protocol is None:
            message = f"{key}={text} is not possible: allowed are the names in listener.security.protocol.map, {', '.join(protocols)}"
            raise ImpossibleTogetherError(message, key, "listener.security.protocol.map")
        listener = Listener(name.upper(), protocol, host.strip("[]"), int(port))
        if listener.port > _PORT_MAX:
            message = f"{key}={text} is not possible: allowed is a port from 0 to {_PORT_MAX}"
            raise ImpossibleTogetherError(message, key)
        if any(_same(listener, each, key) for each in listeners):
            message = f"{key}={text} is not possible: allowed is each name and each address once"
            raise ImpossibleTogetherError(message, key)
        listeners.append(listener)
    return listeners


def _same(listener: Listener, other: Listener, key: str) -> bool:
    """Whether two listeners take the other's name or, where they are bound, the other's address."""
    if listener.name == other.name:
        return True
    return key == "listeners" and listener.port != 0 and (listener.host, listener.port) == (other.host, other.port)


def _protocols(values: Mapping[str, Value]) -> dict[str, str]:
    """Listener name → security protocol, both in capitals."""
    text = values["listener.security.protocol.map"]
    assert isinstance(text, str), text
    protocols: dict[str, str] = {}
    for entry in filter(None, text.split(",")):
        name, _, protocol = entry.strip().upper().partition(":")
        if protocol not in {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}:
            message = (
                f"listener.security.protocol.map={text} is not possible: allowed is a list of NAME:PROTOCOL with PLAINTEXT, SSL, "
                "SASL_PLAINTEXT or SASL_SSL"
            )
            raise ImpossibleTogetherError(message, "listener.security.protocol.map")
        protocols[name] = protocol
    return protocols


def _texts(values: Mapping[str, Value], key: str) -> tuple[str, ...]:
    value = values[key]
    assert value is None or isinstance(value, tuple), f"{key} is {value!r}"
    return value or ()
