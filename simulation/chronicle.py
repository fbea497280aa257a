"""The last events of a run with their virtual times, and its first violation."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from lowtide.simulation.history import HistoryError

LINES_KEPT: Final = 4000
_BUGS: Final = ("request failed", "task failed", "connection failed")
"""The events that brokers log for an unexpected exception."""


class Chronicle:
    """The last events, event counts, and the first violation of a run."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.counts: Counter[str] = Counter()
        self.violation: HistoryError | None = None
        self._now_s = now_s
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)

    @property
    def now_s(self) -> float:
        return self._now_s()

    def note(self, who: str, what: str) -> None:
        if self.violation is None:  # What comes after it doesn't explain it.
            self._lines.append(f"{self._now_s():10.4f}  {who:<12} {what}")

    def violate(self, what: str) -> None:
        """Records a violation; the first one counts."""
        self.note("!!!", what)
        if self.violation is None:
            self.violation = HistoryError(f"{what} (at {self._now_s():.4f} s)")

    def raise_violation(self) -> None:
        """Raises HistoryError after a violation."""
        if self.violation is not None:
            raise self.violation

    def text(self, last: int = LINES_KEPT) -> str:
        return "\n".join(list(self._lines)[-last:])


class BrokerLog:
    """A broker's logger that writes to the chronicle; a reported bug is a violation."""

    def __init__(self, chronicle: Chronicle, host: str) -> None:
        self._chronicle = chronicle
        self._host = host

    def bind(self, **_values: Any) -> BrokerLog:
        return self

    def debug(self, event: str, **values: Any) -> None:
        """Ignores the line."""

    def info(self, event: str, **values: Any) -> None:
        self._note(event, values)

    def warning(self, event: str, **values: Any) -> None:
        """Records a warning."""
        self._note(event, values)

    def error(self, event: str, **values: Any) -> None:
        self._note(event, values)
        error = values.get("exc_info") or values.get("error")
        if event.startswith(_BUGS):
            self._chronicle.violate(f"{self._host}: {event}: {error!r} {values}")

    critical = error
    exception = error

    def _note(self, event: str, values: dict[str, Any]) -> None:
        self._chronicle.note(self._host, f"({event} {values})" if values else f"({event})")
