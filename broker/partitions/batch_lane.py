"""Long work on batches, in the worker: one piece at a time, requests in turn, within a limit of decompressed bytes.

A request of a megabyte may decompress to 30 GB. So the batches of a request have a common limit, at most one thread of
the worker is busy with batches, and the second batch of a request waits for the first ones of the others. All batches
are decompressed into the same memory, whose pages are released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from mmap import mmap
from typing import Any, Final, TypeAlias

from lowtide.broker.pending import Pending
from lowtide.broker.turns import TurnQueue
from lowtide.runtime.worker import Worker
from lowtide.storage.log.timestamps import DECOMPRESSED_BYTES_MAX
from lowtide.storage.log.validation.decompression_room import DecompressionRoom, release_pages

Work: TypeAlias = Callable[[DecompressionRoom], Any]
"""Runs in the worker. Its result must not refer to the room."""

OnDone: TypeAlias = Callable[[Any], None]
"""Gets the result of the work, or its exception, in the event loop."""

RELEASED_FROM_BYTES: Final = 4 << 20
"""Memory up to this size is kept for the next batch."""


class BatchLane:
    """The long work of one broker. Used from the event loop."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._memory: mmap | None = None
        self.queue = TurnQueue[RequestLane](lambda: 0, 1, self._take_turn)

    def begin(self, limit_bytes: int) -> RequestLane:
        """Returns the lane of a request, whose batches may decompress to `limit_bytes` (inclusive) together."""
        return RequestLane(self, limit_bytes)

    def _take_turn(self, request: RequestLane, _began_ms: int) -> Pending[None]:
        """Submits a request's next piece. The next turn begins when it is done."""
        work, on_done = request.pieces.popleft()
        turn: Pending[None] = Pending()

        def end(outcome: Any) -> None:
            if request.pieces:
                self.queue.enter(request)
            turn.complete(None)
            on_done(outcome)

        self._worker.submit(partial(self._work, request, work), end)
        return turn

    def _work(self, request: RequestLane, work: Work) -> Any:
        """Runs in the worker, one at a time, so that the memory is not shared."""
        if self._memory is None or len(self._memory) < request.limit_bytes:
            self._memory = mmap(-1, max(request.limit_bytes, DECOMPRESSED_BYTES_MAX))  # Pages are allocated at use.
        room = DecompressionRoom(memoryview(self._memory)[: request.limit_bytes], request.left_bytes)
        try:
            return work(room)
        finally:
            request.left_bytes = room.left_bytes
            if room.used_bytes > RELEASED_FROM_BYTES:
                release_pages(self._memory, room.used_bytes)


class RequestLane:
    """The waiting work of one request; `left_bytes` is what its batches may still decompress to."""

    __slots__ = ("_lane", "left_bytes", "limit_bytes", "pieces")

    def __init__(self, lane: BatchLane, limit_bytes: int) -> None:
        self._lane = lane
        self.pieces: deque[tuple[Work, OnDone]] = deque()
        self.limit_bytes = self.left_bytes = limit_bytes

    def submit(self, work: Work, on_done: OnDone) -> None:
        """Runs a piece after the request's others, then calls `on_done` in a later pass of the event loop."""
        self.pieces.append((work, on_done))
        self._lane.queue.enter(self)
