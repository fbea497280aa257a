"""Listeners: `NAME://host:port`, what each name's security protocol is, which addresses clients get, and which is for other brokers.

Each listener has a name, and every broker of a cluster may have one of that name: a client of a listener gets the addresses that
all brokers advertise under its name. So clients outside, clients inside and brokers may reach the same cluster by different addresses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from lowtide.broker.config.key import ImpossibleTogetherError, Value

_PORT_MAX: Final = 65_535
_SERVED_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
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
    """The listeners to open, in the order given.

    Those that `controller.listener.names` names belong to KRaft and aren't.
    Errors: ImpossibleTogetherError.
    """
    controllers = _texts(values, "controller.listener.names")
    listeners = [each for each in _parse("listeners", values) if each.name not in controllers]
    if not listeners:
        message = f"listeners={','.join(_texts(values, 'listeners'))} leaves nothing to listen on: allowed is at least one NAME://host:port"
        raise ImpossibleTogetherError(message, "listeners", "controller.listener.names")
    for listener in listeners:
        if listener.protocol not in _SERVED_PROTOCOLS:
            message = (
                f"listeners={listener.text} is not possible: {listener.protocol} is not served yet, "
                f"allowed is {', '.join(_SERVED_PROTOCOLS)}"
            )
            raise ImpossibleTogetherError(message, "listeners", "listener.security.protocol.map")
    return tuple(listeners)


def advertised_listeners(
    values: Mapping[str, Value], listeners: tuple[Listener, ...], host_name: str
) -> tuple[Listener, ...]:
    """The addresses that clients get: those of `advertised.listeners`, or where it isn't set the listeners themselves.

    A listener that isn't among them accepts connections, but no client gets its address. `host_name` stands where there
    is no host; with
    `lowtide.advertise.local.address` also for the listeners on every interface.
    Errors: ImpossibleTogetherError. Source: Kafka's KafkaConfig, `validateValues`.
    """
    controllers = _texts(values, "controller.listener.names")
    advertised = [each for each in _parse("advertised.listeners", values) if each.name not in controllers]
    if not advertised:
        local = values["lowtide.advertise.local.address"] is True
        advertised = [each._replace(host="") if local and each.host in _EVERY_INTERFACE else each for each in listeners]
    names = [each.name for each in listeners]
    for each in advertised:
        if each.name not in names:
            message = f"advertised.listeners={each.name}://… is not possible: allowed are the names in listeners, {', '.join(names)}"
            raise ImpossibleTogetherError(message, "advertised.listeners", "listeners")
        if each.host in _EVERY_INTERFACE:
            message = (
                f"{each.text} cannot be advertised: allowed in advertised.listeners is an address that clients reach"
            )
            raise ImpossibleTogetherError(message, "advertised.listeners", "listeners")
    return tuple(each._replace(host=each.host or host_name) for each in advertised)


def inter_broker_listener(values: Mapping[str, Value], given: Collection[str], advertised: tuple[Listener, ...]) -> str:
    """The name of the listener where other brokers reach this one: as named, else that of the protocol between brokers.

    Errors: ImpossibleTogetherError. Source: Kafka's KafkaConfig.
    """
    by_name, by_protocol = "inter.broker.listener.name", "security.inter.broker.protocol"
    if values[by_name]:
        if by_protocol in given:
            message = f"{by_name} and {by_protocol} are not possible together: allowed is one of them"
            raise ImpossibleTogetherError(message, by_name, by_protocol)
        name = str(values[by_name]).upper()
        if name not in _protocols(values):
            message = (
                f"{by_name}={values[by_name]} is not possible: allowed are the names in listener.security.protocol.map"
            )
            raise ImpossibleTogetherError(message, by_name, "listener.security.protocol.map")
    else:
        name = str(values[by_protocol]).upper()
    names = [each.name for each in advertised]
    if name not in names:
        message = (
            f"{by_name} must be a listener name defined in advertised.listeners, and is {name}: allowed "
            f"{'is' if len(names) == 1 else 'are'} {', '.join(names)}"
        )
        raise ImpossibleTogetherError(message, by_name, by_protocol, "advertised.listeners", "listeners")
    return name


def _parse(key: str, values: Mapping[str, Value]) -> list[Listener]:
    """Split the addresses of a key whose members have been matched against the pattern.

    Errors: ImpossibleTogetherError for a port that is too large, a name without a protocol, or a name or port given
    twice.
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
        if any(listener.name == each.name for each in listeners):
            message = f"{key}={text} is not possible: allowed is each listener name once"
            raise ImpossibleTogetherError(message, key)
        listeners.append(listener)
    if key == "listeners":
        _check_ports(listeners)
    return listeners


def _check_ports(listeners: list[Listener]) -> None:
    """A port that is bound may be shared by an IPv4 and an IPv6 address, and by nothing else.

    Source: Kafka's CoreUtils, KIP-797.
    """
    for listener in listeners:
        same = [each for each in listeners if each.port == listener.port != 0]
        if len(same) > 1 and sorted(_ip_version(each.host) for each in same) != [4, 6]:
            message = (
                f"listeners={listener.text} is not possible: allowed is each port once, or twice for one IPv4 and one IPv6 address, "
                f"and {listener.port} is given {len(same)} times"
            )
            raise ImpossibleTogetherError(message, "listeners")


def _ip_version(host: str) -> int:
    """4, 6, or 0 for what is no literal address."""
    from ipaddress import ip_address  # noqa: PLC0415  takes a while, and hardly any broker needs it

    try:
        return ip_address(host).version
    except ValueError:
        return 0


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
