"""The timer of a connection that executes nothing for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def lengthened(timer: asyncio.TimerHandle | None, for_ms: int, then: Callable[[], None]) -> asyncio.TimerHandle:
    """The timer that calls `then` in so many milliseconds, or the one that is set if that is later."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + for_ms / 1000
    if timer is not None:
        if timer.when() >= end_s:
            return timer
        timer.cancel()
    return loop.call_at(end_s, then)
