"""The lease keeper of a simulated broker: it renews while the loop is blocked, without a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from lowtide.metadata.lease_keeper import KeeperTimes, LeaseWatch
from lowtide.metadata.store import NO_LEASE, LeaseId, MetadataStoreError

if TYPE_CHECKING:
    from lowtide.runtime.clock import Clock
    from lowtide.simulation.shared_store import StoreLink


class SimulatedLeaseKeeper:
    """A keeper without a thread: while the loop is blocked, `stand_in` runs outside any process."""

    def __init__(self, clock: Clock, link: StoreLink, times: KeeperTimes) -> None:
        self._clock = clock
        self._link = link
        self._look_s = times.look_ms / 1000
        self._watch = LeaseWatch(times)
        self._closed = False

    def tick(self) -> None:
        self._watch.on_tick(self._clock.monotonic_ms())

    def on_renewed(self, lease: LeaseId) -> None:
        """See `LeaseKeeper`."""
        self._watch.on_renewed(lease)

    def on_lost(self) -> None:
        """See `LeaseKeeper`."""
        self._watch.on_lost()

    def close(self) -> None:
        """See `LeaseKeeper`."""
        self._closed = True

    async def stand_in(self, is_held: Callable[[], bool]) -> None:
        """Renews while the loop is blocked."""
        while is_held() and not self._closed:
            lease = self._watch.due(self._clock.monotonic_ms())
            if lease != NO_LEASE:
                try:
                    await self._link.lease_keep_alive(lease)
                except MetadataStoreError:
                    self._watch.on_failed()
            await asyncio.sleep(self._look_s)
