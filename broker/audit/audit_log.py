"""What an audit log has: events of some kinds, each a line with its time, principal, address, client id and correlation id.

Lines about what clients only tried are bounded: `LINES_PER_SECOND`, and `LINES_PER_CLIENT` of one principal at one address; a line
`suppressed` counts the others. A change that was made is always a line: it cost its client a write of the metadata or the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, Protocol

from lowtide.broker.audit.line_bound import LineBound
from lowtide.broker.security.principal import KafkaPrincipal

LINES_PER_SECOND: Final = 100
LINES_PER_CLIENT: Final = 10
"""Bounds of lines about what was only tried, in one second."""

TEXT_MAX: Final = 249
"""Characters of a name in a line: as long as a topic's may be."""


class AuditEvent(StrEnum):
    """The kinds of events, as `lowtide.audit.events` names them."""

    LOGINS = "logins"
    LOGINS_REFUSED = "logins-refused"
    ALLOWED = "allowed"
    DENIED = "denied"
    CHANGES = "changes"
    DELETES = "deletes"


class Source(Protocol):
    """The request, or the connection, that an event comes from."""

    @property
    def principal(self) -> KafkaPrincipal:
        """The client."""

    @property
    def client_address(self) -> str:
        """Its address, without a port."""


class AuditLog:
    """Writes events to `log`, a structlog logger."""

    def __init__(
        self,
        log: Any,
        events: frozenset[AuditEvent],
        now_ms: Callable[[], int],
        close: Callable[[], None] | None = None,
    ) -> None:
        """`close` ends what `log` writes to."""
        self._log = log
        self._now_ms = now_ms
        self._bound = LineBound(LINES_PER_SECOND, LINES_PER_CLIENT)
        self._close = close
        self.events = events

    def tried(self, kind: AuditEvent, event: str, source: Source, **fields: Any) -> None:
        """Write an event that changed nothing, unless there are too many of them."""
        if kind in self.events and self._bound.admit(
            f"{source.principal} {source.client_address}"[:TEXT_MAX], self._now_ms()
        ):
            self._write(event, source, fields)

    def done(self, kind: AuditEvent, event: str, source: Source, **fields: Any) -> None:
        """Write an event that changed something."""
        if kind in self.events:
            self._write(event, source, fields)

    def by_itself(self, kind: AuditEvent, event: str, **fields: Any) -> None:
        """Write a change that the broker made by itself, without a request."""
        if kind in self.events:
            self._log.info(event, principal=None, host=None, client_id=None, correlation_id=None, **fields)

    def on_tick(self) -> None:
        """Say what was left out. Called once a second."""
        suppressed = self._bound.take_suppressed(self._now_ms())
        if suppressed is not None:
            self._log.info("suppressed", count=suppressed.count, clients=suppressed.by_key)

    def close(self) -> None:
        """Write what waits. Lines that come later are written at once."""
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
"""Writes nothing."""


def short(text: str | None) -> str | None:
    """A text of a client, as a line has it."""
    return text if text is None or len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"
