"""The periodic work of a broker, about once a second or more often.

The upkeep of the logs runs in slices; all other pieces block the loop, so they must be short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from lowtide.broker.turns import run_in_slices
from lowtide.runtime.clock import Clock
from lowtide.storage.directory.log_directories import LogDirectorySet

if TYPE_CHECKING:
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.heap import Heap
    from lowtide.runtime.worker import Worker

TICK_S: Final = 1.0
"""The interval of the tick; each piece has its own interval."""

FREEING_S: Final = 0.05
"""The interval at which space of deleted records is freed while there is some."""

SLOW_FREEING_S: Final = 0.25
"""The interval after `QUICK_ROUNDS` without any: a look costs 0.1 ms of CPU."""

QUICK_ROUNDS: Final = 40


class DueWork:
    """The work of each tick, and the freeing of deleted records. Call `start` once, then `stop`."""

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
        """The remaining rounds at the short interval."""

    def start(self) -> None:
        """Starts the ticks; the first one is a second from now."""
        self._timer = self._loop.call_later(TICK_S, self._on_tick)
        self._freeing = self._loop.call_later(SLOW_FREEING_S, self._on_freeing)

    def stop(self) -> None:
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


LOOK_INTERVAL_MS: Final = 5_000
FREED_BYTES_MIN: Final = 16 << 20
"""The minimum number of bytes freed since the last trim."""


class MemoryUpkeep:
    """Returns memory to the system. Used from the event loop only."""

    def __init__(self, heap: Heap | None, worker: Worker, clock: Clock) -> None:
        self._heap = heap
        self._worker = worker
        self._clock = clock
        self._look_ms = 0
        self._kept_bytes = 0
        """The free memory after the last trim, or less: the C library still counts it."""
        self._trimming = False

    def on_tick(self) -> None:
        """Trims the heap if enough was freed. Call it about once a second."""
        heap, now_ms = self._heap, self._clock.monotonic_ms()
        if heap is None or self._trimming or now_ms < self._look_ms:
            return
        self._look_ms = now_ms + LOOK_INTERVAL_MS
        free_bytes = heap.free_bytes()
        self._kept_bytes = min(self._kept_bytes, free_bytes)
        if free_bytes - self._kept_bytes >= FREED_BYTES_MIN:
            self._trimming = True
            self._worker.submit(heap.trim, lambda _outcome: self._on_trimmed(heap))

    def _on_trimmed(self, heap: Heap) -> None:
        self._trimming = False
        self._kept_bytes = heap.free_bytes()
