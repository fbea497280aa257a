"""Renews a broker's lease while its event loop is blocked, so that a short block loses no registration.

The session renews its lease in the loop every heartbeat. A blocked loop, with a long request or a hanging disk, can't.
A keeper, which doesn't need the loop, then renews over its own connection. It soon stops, so a dead loop loses its
lease at most a quarter of the session later than a dead process.

Guards: fencing never relies on a keeper. How long the broker may act depends only on answers that the loop received,
and on when it sent the requests (`lease`). A loop that wakes after more than `FENCE_PART` of the session is fenced
until its own renewal is answered, one round trip later, and continues in the same registration. So a keeper may renew
too much or too little without harm to acknowledged data: a renewed lease is alive in the store, and no other broker was
elected.

A broker whose own renewals fail is fenced, and must lose its lease even if a keeper reaches the store. So a keeper
trusts a loop only for a number of ticks after each of the loop's own renewals. A blocked loop makes no ticks.

`etcd_renewer` has the connection. Stopping a process (SIGSTOP) also stops its keeper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from lowtide.metadata.store import NO_LEASE, LeaseId, MetadataStoreError
from lowtide.runtime.threads import SideThread

if TYPE_CHECKING:
    from lowtide.runtime.clock import Clock

LOOKS_PER_SESSION: Final = 32
"""How often per session the keeper checks for ticks, and the loop ticks."""

LATE_LOOKS: Final = 2
"""A loop without ticks for this many checks is blocked."""

APART_LOOKS: Final = 4
"""The checks between two renewals while the loop is blocked."""

PATIENCE_LOOKS: Final = 8
"""The checks for which the keeper renews for a loop without ticks: a quarter of the session. One renewal after the
block began gives a whole session more; there is time for two, and for one that fails."""

IDLE_LOOKS: Final = 16
"""The checks between two renewals while nothing is wrong, which keep the connection in use."""


class KeeperTimes(msgspec.Struct, frozen=True, gc=False):
    """The times of a keeper. `trusted_ticks`: for how many ticks it trusts a loop after the loop's own renewal."""

    look_ms: int
    trusted_ticks: int


def keeper_times(time_to_live_ms: int, keep_alive_ms: int) -> KeeperTimes:
    """Returns the times for a session. A loop is trusted for a heartbeat and half a session."""
    look_ms = max(1, time_to_live_ms // LOOKS_PER_SESSION)
    return KeeperTimes(look_ms, -(-(keep_alive_ms + time_to_live_ms // 2) // look_ms))


class LeaseWatch:
    """The keeper's knowledge of the loop, and its renewal schedule.

    The loop calls `on_tick`, `on_renewed` and `on_lost`, the keeper the others. Two threads may use it without a lock:
    a renewal decided on a slightly outdated state is harmless.
    """

    __slots__ = ("_lease", "_sent_ms", "_ticked_ms", "_ticks_left", "_times")

    def __init__(self, times: KeeperTimes) -> None:
        self._times = times
        self._lease: LeaseId = NO_LEASE
        self._ticked_ms = 0
        self._ticks_left = 0
        self._sent_ms = 0

    def on_tick(self, now_ms: int) -> None:
        self._ticked_ms = now_ms
        self._ticks_left -= 1

    def on_renewed(self, lease: LeaseId) -> None:
        """Records that the loop holds this lease and knows it alive."""
        self._ticks_left = self._times.trusted_ticks
        self._lease = lease

    def on_lost(self) -> None:
        self._lease = NO_LEASE

    def due(self, now_ms: int) -> LeaseId:
        """Returns the lease to renew now, or NO_LEASE. A returned one counts as sent."""
        silent_ms, look_ms = now_ms - self._ticked_ms, self._times.look_ms
        is_held = silent_ms >= LATE_LOOKS * look_ms
        apart_ms = (APART_LOOKS if is_held else IDLE_LOOKS) * look_ms
        if self._ticks_left <= 0 or silent_ms >= PATIENCE_LOOKS * look_ms or now_ms - self._sent_ms < apart_ms:
            return NO_LEASE
        if self._lease != NO_LEASE:
            self._sent_ms = now_ms
        return self._lease

    def on_failed(self) -> None:
        """Allows the next check to send again, because the last renewal got no answer."""
        self._sent_ms = 0


class LeaseKeeper(Protocol):
    """Renews a lease from a thread while the loop is blocked. Used from that loop."""

    def tick(self) -> None:
        """Shows that the loop runs. Called `LOOKS_PER_SESSION` times per session."""

    def on_renewed(self, lease: LeaseId) -> None: ...

    def on_lost(self) -> None: ...

    def close(self) -> None:
        """Stops renewing. Returns when no renewal is running; a second call does nothing."""


class NoKeeper:
    """Used when the store is in the same process, which ends no lease while the loop is blocked."""

    def tick(self) -> None: ...

    def on_renewed(self, lease: LeaseId) -> None: ...

    def on_lost(self) -> None: ...

    def close(self) -> None: ...


class Renewer(Protocol):
    """A blocking connection to the store. Used from a keeper's thread, except `close`."""

    def renew(self, lease: LeaseId) -> None:
        """Restarts the lease's time to live. Errors: MetadataStoreError."""

    def close(self) -> None:
        """Aborts a running renewal. Called from any thread."""


class ThreadLeaseKeeper:
    """A keeper with its own thread."""

    def __init__(self, clock: Clock, times: KeeperTimes, renewer: Renewer) -> None:
        """Starts the thread. Errors: OSError if the system has none."""
        self._clock = clock
        self._watch = LeaseWatch(times)
        self._renewer = renewer
        self._thread = SideThread(self._look, times.look_ms / 1000, "lease keeper")

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive

    def tick(self) -> None:
        self._watch.on_tick(self._clock.monotonic_ms())

    def on_renewed(self, lease: LeaseId) -> None:
        self._watch.on_renewed(lease)

    def on_lost(self) -> None:
        self._watch.on_lost()

    def close(self) -> None:
        self._watch.on_lost()
        self._renewer.close()
        self._thread.close()

    def _look(self) -> None:
        lease = self._watch.due(self._clock.monotonic_ms())
        if lease != NO_LEASE:
            try:
                self._renewer.renew(lease)
            except MetadataStoreError:  # Even if the lease is gone: the loop finds that out itself.
                self._watch.on_failed()
