"""The audit log and the authorizer of a broker, made from its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from lowtide.broker.audit.audit_log import AuditEvent, AuditLog
from lowtide.broker.authorizer.authorizer import ALLOW_ALL, Authorizer
from lowtide.broker.authorizer.standard_authorizer import StandardAuthorizer, parse_super_users
from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.config.key import number
from lowtide.metadata.session import MetadataSession
from lowtide.runtime.filesystem import AlreadyLockedError

if TYPE_CHECKING:
    from lowtide.broker.audit.audit_file import AuditFile
    from lowtide.broker.config.broker_config import BrokerConfig
    from lowtide.broker.lifecycle.ports import Ports
    from lowtide.runtime.filesystem import Lock


def make_audit(config: BrokerConfig, ports: Ports, log: Any) -> AuditLog:
    """Creates the audit log. Without one, denied operations are still written to the broker's log.

    Errors: OSError if the file cannot be opened.
    """
    target, wanted = config.values["lowtide.audit.log"], config.values["lowtide.audit.events"]
    assert isinstance(wanted, tuple)
    events = frozenset(map(AuditEvent, wanted))
    now_ms = ports.clock.monotonic_ms
    if target == "file":
        file, lock = _audit_file(config, ports, log)

        def close() -> None:
            file.close()
            lock.release()

        return AuditLog(_json_lines(file, config.node_id), events, now_ms, close)
    return AuditLog(log, events if target == "log" else frozenset({AuditEvent.DENIED}), now_ms)


def _audit_file(config: BrokerConfig, ports: Ports, log: Any) -> tuple[AuditFile, Lock]:
    """Opens the file, and the lock that protects it from other brokers."""
    from lowtide.broker.audit.audit_file import AuditFile, RotatedFile  # noqa: PLC0415  rarely needed

    values = config.values
    given, most = str(values["lowtide.audit.file"]), number(values["lowtide.audit.file.max.bytes"])
    path = given if given.startswith("/") else f"{config.log_dirs[0]}/{given}"
    try:
        lock = ports.filesystem.lock(f"{path}.lock")
        file = RotatedFile(ports.filesystem, path, bytes_max=most, files_max=number(values["lowtide.audit.files.max"]))
    except AlreadyLockedError as error:
        raise OSError(f"lowtide.audit.file={path} is the audit log of another broker.") from error
    except OSError as error:
        raise OSError(f"lowtide.audit.file={path} cannot be opened: {error.strerror or error}.") from error
    return AuditFile(file, ports.worker, ports.clock, log), lock


def _json_lines(sink: AuditFile, node_id: int) -> Any:
    """Returns a logger that writes one line per event."""
    encode = msgspec.json.Encoder().encode
    processors: list[Any] = [
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        lambda _logger, _method, event: encode(event) + b"\n",
    ]
    return structlog.wrap_logger(
        sink, processors=processors, wrapper_class=structlog.make_filtering_bound_logger("info"), context_class=dict
    ).bind(node_id=node_id)


def make_authorizer(config: BrokerConfig, session: MetadataSession, audit: AuditLog) -> Authorizer:
    """Returns the authorizer, whose rules follow the image. Without `authorizer.class.name` it allows everything."""
    values = config.values
    if not values["authorizer.class.name"]:
        return ALLOW_ALL
    authorizer = StandardAuthorizer(
        parse_super_users(str(values["super.users"])),
        allow_if_no_acl=values["allow.everyone.if.no.acl.found"] is True,
        audit=audit,
    )
    authorizer.use(session.image.acls, hides_rules=session.image.hides_rules)
    session.on_image(authorizer.on_image)
    return authorizer
