"""Has memory given back to the system after much of it was freed: groups that expired, large requests, topics that were deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.heap import Heap
    from lowtide.runtime.worker import Worker

LOOK_INTERVAL_MS: Final = 5_000
FREED_BYTES_MIN: Final = 16 << 20
"""So much must have been freed since memory was last given back."""


class MemoryUpkeep:
    """Gives memory back and keeps the collector's work small. Used from the event loop only."""

    def __init__(self, heap: Heap | None, worker: Worker, clock: Clock) -> None:
        self._heap = heap
        self._worker = worker
        self._clock = clock
        self._look_ms = 0
        self._kept_bytes = 0
        """Free memory when it was last given back, or less: the C library counts that still."""
        self._trimming = False

    def on_tick(self) -> None:
        """Look whether there is something to give back. To be called about once a second."""
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
