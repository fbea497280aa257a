"""Which connections are ended: their clients are slow, silent, or gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.network.connection.slow_clients import ABANDONED_MS, HALF_CLOSED_GRACE_MS, why_to_end

IDLE_MS = 600_000


class Watched:
    frame = SimpleNamespace(buffer=None, filled=0, started_ms=0)
    reading_paused = False
    last_active_ms = 1

    def __init__(self, *, eof_ms: int = 0, parked_ms: int | None = None, waiting: bool = False) -> None:
        self.eof_ms = eof_ms
        self.answers = SimpleNamespace(parked_ms=parked_ms, waiting=waiting)


@pytest.mark.parametrize(
    ("state", "at_ms", "reason"),
    [
        ({"parked_ms": 100, "waiting": True}, IDLE_MS * 10, None),
        ({"parked_ms": 100, "waiting": True, "eof_ms": 200}, 200 + ABANDONED_MS, None),
        ({"parked_ms": 100, "waiting": True, "eof_ms": 200}, 201 + ABANDONED_MS, "while a request was waiting"),
        ({"parked_ms": 900, "waiting": True, "eof_ms": 200}, 201 + ABANDONED_MS, None),
        ({"eof_ms": 200}, 200 + HALF_CLOSED_GRACE_MS, None),
        ({"eof_ms": 200}, 201 + HALF_CLOSED_GRACE_MS, "doesn't read its answers"),
        ({}, IDLE_MS + 2, "idle for more than"),
    ],
)
def test_when_a_connection_is_ended(state: dict[str, Any], at_ms: int, reason: str | None) -> None:
    why = why_to_end(Watched(**state), at_ms, IDLE_MS)
    assert why is None if reason is None else why is not None and reason in why
