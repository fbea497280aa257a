"""The audit log: which events it has, how many, and what is said of those left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lowtide.broker.audit.audit_log import LINES_PER_CLIENT, LINES_PER_SECOND, NO_AUDIT, TEXT_MAX, AuditEvent, AuditLog
from lowtide.broker.audit.line_bound import KEYS_NAMED, LineBound


class Lines(list[dict[str, Any]]):
    def info(self, event: str, **fields: Any) -> None:
        self.append({"event": event, **fields})


def source(name: str = "User:alice", address: str = "10.0.0.1", **more: Any) -> Any:
    return SimpleNamespace(principal=name, client_address=address, **more)


def made(*events: AuditEvent) -> tuple[AuditLog, Lines, list[int]]:
    lines, now = Lines(), [1_000]
    return AuditLog(lines, frozenset(events), lambda: now[0]), lines, now


def test_a_line_has_who_did_what_from_where() -> None:
    audit, lines, _ = made(AuditEvent.DELETES)
    audit.done(AuditEvent.DELETES, "topic deleted", source(client_id="c" * 1000, correlation_id=7), topic="t")
    assert len(lines[0].pop("client_id")) == TEXT_MAX + 1
    assert lines == [
        {"event": "topic deleted", "principal": "User:alice", "host": "10.0.0.1", "correlation_id": 7, "topic": "t"}
    ]


def test_only_the_events_that_are_wanted_are_lines() -> None:
    audit, lines, _ = made(AuditEvent.DELETES)
    audit.done(AuditEvent.CHANGES, "x", source())
    audit.tried(AuditEvent.DENIED, "x", source())
    NO_AUDIT.done(AuditEvent.DELETES, "x", source())
    NO_AUDIT.tried(AuditEvent.DENIED, "x", source())
    assert lines == []


def test_a_client_does_not_fill_the_log_and_does_not_hide_others() -> None:
    audit, lines, now = made(AuditEvent.DENIED)
    for _ in range(1_000):
        audit.tried(AuditEvent.DENIED, "x", source())
    audit.tried(AuditEvent.DENIED, "x", source(address="10.0.0.2"))
    assert len(lines) == LINES_PER_CLIENT + 1
    audit.on_tick()
    assert len(lines) == LINES_PER_CLIENT + 1, "the second isn't over"
    now[0] = 2_000
    audit.on_tick()
    audit.on_tick()
    suppressed = 1_000 - LINES_PER_CLIENT
    assert lines[LINES_PER_CLIENT + 1 :] == [
        {"event": "suppressed", "count": suppressed, "clients": {"User:alice 10.0.0.1": suppressed}}
    ]
    audit.tried(AuditEvent.DENIED, "x", source())
    assert lines[-1]["event"] == "x"


def test_many_clients_do_not_fill_the_log_or_the_memory() -> None:
    bound = LineBound(LINES_PER_SECOND, LINES_PER_CLIENT)
    admitted = sum(bound.admit(f"client-{number}", 5_000) for number in range(10_000))
    assert admitted == LINES_PER_SECOND
    suppressed = bound.take_suppressed(6_000)
    assert suppressed is not None
    assert (suppressed.count, len(suppressed.by_key)) == (10_000 - LINES_PER_SECOND, KEYS_NAMED)


def test_a_few_clients_do_not_hide_the_lines_of_others() -> None:
    """Half of a second's lines are for the first one of a client."""
    bound = LineBound(LINES_PER_SECOND, LINES_PER_CLIENT)
    for number in range(30):
        for _ in range(LINES_PER_CLIENT):
            bound.admit(f"noisy-{number}", 5_000)
    assert bound.admit("quiet", 5_000)
    assert not bound.admit("quiet", 5_000)
    assert bound.admit("quiet", 6_000)


def test_changes_that_were_made_are_never_left_out() -> None:
    audit, lines, _ = made(AuditEvent.CHANGES)
    for _ in range(10 * LINES_PER_SECOND):
        audit.done(AuditEvent.CHANGES, "x", source())
    assert len(lines) == 10 * LINES_PER_SECOND
