"""Log lines of a broker's start that concern how it is reached and installed: what a first day needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lowtide.broker.config.listeners import Listener
from lowtide.protocol.native import why_plain
from lowtide.runtime.name_resolution import unresolved

if TYPE_CHECKING:
    from lowtide.broker.config.broker_config import BrokerConfig
    from lowtide.metadata.image import MetadataImage

_LOOPBACK: Final = ("127.", "localhost", "::1")

RESOLVED_WITHIN_S: Final = 5.0
"""More than a resolver takes that is reachable: the default of resolv.conf for one attempt."""

Unresolved = Callable[[Sequence[str], float], Awaitable[Mapping[str, str]]]


def with_ports(listeners: Sequence[Listener], ports: Mapping[str, int]) -> list[str]:
    """Listeners as they are configured, with the ports that were bound in the place of 0."""
    return [each._replace(port=each.port or ports.get(each.name, 0)).text for each in listeners]


def tell_plain_walk(log: Any) -> None:
    """Warn where the compiled module is missing, and nothing asked for that."""
    if reason := why_plain():
        remedy = (
            "install a C compiler and Python's headers (Debian: gcc python3-dev) and then Lowtide again, or a wheel"
        )
        log.warning("Python walks over records, which is slower than the compiled module", reason=reason, remedy=remedy)


def tell_open_listeners(config: BrokerConfig, image: MetadataImage, log: Any) -> None:
    """Warns where other machines are served without a login, once more where the metadata have users or access rules."""
    if open_to_all := open_beyond_loopback(config):
        remedy = "listen on 127.0.0.1, or let clients log in: SASL_SSL, as docs/security.md has it"
        log.warning("clients of other machines are served without a login", listeners=open_to_all, remedy=remedy)
    if left_out := protection_left_out(config, image):
        remedy = "start it with the settings that secure the other brokers, such as authorizer.class.name and SASL_SSL"
        log.warning(
            "the users and access rules of this cluster have no effect on this broker", **left_out, remedy=remedy
        )


async def warn_of_unresolved(advertised: Sequence[Listener], log: Any, look_up: Unresolved = unresolved) -> None:
    """Warn of advertised names that this machine doesn't resolve: clients are sent there after their first request."""
    reasons = await look_up([each.host for each in advertised], RESOLVED_WITHIN_S)
    names = {each.host: each.text for each in advertised if each.host in reasons}
    if names:
        log.warning(
            "this machine does not resolve a name that clients are sent to",
            advertised=list(names.values()),
            reasons=[reasons[host] for host in names],
            remedy="set advertised.listeners to an address that clients reach, such as PLAINTEXT://10.0.0.1:9092",
        )


def open_beyond_loopback(config: BrokerConfig) -> list[str]:
    """Returns the listeners that other machines can reach without a login or a certificate."""
    found = []
    for listener in config.listeners:
        secured = config.secured_listeners.get(listener.name)
        asks = secured is not None and (
            secured.sasl is not None or (secured.tls is not None and secured.tls.client_auth == "required")
        )
        if not asks and not listener.host.startswith(_LOOPBACK):
            found.append(listener.text)
    return found


def protection_left_out(config: BrokerConfig, image: MetadataImage) -> dict[str, int]:
    """Counts the ACLs and users in the metadata that have no effect, because a listener is open and there is no authorizer.

    Returns nothing if there are none. ACLs and users show that the cluster was secured; a broker that starts with its
    metadata and an open configuration serves every record to every client.
    """
    users = {user for credentials in image.scram.users.values() for user in credentials}
    if config.values["authorizer.class.name"] or not (image.acls or users) or not open_beyond_loopback(config):
        return {}
    return {"access_rules": len(image.acls), "users": len(users)}
