"""Checks of batches that take long, by the worker: one at a time, the requests in turn, each within its limit of decompressed bytes.

A sender chooses how much comes out of a compressed batch: a request of a megabyte may hold 30 GB. So all batches of a request together may
decompress to `limit_bytes`; one of the worker's threads at most is busy with checks, whatever clients send; and a request's second batch
waits behind the first ones of the others. All batches are decompressed into the same memory, whose pages are given back.

Does not decide what is checked here (`handlers/produce`), nor append anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from mmap import mmap
from typing import Any, Final

from lowtide.broker.delayed.slow_batches import SlowBatch
from lowtide.runtime.worker import Worker
from lowtide.storage.decompression_room import DecompressionRoom, release_pages

OnChecked = Callable[[SlowBatch, Any], None]
"""Gets the batch and what `SlowBatch.check` returned, or raised."""

RELEASED_FROM_BYTES: Final = 4 << 20
"""Memory up to this stays for the next batch: less comes and goes with every client."""


class BatchChecks:
    """The checks of one broker. Used from the event loop."""

    def __init__(self, worker: Worker, limit_bytes: int) -> None:
        """`limit_bytes`: what the batches of one request may decompress to, inclusive."""
        self._worker = worker
        self._limit_bytes = limit_bytes
        self._memory: mmap | None = None
        self._turns: deque[RequestChecks] = deque()
        self._busy = False

    def begin(self) -> RequestChecks:
        """The checks of one request."""
        return RequestChecks(self, self._limit_bytes)

    def take_turn(self, request: RequestChecks) -> None:
        """Let a request's next batch be checked after those of the requests before it."""
        if request.batches and not request.has_turn:
            request.has_turn = True
            self._turns.append(request)
        self._run()

    def _run(self) -> None:
        if self._busy or not self._turns:
            return
        self._busy = True
        request = self._turns.popleft()
        request.has_turn = False
        batch, on_checked = request.batches.popleft()
        self._worker.submit(partial(self._check, request, batch), partial(self._on_checked, request, batch, on_checked))

    def _check(self, request: RequestChecks, batch: SlowBatch) -> Any:
        """In the worker, which has only one of these at a time: the memory is its own."""
        if self._memory is None:
            self._memory = mmap(-1, self._limit_bytes)
        room = DecompressionRoom(memoryview(self._memory), self._limit_bytes, request.left_bytes)
        try:
            return batch.check(room)
        finally:
            request.left_bytes = room.left_bytes
            if room.used_bytes > RELEASED_FROM_BYTES:
                release_pages(self._memory, room.used_bytes)

    def _on_checked(self, request: RequestChecks, batch: SlowBatch, on_checked: OnChecked, outcome: Any) -> None:
        self._busy = False
        self.take_turn(request)
        on_checked(batch, outcome)


class RequestChecks:
    """The batches of one request that wait to be checked; `left_bytes` is what they may still decompress to."""

    __slots__ = ("_checks", "batches", "has_turn", "left_bytes")

    def __init__(self, checks: BatchChecks, limit_bytes: int) -> None:
        self._checks = checks
        self.batches: deque[tuple[SlowBatch, OnChecked]] = deque()
        self.left_bytes = limit_bytes
        self.has_turn = False

    def submit(self, batch: SlowBatch, on_checked: OnChecked) -> None:
        """Check a batch after the request's others, and call `on_checked` in the event loop, never before this has returned."""
        self.batches.append((batch, on_checked))
        self._checks.take_turn(self)
