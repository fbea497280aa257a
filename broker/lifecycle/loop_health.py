"""Measures the lag of the event loop, and logs it when it matters.

A timer fires ten times a second; its lag and the cause go into histograms for metrics (`snapshot`). If our own code
blocks the loop for `WARNING_MS` or more, a warning names the clients served at that time. Each minute in which our code
blocked the loop for more than `HELD_TOO_LONG_MS`, or clients waited for `WARNING_MS` for any reason, ends with one
line.

It samples: a block shorter than the interval can be missed, a longer one cannot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from lowtide.runtime.clock import Clock
from lowtide.runtime.loop_lag import Lateness, LoopLag, LoopLagSnapshot
from lowtide.runtime.thread_usage import ReadUsage

PROBE_INTERVAL_MS = 100
"""Each probe costs about 30 µs of CPU: 0.03 % of a core."""

HELD_TOO_LONG_MS = 20
"""Design limit: only a write into the page cache may block the loop for longer."""

WARNING_MS = 200
REPORT_INTERVAL_MS = 60_000
WARNING_INTERVAL_MS = 10_000
"""The minimum time between two warnings; the line of the minute counts all."""

_CLIENTS_NAMED = 3


class LoopHealth:
    """Measures the lag of the event loop. Call `start` once, then `stop`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        read_usage: ReadUsage,
        log: Any,
        active_since: Callable[[int], Sequence[str]] = lambda _ms: (),
    ) -> None:
        """`active_since` returns the clients that sent a request at or after a monotonic time."""
        self._loop = loop
        self._clock = clock
        self._read_usage = read_usage
        self._log = log
        self._active_since = active_since
        self._lag = LoopLag(read_usage())
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._report_ms = 0
        self._warning_ms = 0
        self._too_long_count = 0
        self._longest: Lateness | None = None
        self._slowest: Lateness | None = None

    def start(self) -> None:
        self._lag = LoopLag(self._read_usage())
        now_ms = self._clock.monotonic_ms()
        self._report_ms = now_ms + REPORT_INTERVAL_MS
        self._warning_ms = now_ms
        self._set_timer(now_ms)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def snapshot(self) -> LoopLagSnapshot:
        return self._lag.snapshot()

    def _set_timer(self, now_ms: int) -> None:
        self._due_ms = now_ms + PROBE_INTERVAL_MS
        self._timer = self._loop.call_later(PROBE_INTERVAL_MS / 1000, self._on_timer)

    def _on_timer(self) -> None:
        now_ms = self._clock.monotonic_ms()
        late = self._lag.add(max(now_ms - self._due_ms, 0), self._read_usage())
        if late.lag_ms > HELD_TOO_LONG_MS:
            self._note(late, now_ms)
        if now_ms >= self._report_ms:
            self._report(now_ms)
        self._set_timer(now_ms)

    def _note(self, late: Lateness, now_ms: int) -> None:
        if late.held_ms > HELD_TOO_LONG_MS:
            self._too_long_count += 1
        if self._longest is None or late.held_ms > self._longest.held_ms:
            self._longest = late
        if self._slowest is None or late.lag_ms > self._slowest.lag_ms:
            self._slowest = late
        if late.held_ms >= WARNING_MS and now_ms >= self._warning_ms:
            self._warning_ms = now_ms + WARNING_INTERVAL_MS
            clients = self._active_since(now_ms - round(late.lag_ms) - PROBE_INTERVAL_MS)
            self._log.warning(
                "the event loop was held",
                **_told(late),
                clients=len(clients),
                some_clients=sorted(clients)[:_CLIENTS_NAMED],
            )

    def _report(self, now_ms: int) -> None:
        """Logs one line for the time since the last one, if something happened."""
        self._report_ms = now_ms + REPORT_INTERVAL_MS
        longest, slowest, count = self._longest, self._slowest, self._too_long_count
        self._longest = self._slowest = None
        self._too_long_count = 0
        if longest is None or slowest is None or (count == 0 and slowest.lag_ms < WARNING_MS):
            return
        self._log.info(
            "event loop lag",
            held_too_long=count,
            limit_ms=HELD_TOO_LONG_MS,
            longest_hold=_told(longest),
            worst_lag=_told(slowest),
        )


def _told(late: Lateness) -> dict[str, Any]:
    times = ("lag_ms", "cpu_ms", "blocked_ms", "starved_ms")
    return {name: round(getattr(late, name), 1) for name in times} | {"full_collections": late.full_collections}
