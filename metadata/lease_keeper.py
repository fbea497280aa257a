"""Renews a broker's lease while its event loop is held, so that a hold shorter than the session costs no registration.

The session in the loop renews its lease every heartbeat. A loop that is held, by a request that takes too long or a
disk that blocks, can't; a keeper, which doesn't need the loop, renews for it then, over a connection of its own. It
stops soon, so a loop that is dead loses its lease: at most a quarter of the session later than a process that is dead.

Guards: fencing never relies on a keeper. Until when the broker may act follows only from answers that the loop got, and
from the moments before it asked (`lease`). A loop that wakes after more than `FENCE_PART` of the session is fenced
until its own renewal is answered, one round trip later, and continues in the same registration. So a keeper may renew
too much or too little without harm to what is acknowledged: a lease that is renewed is alive in the store, and no other
broker was elected.

A broker whose own renewals fail is fenced, and must lose its lease though a keeper reaches the store: a keeper trusts a
loop for a number of ticks after each renewal of the loop's own. Ticks, not time, for a loop that is held counts none.

Does not do: connections (`etcd_renewer`), the loop's own renewals (`lease`). A process that is stopped (SIGSTOP) stops
its keeper too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from lowtide.metadata.store import NO_LEASE, LeaseId, MetadataStoreError
from lowtide.runtime.side_thread import SideThread

if TYPE_CHECKING:
    from lowtide.runtime.clock import Clock

LOOKS_PER_SESSION: Final = 32
"""How often a keeper looks whether the loop ticks, and how often the loop does."""

LATE_LOOKS: Final = 2
"""The loop is held when it has not ticked for so many looks."""

APART_LOOKS: Final = 4
"""The time between two renewals while it is held."""

PATIENCE_LOOKS: Final = 8
"""For how long a loop that doesn't tick is stood in for: a quarter of the session. One renewal after the hold began is enough for a whole
session more; with these numbers there is time for two, and for one that fails."""

IDLE_LOOKS: Final = 16
"""The time between two renewals while nothing is wrong, which keep the connection in use."""


class KeeperTimes(msgspec.Struct, frozen=True, gc=False):
    """The times of a keeper. `trusted_ticks`: how often the loop may tick without a renewal of its own."""

    look_ms: int
    trusted_ticks: int


def keeper_times(time_to_live_ms: int, keep_alive_ms: int) -> KeeperTimes:
    """The times for a session. A loop is trusted for a heartbeat and half a session."""
    look_ms = max(1, time_to_live_ms // LOOKS_PER_SESSION)
    return KeeperTimes(look_ms, -(-(keep_alive_ms + time_to_live_ms // 2) // look_ms))


class LeaseWatch:
    """What a keeper knows of the loop, and when it renews.

    The loop calls `on_tick`, `on_renewed` and `on_lost`, the keeper the others.
    Two threads may use it so: a renewal that is decided on what is a moment old does no harm.
    """

    __slots__ = ("_lease", "_sent_ms", "_ticked_ms", "_ticks_left", "_times")

    def __init__(self, times: KeeperTimes) -> None:
        """Without a lease nothing is due."""
        self._times = times
        self._lease: LeaseId = NO_LEASE
        self._ticked_ms = 0
        self._ticks_left = 0
        self._sent_ms = 0

    def on_tick(self, now_ms: int) -> None:
        """The loop runs."""
        self._ticked_ms = now_ms
        self._ticks_left -= 1

    def on_renewed(self, lease: LeaseId) -> None:
        """The loop has this lease, and knows that it lives."""
        self._ticks_left = self._times.trusted_ticks
        self._lease = lease

    def on_lost(self) -> None:
        """The loop has no lease any more."""
        self._lease = NO_LEASE

    def due(self, now_ms: int) -> LeaseId:
        """The lease that is to be renewed now, NO_LEASE if none is. That counts as sent."""
        silent_ms, look_ms = now_ms - self._ticked_ms, self._times.look_ms
        is_held = silent_ms >= LATE_LOOKS * look_ms
        apart_ms = (APART_LOOKS if is_held else IDLE_LOOKS) * look_ms
        if self._ticks_left <= 0 or silent_ms >= PATIENCE_LOOKS * look_ms or now_ms - self._sent_ms < apart_ms:
            return NO_LEASE
        if self._lease != NO_LEASE:
            self._sent_ms = now_ms
        return self._lease

    def on_failed(self) -> None:
        """What was sent last was not answered: the next look may send again."""
        self._sent_ms = 0


class LeaseKeeper(Protocol):
    """Renews a lease from a thread while the loop is held. Used from that loop."""

    def tick(self) -> None:
        """The loop runs. Called `LOOKS_PER_SESSION` times in a session."""
        ...

    def on_renewed(self, lease: LeaseId) -> None:
        """See `LeaseWatch.on_renewed`."""
        ...

    def on_lost(self) -> None:
        """See `LeaseWatch.on_lost`."""
        ...

    def close(self) -> None:
        """Renew nothing any more. Returns when no renewal is under way; a second call does nothing."""
        ...


class NoKeeper:
    """Stands for a keeper where the store is in the same process: it ends no lease while its loop is held."""

    def tick(self) -> None:
        """See `LeaseKeeper`."""

    def on_renewed(self, lease: LeaseId) -> None:
        """See `LeaseKeeper`."""

    def on_lost(self) -> None:
        """See `LeaseKeeper`."""

    def close(self) -> None:
        """See `LeaseKeeper`."""


class Renewer(Protocol):
    """A way to the store that blocks. Used from a keeper's thread, but for `close`."""

    def renew(self, lease: LeaseId) -> None:
        """Let the lease's whole time begin again. Errors: MetadataStoreError."""
        ...

    def close(self) -> None:
        """Give up what is under way. Called from any thread."""
        ...


class ThreadLeaseKeeper:
    """A keeper with a thread of its own."""

    def __init__(self, clock: Clock, times: KeeperTimes, renewer: Renewer) -> None:
        """Start the thread. Errors: OSError where the system gives none."""
        self._clock = clock
        self._watch = LeaseWatch(times)
        self._renewer = renewer
        self._thread = SideThread(self._look, times.look_ms / 1000, "lease keeper")

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive

    def tick(self) -> None:
        """See `LeaseKeeper`."""
        self._watch.on_tick(self._clock.monotonic_ms())

    def on_renewed(self, lease: LeaseId) -> None:
        """See `LeaseKeeper`."""
        self._watch.on_renewed(lease)

    def on_lost(self) -> None:
        """See `LeaseKeeper`."""
        self._watch.on_lost()

    def close(self) -> None:
        """See `LeaseKeeper`."""
        self._watch.on_lost()
        self._renewer.close()
        self._thread.close()

    def _look(self) -> None:
        lease = self._watch.due(self._clock.monotonic_ms())
        if lease != NO_LEASE:
            try:
                self._renewer.renew(lease)
            except MetadataStoreError:  # Also that the lease is gone: the loop finds that out itself.
                self._watch.on_failed()
