"""Runs the `lowtide` command, and measures the longest pass of its event loop, in CPU time of the loop's thread.

At SIGUSR1 it writes the longest pass since the last SIGUSR1, in milliseconds, to the file that `BENCH_HOLDS` names. A
watched loop never sleeps, so measure nothing else of such a broker. Waiting for a disk or a processor is no CPU time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import uvloop

from lowtide.cli.main import main

VARIABLE = "BENCH_HOLDS"
_NS_PER_MS = 1e6


class Watch:
    """Looks at the clock in each pass of a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last_ns = 0
        self._longest_ns = 0

    def begin(self) -> None:
        """Schedules the next pass."""
        signal.signal(signal.SIGUSR1, lambda _number, _frame: self._write())
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        now_ns = time.thread_time_ns()
        self._longest_ns = max(self._longest_ns, now_ns - (self._last_ns or now_ns))
        self._last_ns = now_ns
        self._loop.call_soon(self._look)

    def _write(self) -> None:
        longest_ns, self._longest_ns = self._longest_ns, 0
        path = Path(os.environ[VARIABLE])
        temporary = path.with_suffix(".new")
        temporary.write_text(str(longest_ns / _NS_PER_MS))
        temporary.replace(path)
        self._last_ns = 0


def _watched_loop() -> asyncio.AbstractEventLoop:
    loop = _make_loop()
    Watch(loop).begin()
    return loop


if __name__ == "__main__":
    _make_loop = uvloop.new_event_loop
    uvloop.new_event_loop = _watched_loop  # type: ignore[assignment]
    sys.exit(main())
