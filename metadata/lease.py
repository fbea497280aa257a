"""The lease under which a broker is registered: renewed, and the moment from which the broker can't know that it lives.

Guards: that moment counts from before a renewal was sent, and only from renewals that were answered to this loop. So it
is before the lease ends in the store, also where `lease_keeper` renewed it, and however long the loop was held between.

Does not do: registering (`registration`), what a broker does without a lease (`session`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lowtide.metadata.lease_keeper import LeaseKeeper, NoKeeper, keeper_times
from lowtide.metadata.store import NO_LEASE, AmbiguousError, LeaseId, MetadataStore, UnavailableError
from lowtide.metadata.writer import Retry, is_set_within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lowtide.runtime.clock import Clock

FENCE_PART: Final = 0.8
"""The part of the lease's time after which a broker that could not renew takes itself for fenced. The store counts from when it
received the renewal, the broker from when it sent it, so with clocks of about the same rate the broker always stops first."""


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
        """None is held yet."""
        self._store = store
        self._clock = clock
        self._time_to_live_ms = time_to_live_ms
        self._keep_alive_ms = keep_alive_ms
        self._keeper = keeper or NoKeeper()
        self._tick_s = keeper_times(time_to_live_ms, keep_alive_ms).look_ms / 1000
        self.id: LeaseId = NO_LEASE
        self.alive_until_ms = 0
        """Until when (monotonic) the store holds the lease for certain; 0 without one."""
        self.lost = asyncio.Event()
        """Set when something else than a renewal shows that it is gone."""

    def begin(self, lease: LeaseId, sent_ms: int) -> None:
        """Hold this one, which was asked for or renewed at `sent_ms` (monotonic)."""
        self.lost.clear()
        self.id = lease
        self._on_renewed(sent_ms)

    def end(self) -> None:
        """It can't be relied upon any more."""
        self.alive_until_ms = 0
        self._keeper.on_lost()

    def close(self) -> LeaseId:
        """Renew it no more. Returns which one was held."""
        self._keeper.close()
        lease, self.id = self.id, NO_LEASE
        return lease

    async def renew_until_lost(self, check: Callable[[], Awaitable[None]], on_renewed: Callable[[], None]) -> None:
        """Renew it every heartbeat.

        Returns when it is `lost`. Errors: LeaseGoneError, and what `check` raises before each renewal.
        """
        retry = Retry()
        wait_ms = self._keep_alive_ms
        while not await is_set_within(self.lost, wait_ms):
            sent_ms = self._clock.monotonic_ms()
            try:
                await check()
                await self._store.lease_keep_alive(self.id)
            except (UnavailableError, AmbiguousError):
                wait_ms = min(retry.next_ms(), self._keep_alive_ms)
            else:
                self._on_renewed(sent_ms)
                on_renewed()
                retry, wait_ms = Retry(), self._keep_alive_ms

    async def tick(self) -> None:
        """Show the keeper that the loop runs, for ever."""
        while True:
            self._keeper.tick()
            await asyncio.sleep(self._tick_s)

    def _on_renewed(self, sent_ms: int) -> None:
        self.alive_until_ms = sent_ms + int(self._time_to_live_ms * FENCE_PART)
        self._keeper.on_renewed(self.id)
