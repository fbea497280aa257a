"""Listeners: `NAME://host:port`, security protocols, advertised addresses, and the listener for other brokers.

Each listener has a name that all brokers of a cluster share: a client of a listener gets the addresses that brokers
advertise under its name. So external clients, internal clients and brokers can use different addresses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from lowtide.broker.config.key import InvalidKeysError, Value
from lowtide.runtime.addresses import normal_address

_PORT_MAX: Final = 65_535
_SERVED_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_EVERY_INTERFACE: Final = ("0.0.0.0", "::")  # noqa: S104  compared with, not bound

OVERRIDES: Final = "max.connections.per.ip.overrides"
PER_IP: Final = "max.connections.per.ip"


class ConfiguredListener(NamedTuple):
    """One address. An empty `host` means all interfaces; `port` 0 lets the system choose."""

    name: str
    protocol: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """The host and port, with an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def text(self) -> str:
        return f"{self.name}://{self.address}"


def client_listeners(values: Mapping[str, Value]) -> tuple[ConfiguredListener, ...]:
    """Returns the listeners to open, in the order given, without those of KRaft controllers.

    Errors: InvalidKeysError.
    """
    controllers = _texts(values, "controller.listener.names")
    listeners = [each for each in _parse("listeners", values) if each.name not in controllers]
    if not listeners:
        message = (
            f"listeners={','.join(_texts(values, 'listeners'))} has no listener for clients: at least one "
            "NAME://host:port is required"
        )
        raise InvalidKeysError(message, "listeners", "controller.listener.names")
    for listener in listeners:
        if listener.protocol not in _SERVED_PROTOCOLS:
            message = (
                f"listeners={listener.text} is invalid: {listener.protocol} is not supported, "
                f"allowed is {', '.join(_SERVED_PROTOCOLS)}"
            )
            raise InvalidKeysError(message, "listeners", "listener.security.protocol.map")
    return tuple(listeners)


def advertised_listeners(
    values: Mapping[str, Value], listeners: tuple[ConfiguredListener, ...], host_name: str
) -> tuple[ConfiguredListener, ...]:
    """Returns the advertised addresses: those of `advertised.listeners`, or the listeners themselves.

    Clients never get the address of a listener that is not advertised. `host_name` replaces an empty host, and with
    `lowtide.advertise.local.address` also the host of listeners on all interfaces. Errors: InvalidKeysError. Source:
    Kafka's KafkaConfig, `validateValues`.
    """
    controllers = _texts(values, "controller.listener.names")
    advertised = [each for each in _parse("advertised.listeners", values) if each.name not in controllers]
    if not advertised:
        local = values["lowtide.advertise.local.address"] is True
        advertised = [each._replace(host="") if local and each.host in _EVERY_INTERFACE else each for each in listeners]
    names = [each.name for each in listeners]
    for each in advertised:
        if each.name not in names:
            message = (
                f"advertised.listeners={each.name}://… is invalid: allowed are the names in listeners, "
                f"{', '.join(names)}"
            )
            raise InvalidKeysError(message, "advertised.listeners", "listeners")
        if each.host in _EVERY_INTERFACE:
            message = (
                f"{each.text} cannot be advertised: allowed in advertised.listeners is an address that clients reach"
            )
            raise InvalidKeysError(message, "advertised.listeners", "listeners")
    return tuple(each._replace(host=each.host or host_name) for each in advertised)


def inter_broker_listener(
    values: Mapping[str, Value], given: Collection[str], advertised: tuple[ConfiguredListener, ...]
) -> str:
    """Returns the name of the listener for other brokers.

    It is `inter.broker.listener.name`, or the name of `security.inter.broker.protocol` if that is empty.
    Errors: InvalidKeysError. Source: Kafka's KafkaConfig.
    """
    by_name, by_protocol = "inter.broker.listener.name", "security.inter.broker.protocol"
    if values[by_name]:
        if by_protocol in given:
            message = f"{by_name} and {by_protocol} cannot both be set"
            raise InvalidKeysError(message, by_name, by_protocol)
        name = str(values[by_name]).upper()
        if name not in _protocols(values):
            message = f"{by_name}={values[by_name]} is invalid: allowed are the names in listener.security.protocol.map"
            raise InvalidKeysError(message, by_name, "listener.security.protocol.map")
    else:
        name = str(values[by_protocol]).upper()
    names = [each.name for each in advertised]
    if name not in names:
        message = (
            f"{by_name} must be a listener name defined in advertised.listeners, and is {name}: allowed "
            f"{'is' if len(names) == 1 else 'are'} {', '.join(names)}"
        )
        raise InvalidKeysError(message, by_name, by_protocol, "advertised.listeners", "listeners")
    return name


def _parse(key: str, values: Mapping[str, Value]) -> list[ConfiguredListener]:
    """Parses the addresses of a key whose members matched its pattern.

    Errors: InvalidKeysError for a port that is too large, a name without a protocol, or a duplicate name or port.
    """
    protocols = _protocols(values)
    listeners: list[ConfiguredListener] = []
    for text in _texts(values, key):
        name, _, address = text.partition("://")
        host, _, port = address.rpartition(":")
        protocol = protocols.get(name.upper())
        if protocol is None:
            message = (
                f"{key}={text} is invalid: allowed are the names in listener.security.protocol.map, "
                f"{', '.join(protocols)}"
            )
            raise InvalidKeysError(message, key, "listener.security.protocol.map")
        listener = ConfiguredListener(name.upper(), protocol, host.strip("[]"), int(port))
        if listener.port > _PORT_MAX:
            raise InvalidKeysError(f"{key}={text} is invalid: allowed is a port from 0 to {_PORT_MAX}", key)
        if any(listener.name == each.name for each in listeners):
            raise InvalidKeysError(f"{key}={text} is invalid: allowed is each listener name once", key)
        listeners.append(listener)
    if key == "listeners":
        _check_ports(listeners)
    return listeners


def _check_ports(listeners: list[ConfiguredListener]) -> None:
    """Checks that a port is used once, or by one IPv4 and one IPv6 address. Source: Kafka's CoreUtils, KIP-797."""
    for listener in listeners:
        same = [each for each in listeners if each.port == listener.port != 0]
        if len(same) > 1 and sorted(_ip_version(each.host) for each in same) != [4, 6]:
            message = (
                f"listeners={listener.text} is invalid: allowed is each port once, or twice for one IPv4 and one IPv6 "
                "address, "
                f"and {listener.port} is given {len(same)} times"
            )
            raise InvalidKeysError(message, "listeners")


def _ip_version(host: str) -> int:
    """Returns 4 or 6, or 0 for a host name."""
    from ipaddress import ip_address  # noqa: PLC0415  takes a while, and hardly any broker needs it

    try:
        return ip_address(host).version
    except ValueError:
        return 0


def _protocols(values: Mapping[str, Value]) -> dict[str, str]:
    """Returns the security protocol by listener name, both in upper case."""
    text = values["listener.security.protocol.map"]
    assert isinstance(text, str), text
    protocols: dict[str, str] = {}
    for entry in filter(None, text.split(",")):
        name, _, protocol = entry.strip().upper().partition(":")
        if protocol not in {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}:
            message = (
                f"listener.security.protocol.map={text} is invalid: allowed is a list of NAME:PROTOCOL with PLAINTEXT, "
                "SSL, "
                "SASL_PLAINTEXT or SASL_SSL"
            )
            raise InvalidKeysError(message, "listener.security.protocol.map")
        protocols[name] = protocol
    return protocols


def _texts(values: Mapping[str, Value], key: str) -> tuple[str, ...]:
    value = values[key]
    assert value is None or isinstance(value, tuple), f"{key} is {value!r}"
    return value or ()


def parse_overrides(values: Mapping[str, Value]) -> dict[str, int]:
    """Returns the maximum number of connections by address. Errors: InvalidKeysError."""
    overrides = {}
    for entry in filter(None, (part.strip() for part in str(values[OVERRIDES] or "").split(","))):
        address, _, number = entry.rpartition(":")
        normal = normal_address(address.strip("[]"))
        if normal is None:
            raise InvalidKeysError(f"{OVERRIDES}={entry} is invalid: {address} is no IP address", OVERRIDES)
        overrides[normal] = int(number)
    if values[PER_IP] == 0 and not overrides:
        message = f"{PER_IP}=0 is invalid without {OVERRIDES}: no client could connect"
        raise InvalidKeysError(message, PER_IP, OVERRIDES)
    return overrides
