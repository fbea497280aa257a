"""Log lines about a blocked loop, and none otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from lowtide.broker.lifecycle.loop_health import (
    PROBE_INTERVAL_MS,
    REPORT_INTERVAL_MS,
    WARNING_INTERVAL_MS,
    WARNING_MS,
    LoopHealth,
)
from lowtide.runtime.loop_lag import BOUNDS_MS
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.runtime.thread_usage import ThreadUsage, no_usage


class HeldClock(SimulatedClock):
    """A clock that advances while a callback runs: `hold` adds time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.held_ms = 0
        self.usage = no_usage()

    def hold(self, *, cpu_ms: int = 0, starved_ms: int = 0, blocked_ms: int = 0) -> None:
        self.held_ms += cpu_ms + starved_ms + blocked_ms
        cpu_ns, starved_ns, collections = self.usage
        self.usage = ThreadUsage(cpu_ns + cpu_ms * 1_000_000, starved_ns + starved_ms * 1_000_000, collections)

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.held_ms


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **values: Any) -> None:
        self.lines.append(("info", event, values))

    def warning(self, event: str, **values: Any) -> None:
        self.lines.append(("warning", event, values))


def watched(
    act: Callable[[SimulatedLoop, HeldClock], None], for_ms: int
) -> tuple[LoopHealth, list[tuple[str, str, dict[str, Any]]]]:
    """The log lines of a loop's health over `for_ms`, in which `act` blocks the loop."""
    log = Log()

    async def main(loop: SimulatedLoop) -> LoopHealth:
        clock = HeldClock(loop)
        health = LoopHealth(loop, clock, lambda: clock.usage, log, lambda since_ms: [f"client {since_ms}"])
        health.start()
        act(loop, clock)
        await asyncio.sleep(for_ms / 1000)
        health.stop()
        count = health.snapshot().lag.count
        await asyncio.sleep(1)
        assert health.snapshot().lag.count == count, "stopped"
        return health

    return run_simulation(main, 1), log.lines


def test_a_simulated_loop_is_never_late() -> None:
    health, lines = watched(lambda _loop, _clock: None, 3 * REPORT_INTERVAL_MS)
    seen = health.snapshot()
    assert seen.lag.count >= 3 * REPORT_INTERVAL_MS // PROBE_INTERVAL_MS - 1
    assert (seen.lag.max_ms, seen.held.max_ms, lines) == (0, 0, [])


def test_a_long_block_is_a_warning_at_once_and_in_the_minutes_line() -> None:
    def act(loop: SimulatedLoop, clock: HeldClock) -> None:
        loop.call_later(1.05, lambda: clock.hold(cpu_ms=WARNING_MS + 50, blocked_ms=100))

    health, lines = watched(act, REPORT_INTERVAL_MS + 1000)
    (level, event, values), (later, report, summary) = lines
    assert (level, event) == ("warning", "the event loop was held")
    assert (values["lag_ms"], values["cpu_ms"], values["starved_ms"], values["clients"]) == (350, 250, 0, 1)
    assert values["some_clients"] == ["client 1000"]
    assert (later, report, summary["held_too_long"]) == ("info", "event loop lag", 1)
    assert summary["longest_hold"]["cpu_ms"] == 250
    held = health.snapshot().held
    assert held.count - held.cumulative_counts[BOUNDS_MS.index(200)] == 1


def test_a_short_hold_is_logged_once_a_minute() -> None:
    def act(loop: SimulatedLoop, clock: HeldClock) -> None:
        for number in range(10):
            loop.call_later(1.05 + number, lambda: clock.hold(cpu_ms=30))

    _, lines = watched(act, 2 * REPORT_INTERVAL_MS + 1000)
    assert [(level, values["held_too_long"]) for level, _, values in lines] == [("info", 10)]


def test_a_busy_machine_is_no_warning_but_long_waits_are_logged() -> None:
    _, lines = watched(
        lambda loop, clock: loop.call_later(1.05, lambda: clock.hold(starved_ms=500)), REPORT_INTERVAL_MS + 1000
    )
    assert [(level, values["held_too_long"], values["worst_lag"]["starved_ms"]) for level, _, values in lines] == [
        ("info", 0, 500)
    ]
    _, lines = watched(
        lambda loop, clock: loop.call_later(1.05, lambda: clock.hold(starved_ms=100)), REPORT_INTERVAL_MS + 1000
    )
    assert lines == []


def test_warnings_are_bounded() -> None:
    def act(loop: SimulatedLoop, clock: HeldClock) -> None:
        for number in range(50):
            loop.call_later(1.05 + number / 2, lambda: clock.hold(cpu_ms=WARNING_MS))

    _, lines = watched(act, 30_000)
    warnings = [level for level, _, _ in lines if level == "warning"]
    assert 1 < len(warnings) <= 35_000 // WARNING_INTERVAL_MS + 1
