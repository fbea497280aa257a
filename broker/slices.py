"""Long work in the event loop, a slice at a time, so that nobody else waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from lowtide.runtime.clock import Clock

SLICE_MS = 2
"""How long one slice may hold the loop; a step of the work that takes longer is not cut short."""


def run_in_slices(loop: asyncio.AbstractEventLoop, clock: Clock, steps: Iterator[object], on_done: Callable[[], None]) -> None:
    """Take `steps` to their end, the first slice of them at once; then `on_done` is called. Whatever is ready runs between two slices."""
    until_ms = clock.monotonic_ms() + SLICE_MS
    for _step in steps:
        if clock.monotonic_ms() >= until_ms:
            loop.call_soon(run_in_slices, loop, clock, steps, on_done)
            return
    on_done()
