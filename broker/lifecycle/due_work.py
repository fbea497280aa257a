"""What a broker does about once a second, or sooner, whatever its clients do.

The upkeep of the logs is done in slices; what else is due holds the loop, so it has to be short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from lowtide.broker.slices import run_in_slices
from lowtide.runtime.clock import Clock
from lowtide.storage.directory.log_directories import LogDirectorySet

TICK_S: Final = 1.0
"""How often due work is looked for; each piece has its own interval."""

FREEING_S: Final = 0.05
"""How often the room of deleted records is given back while there is any."""

SLOW_FREEING_S: Final = 0.25
"""How often it is looked for when there was none for `QUICK_ROUNDS`: a look costs 0.1 ms of CPU, mostly to wake up."""

QUICK_ROUNDS: Final = 40


class DueWork:
    """What is due each second, and what deletes leave. `start` once, then `stop`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        directories: LogDirectorySet,
        pieces: Sequence[Callable[[], object]],
    ) -> None:
        """`pieces` are called in their order, before the upkeep of the logs."""
        self._loop = loop
        self._clock = clock
        self._directories = directories
        self._pieces = pieces
        self._timer: asyncio.TimerHandle | None = None
        self._freeing: asyncio.TimerHandle | None = None
        self._upkeep_runs = False
        self._freeing_runs = False
        self._quick_rounds = 0
        """Left until it is looked for less often."""

    def start(self) -> None:
        """Begin; the first time is a second from now."""
        self._timer = self._loop.call_later(TICK_S, self._on_tick)
        self._freeing = self._loop.call_later(SLOW_FREEING_S, self._on_freeing)

    def stop(self) -> None:
        """Begin nothing more."""
        for timer in (self._timer, self._freeing):
            if timer is not None:
                timer.cancel()

    def _on_tick(self) -> None:
        for piece in self._pieces:
            piece()
        if not self._upkeep_runs:
            self._upkeep_runs = True
            run_in_slices(
                self._loop, self._clock, self._directories.due_work(self._clock.wall_ms()), self._on_upkeep_done
            )
        self._timer = self._loop.call_later(TICK_S, self._on_tick)

    def _on_upkeep_done(self) -> None:
        self._upkeep_runs = False

    def _on_freeing(self) -> None:
        if not self._freeing_runs:
            self._freeing_runs = True
            run_in_slices(self._loop, self._clock, self._freeing_steps(), self._on_freeing_done)
        self._quick_rounds = max(self._quick_rounds - 1, 0)
        self._freeing = self._loop.call_later(FREEING_S if self._quick_rounds else SLOW_FREEING_S, self._on_freeing)

    def _freeing_steps(self) -> Iterator[None]:
        for _step in self._directories.free_deleted():
            self._quick_rounds = QUICK_ROUNDS
            yield

    def _on_freeing_done(self) -> None:
        self._freeing_runs = False
