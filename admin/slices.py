"""Lets other work of the event loop run while records are read.

A broker's own console reads records on the broker's loop. What is done at once takes about a millisecond.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lowtide.admin.batch_rows import Payload, ReadableBatch
    from lowtide.runtime.clock import Clock

SLICE_NS: Final = 1_000_000


class Slices:
    """Measures slices of work."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ns = clock.monotonic_ns()

    async def rest(self) -> None:
        """Lets other work run, if the slice is over."""
        if self._clock.monotonic_ns() - self._began_ns >= SLICE_NS:
            await asyncio.sleep(0)
            self._began_ns = self._clock.monotonic_ns()


async def payload_of(batch: ReadableBatch) -> Payload:
    """Returns the records of a batch in binary form; decompresses large ones in a thread.

    Errors: UnreadableBatchError.
    """
    payload = batch.quick_payload()
    return payload if payload is not None else await asyncio.to_thread(batch.payload)
