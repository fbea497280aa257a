"""Log lines about a broker's start: how it can be reached, how it is installed, and what was recovered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lowtide.broker.config.listeners import ConfiguredListener
from lowtide.protocol.native import why_plain
from lowtide.runtime.name_resolution import unresolved
from lowtide.storage.directory.log_manager import LogManager

if TYPE_CHECKING:
    from lowtide.broker.config.broker_config import BrokerConfig
    from lowtide.metadata.image import MetadataImage

_LOOPBACK: Final = ("127.", "localhost", "::1")

RESOLVED_WITHIN_S: Final = 5.0
"""More than a resolver's timeout for one attempt: the default of resolv.conf."""

Unresolved = Callable[[Sequence[str], float], Awaitable[Mapping[str, str]]]


def with_ports(listeners: Sequence[ConfiguredListener], ports: Mapping[str, int]) -> list[str]:
    """Formats listeners, with the bound port for port 0."""
    return [each._replace(port=each.port or ports.get(each.name, 0)).text for each in listeners]


def warn_without_compiled_module(log: Any) -> None:
    """Warns if the compiled module is missing unexpectedly."""
    if reason := why_plain():
        remedy = (
            "install a C compiler and Python's headers (Debian: gcc python3-dev) and reinstall Lowtide, or use a wheel"
        )
        log.warning(
            "compiled module is missing, Python code processes records, which is slower", reason=reason, remedy=remedy
        )


def warn_of_open_listeners(config: BrokerConfig, image: MetadataImage, log: Any) -> None:
    """Warns of listeners that serve other machines without a login, and of users and ACLs that have no effect."""
    if open_to_all := open_beyond_loopback(config):
        remedy = "listen on 127.0.0.1, or require logins with SASL_SSL, see docs/security.md"
        log.warning("listeners serve other machines without a login", listeners=open_to_all, remedy=remedy)
    if left_out := ineffective_protection(config, image):
        remedy = "start it with the security settings of the other brokers, such as authorizer.class.name and SASL_SSL"
        log.warning("users and ACLs of this cluster have no effect on this broker", **left_out, remedy=remedy)


async def warn_of_unresolved(
    advertised: Sequence[ConfiguredListener], log: Any, look_up: Unresolved = unresolved
) -> None:
    """Warns of advertised names that this machine does not resolve: clients connect there after their first request."""
    reasons = await look_up([each.host for each in advertised], RESOLVED_WITHIN_S)
    names = {each.host: each.text for each in advertised if each.host in reasons}
    if names:
        log.warning(
            "an advertised host name does not resolve on this machine",
            advertised=list(names.values()),
            reasons=[reasons[host] for host in names],
            remedy="set advertised.listeners to an address that clients can reach, such as PLAINTEXT://10.0.0.1:9092",
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


def ineffective_protection(config: BrokerConfig, image: MetadataImage) -> dict[str, int]:
    """Counts the ACLs and users that have no effect, because a listener is open and there is no authorizer.

    Returns nothing if there are none. ACLs and users show that the cluster was secured; a broker that starts with its
    metadata and an open configuration serves every record to every client.
    """
    users = {user for credentials in image.scram.users.values() for user in credentials}
    if config.values["authorizer.class.name"] or not (image.acls or users) or not open_beyond_loopback(config):
        return {}
    return {"access_rules": len(image.acls), "users": len(users)}


LOGS_NAMED: Final = 20
"""The maximum number of repaired logs that get a line each; the others are counted."""


def log_recoveries(log_manager: LogManager, took_ms: int, log: Any) -> None:
    """Logs the recoveries and repairs of all directories, which took `took_ms` to load."""
    for found in log_manager.directories.recoveries:
        event = (
            "log directory was closed cleanly"
            if found.was_clean
            else "log directory was recovered after an unclean stop"
        )
        log.info(
            event,
            directory=found.directory,
            logs=found.logs,
            segments_checked=found.segments_checked,
            bytes_cut=found.bytes_cut,
            duration_ms=took_ms,
        )
    mended = sorted(log_manager.directories.load_reports.items())
    for key, report in mended[:LOGS_NAMED]:
        is_cut = report.bytes_cut or report.segments_dropped
        (log.warning if is_cut else log.info)(
            "log was repaired",
            partition=str(key),
            bytes_cut=report.bytes_cut,
            reason=report.reason,
            segments_dropped=report.segments_dropped,
            indexes_rebuilt=report.indexes_rebuilt,
            leader_epochs_rebuilt=report.epochs_rebuilt,
            begins_at_its_log_start=report.restarted_at_log_start,
            log_end_offset=log_manager.logs[key].log_end_offset if key in log_manager.logs else None,
        )
    if len(mended) > LOGS_NAMED:
        bytes_cut = sum(report.bytes_cut for _, report in mended[LOGS_NAMED:])
        log.info("more logs were repaired", logs=len(mended) - LOGS_NAMED, bytes_cut=bytes_cut)
