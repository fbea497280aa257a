"""The audit log of a broker, as its configuration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from lowtide.broker.audit.audit_log import AuditEvent, AuditLog
from lowtide.broker.config.key import number
from lowtide.runtime.filesystem import AlreadyLockedError

if TYPE_CHECKING:
    from lowtide.broker.audit.audit_file import AuditFile
    from lowtide.broker.config.broker_config import BrokerConfig
    from lowtide.broker.lifecycle.ports import Ports
    from lowtide.runtime.filesystem import Lock


def make_audit(config: BrokerConfig, ports: Ports, log: Any) -> AuditLog:
    """Without an audit log, denied operations are lines of the broker's log.

    Errors: OSError where the file can't be opened.
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
    """The file, and the lock that keeps other brokers from writing it: they have one of their own."""
    from lowtide.broker.audit.audit_file import AuditFile, RotatedFile  # noqa: PLC0415  only where there is one

    values = config.values
    given, most = str(values["lowtide.audit.file"]), number(values["lowtide.audit.file.max.bytes"])
    path = given if given.startswith("/") else f"{config.log_dirs[0]}/{given}"
    try:
        lock = ports.filesystem.lock(f"{path}.lock")
        file = RotatedFile(ports.filesystem, path, bytes_max=most, files_max=number(values["lowtide.audit.files.max"]))
    except AlreadyLockedError as error:
        raise OSError(f"lowtide.audit.file={path} is the audit log of another broker.") from error
    except OSError as error:
        raise OSError(f"lowtide.audit.file={path} can't be opened: {error.strerror or error}.") from error
    return AuditFile(file, ports.worker, ports.clock, log), lock


def _json_lines(sink: AuditFile, node_id: int) -> Any:
    """A logger of one line for each event."""
    encode = msgspec.json.Encoder().encode
    processors: list[Any] = [
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        lambda _logger, _method, event: encode(event) + b"\n",
    ]
    return structlog.wrap_logger(
        sink, processors=processors, wrapper_class=structlog.make_filtering_bound_logger("info"), context_class=dict
    ).bind(node_id=node_id)
