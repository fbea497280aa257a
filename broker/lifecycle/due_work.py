"""What a broker does about once a second, whatever its clients do.

The upkeep of the logs is done in slices; what else is due holds the loop, so it has to be short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from lowtide.broker.slices import run_in_slices
from lowtide.runtime.clock import Clock
from lowtide.storage.directory.log_manager import LogManager

TICK_S: Final = 1.0
"""How often due work is looked for; each piece has its own interval."""


class DueWork:
    """What is due each second. `start` once, then `stop`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, log_manager: LogManager, pieces: Sequence[Callable[[], object]]
    ) -> None:
        """`pieces` are called in their order, before the upkeep of the logs."""
        self._loop = loop
        self._clock = clock
        self._log_manager = log_manager
        self._pieces = pieces
        self._timer: asyncio.TimerHandle | None = None
        self._upkeep_runs = False

    def start(self) -> None:
        """Begin; the first time is a second from now."""
        self._timer = self._loop.call_later(TICK_S, self._on_tick)

    def stop(self) -> None:
        """Begin nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_tick(self) -> None:
        for piece in self._pieces:
            piece()
        if not self._upkeep_runs:
            self._upkeep_runs = True
            run_in_slices(self._loop, self._clock, self._log_manager.due_work(self._clock.wall_ms()), self._on_upkeep_done)
        self._timer = self._loop.call_later(TICK_S, self._on_tick)

    def _on_upkeep_done(self) -> None:
        self._upkeep_runs = False
