"""The lease of a broker's registration: its renewal, and the time from which the broker can't rely on it.

Guards: that time counts from before a renewal was sent, and only from renewals answered to this loop. So it is before
the lease ends in the store, also if `lease_keeper` renewed it, and however long the loop was blocked.

`registration` registers, `session` handles a lost lease.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lowtide.metadata.lease_keeper import LeaseKeeper, NoKeeper, keeper_times
from lowtide.metadata.store import NO_LEASE, AmbiguousError, LeaseId, MetadataStore, UnavailableError
from lowtide.metadata.writer import StoreBackoff, is_set_within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lowtide.runtime.clock import Clock

FENCE_PART: Final = 0.8
"""The part of the lease's time after which a broker that could not renew considers itself fenced. The store counts from
the receipt of the renewal, the broker from when it was sent, so with similar clock rates the broker always stops
first."""


class HeldLease:
    """When the lease of a broker ends, as far as the broker may rely on it. Part of a session, used from its loop."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        *,
        time_to_live_ms: int,
        keep_alive_ms: int,
        keeper: LeaseKeeper | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._time_to_live_ms = time_to_live_ms
        self._keep_alive_ms = keep_alive_ms
        self._keeper = keeper or NoKeeper()
        self._tick_s = keeper_times(time_to_live_ms, keep_alive_ms).look_ms / 1000
        self.id: LeaseId = NO_LEASE
        self.alive_until_ms = 0
        """Until when (monotonic) the store certainly keeps the lease; 0 without one."""
        self.lost = asyncio.Event()
        """Set when something other than a renewal shows that the lease is gone."""

    def begin(self, lease: LeaseId, sent_ms: int) -> None:
        """Holds a lease that was requested or renewed at `sent_ms` (monotonic)."""
        self.lost.clear()
        self.id = lease
        self._on_renewed(sent_ms)

    def end(self) -> None:
        self.alive_until_ms = 0
        self._keeper.on_lost()

    def close(self) -> LeaseId:
        """Stops renewing. Returns the lease that was held."""
        self._keeper.close()
        lease, self.id = self.id, NO_LEASE
        return lease

    async def renew_until_lost(self, check: Callable[[], Awaitable[None]], on_renewed: Callable[[], None]) -> None:
        """Renews the lease every heartbeat. Returns when it is `lost`.

        Errors: LeaseGoneError, and what `check` raises before each renewal.
        """
        backoff = StoreBackoff()
        wait_ms = self._keep_alive_ms
        while not await is_set_within(self.lost, wait_ms):
            sent_ms = self._clock.monotonic_ms()
            try:
                await check()
                await self._store.lease_keep_alive(self.id)
            except (UnavailableError, AmbiguousError):
                wait_ms = min(backoff.next_ms(), self._keep_alive_ms)
            else:
                self._on_renewed(sent_ms)
                on_renewed()
                backoff, wait_ms = StoreBackoff(), self._keep_alive_ms

    async def tick(self) -> None:
        """Shows the keeper that the loop runs. Never returns."""
        while True:
            self._keeper.tick()
            await asyncio.sleep(self._tick_s)

    def _on_renewed(self, sent_ms: int) -> None:
        self.alive_until_ms = sent_ms + int(self._time_to_live_ms * FENCE_PART)
        self._keeper.on_renewed(self.id)
