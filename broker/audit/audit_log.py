"""Writes events of the configured kinds, each a line with time, principal, address, client id and correlation id.

Lines about mere attempts are limited to `LINES_PER_SECOND` in total and `LINES_PER_CLIENT` for a principal at an
address. A line `suppressed` counts the others. A successful change is always written, because it cost its client a
write of the metadata or the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, Protocol

from lowtide.broker.audit.line_bound import LineBound
from lowtide.broker.security.principal import KafkaPrincipal

LINES_PER_SECOND: Final = 100
LINES_PER_CLIENT: Final = 10
"""Limits of lines about mere attempts, per second."""

TEXT_MAX: Final = 249
"""The maximum length of a name in a line: that of a topic name."""


class AuditEvent(StrEnum):
    """The kinds of events, as named in `lowtide.audit.events`."""

    LOGINS = "logins"
    LOGINS_REFUSED = "logins-refused"
    ALLOWED = "allowed"
    DENIED = "denied"
    CHANGES = "changes"
    DELETES = "deletes"


class Source(Protocol):
    """The request or connection that caused an event."""

    @property
    def principal(self) -> KafkaPrincipal: ...

    @property
    def client_address(self) -> str:
        """The client's address without a port."""


class AuditLog:
    """Writes events to `log`, a structlog logger."""

    def __init__(
        self,
        log: Any,
        events: frozenset[AuditEvent],
        now_ms: Callable[[], int],
        close: Callable[[], None] | None = None,
    ) -> None:
        """`close` closes the log's destination."""
        self._log = log
        self._now_ms = now_ms
        self._bound = LineBound(LINES_PER_SECOND, LINES_PER_CLIENT)
        self._close = close
        self.events = events

    def tried(self, kind: AuditEvent, event: str, source: Source, **fields: Any) -> None:
        """Writes an event that changed nothing, unless there are too many."""
        if kind in self.events and self._bound.admit(
            f"{source.principal} {source.client_address}"[:TEXT_MAX], self._now_ms()
        ):
            self._write(event, source, fields)

    def done(self, kind: AuditEvent, event: str, source: Source, **fields: Any) -> None:
        if kind in self.events:
            self._write(event, source, fields)

    def unrequested(self, kind: AuditEvent, event: str, **fields: Any) -> None:
        """Writes a change that no request caused."""
        if kind in self.events:
            self._log.info(event, principal=None, host=None, client_id=None, correlation_id=None, **fields)

    def on_tick(self) -> None:
        """Writes how many lines were left out. Called once a second."""
        suppressed = self._bound.take_suppressed(self._now_ms())
        if suppressed is not None:
            self._log.info("suppressed", count=suppressed.count, clients=suppressed.by_key)

    def close(self) -> None:
        """Writes waiting lines. Later lines are written at once."""
        if self._close is not None:
            self._close()

    def _write(self, event: str, source: Source, fields: dict[str, Any]) -> None:
        self._log.info(
            event,
            principal=short(str(source.principal)),
            host=source.client_address,
            client_id=short(getattr(source, "client_id", None)),
            correlation_id=getattr(source, "correlation_id", None),
            **fields,
        )


NO_AUDIT: Final = AuditLog(None, frozenset(), lambda: 0)
"""An audit log that writes nothing."""


def short(text: str | None) -> str | None:
    """Shortens a client's text for a line."""
    return text if text is None or len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"
