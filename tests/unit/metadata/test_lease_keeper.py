"""When a lease is renewed for a blocked loop: decided on values, and executed by a thread."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable

import pytest

from lowtide.metadata.lease_keeper import LeaseWatch, ThreadLeaseKeeper, keeper_times
from lowtide.metadata.store import NO_LEASE, LeaseId, UnavailableError
from lowtide.runtime.clock import SystemClock

SESSION_MS, HEARTBEAT_MS = 4000, 500
ETCD_LATE_MS = 500
"""The delay with which etcd may end a lease."""

LEASE = 7


class Life:
    """A broker's loop, its keeper and the lease in the store, millisecond by millisecond."""

    def __init__(
        self, session_ms: int = SESSION_MS, heartbeat_ms: int = HEARTBEAT_MS, *, phase_ms: int = 0, reaches: bool = True
    ) -> None:
        """`phase_ms`: when the keeper first checks. `reaches`: whether the loop's own renewals get through."""
        self.session_ms, self.heartbeat_ms, self.phase_ms, self.reaches = session_ms, heartbeat_ms, phase_ms, reaches
        self.times = keeper_times(session_ms, heartbeat_ms)
        self.watch = LeaseWatch(self.times)
        self.ends_ms = session_ms
        self.ended_ms: int | None = None
        self.renewals: list[int] = []
        self.ticks_from_ms = self.beats_from_ms = 0
        self.watch.on_tick(0)
        self.watch.on_renewed(LEASE)

    def run(
        self, from_ms: int, until_ms: int, *, held: bool = False, answered: Callable[[int], bool] = lambda _ms: True
    ) -> None:
        """`answered`: whether a renewal by the keeper at this moment is answered."""
        for now_ms in range(from_ms, until_ms):
            if now_ms >= self.ends_ms and self.ended_ms is None:
                self.ended_ms = now_ms
            if not held and now_ms >= self.beats_from_ms:
                self.beats_from_ms = now_ms + self.heartbeat_ms
                if self.reaches and self.ended_ms is None:
                    self.ends_ms = now_ms + self.session_ms
                    self.watch.on_renewed(LEASE)
            if not held and now_ms >= self.ticks_from_ms:
                self.ticks_from_ms = now_ms + self.times.look_ms
                self.watch.on_tick(now_ms)
            if now_ms % self.times.look_ms == self.phase_ms % self.times.look_ms and self.watch.due(now_ms) == LEASE:
                self.renewals.append(now_ms)
                if not answered(now_ms):
                    self.watch.on_failed()
                elif self.ended_ms is None:
                    self.ends_ms = now_ms + self.session_ms


@pytest.mark.parametrize("session_ms", [1000, 4000, 9000])
@pytest.mark.parametrize("heartbeat_ms", [200, 500])
def test_no_block_shorter_than_the_session_loses_the_lease(session_ms: int, heartbeat_ms: int) -> None:
    """The block may begin at any moment between two heartbeats and two checks."""
    for begins_ms, phase_ms in itertools.product(range(2000, 2000 + heartbeat_ms, 37), range(0, session_ms // 32, 11)):
        life = Life(session_ms, heartbeat_ms, phase_ms=phase_ms)
        life.run(0, begins_ms)
        life.run(begins_ms, begins_ms + session_ms, held=True)
        assert life.ended_ms is None, (begins_ms, phase_ms)
        assert any(begins_ms <= renewal for renewal in life.renewals)


def test_a_renewal_that_fails_is_tried_again_while_the_loop_is_blocked() -> None:
    for begins_ms in range(2000, 2500, 37):
        life = Life()
        life.run(0, begins_ms)
        life.run(
            begins_ms,
            begins_ms + SESSION_MS,
            held=True,
            answered=lambda now_ms, begins_ms=begins_ms: now_ms > begins_ms + 500,  # type: ignore[misc]
        )
        assert life.ended_ms is None, begins_ms


def test_a_loop_that_never_returns_loses_its_lease() -> None:
    """This takes a quarter of a session longer than for a dead process.

    The loop is blocked for less than one and a half sessions.
    """
    for begins_ms in range(2000, 2500, 37):
        life = Life()
        life.run(0, begins_ms)
        life.run(begins_ms, begins_ms + 2 * SESSION_MS, held=True)
        assert life.ended_ms is not None
        assert life.ended_ms - begins_ms <= SESSION_MS * 5 // 4 <= SESSION_MS * 3 // 2 - ETCD_LATE_MS


def test_one_block_after_another_loses_no_lease() -> None:
    """Between the two the loop runs, and its own renewal is not answered yet."""
    life = Life()
    life.run(0, 2400)
    life.run(2400, 6000, held=True)
    life.reaches = False
    life.run(6000, 6010)
    life.run(6010, 9600, held=True)
    assert life.ended_ms is None


def test_a_broker_that_is_cut_off_loses_its_lease_though_its_keeper_is_not() -> None:
    """The broker considers itself fenced, so another must be able to lead.

    This also holds for a loop that is blocked repeatedly.
    """
    for hold_ms in (0, 400, 900):
        life = Life()
        life.run(0, 2000)
        life.reaches = False
        now_ms = 2000
        while now_ms < 2000 + 10 * SESSION_MS:
            life.run(now_ms, now_ms + 300)
            life.run(now_ms + 300, now_ms + 300 + hold_ms, held=True)
            now_ms += 300 + hold_ms
        ticking = sum(300 for _ in range(2000, life.ended_ms or 1 << 40, 300 + hold_ms))
        assert life.ended_ms is not None
        assert ticking <= HEARTBEAT_MS + SESSION_MS // 2 + SESSION_MS + 600, "only time in which the loop ran counts"


def test_a_loop_that_runs_is_hardly_ever_renewed_for() -> None:
    life = Life()
    life.run(0, 20_000)
    assert 9 <= len(life.renewals) <= 11, "twice a session, so that the connection stays in use"


def test_nothing_is_renewed_without_a_lease() -> None:
    watch = LeaseWatch(keeper_times(SESSION_MS, HEARTBEAT_MS))
    watch.on_tick(0)
    assert watch.due(3000) == NO_LEASE
    watch.on_renewed(LEASE)
    watch.on_tick(3000)
    watch.on_lost()
    assert watch.due(3010) == NO_LEASE
    watch.on_renewed(LEASE + 1)
    assert watch.due(3020) == LEASE + 1


class ScriptedRenewer:
    """Records its calls, in any thread."""

    def __init__(self, *, fails: bool = False) -> None:
        self.asked: list[tuple[LeaseId, str]] = []
        self.renewed = threading.Event()
        self.fails = fails
        self.closed = False

    def renew(self, lease: LeaseId) -> None:
        self.asked.append((lease, threading.current_thread().name))
        if len(self.asked) >= 2:
            self.renewed.set()
        if self.fails:
            raise UnavailableError("scripted")

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("fails", [False, True])
async def test_a_thread_renews_while_the_loop_is_blocked(fails: bool) -> None:
    renewer = ScriptedRenewer(fails=fails)
    keeper = ThreadLeaseKeeper(SystemClock(), keeper_times(1000, 250), renewer)
    try:
        keeper.tick()
        keeper.on_renewed(LEASE)
        await asyncio.sleep(0)
        assert renewer.renewed.wait(10), "this blocks the loop"
        assert {name for _, name in renewer.asked} == {"lease keeper"}
        assert {lease for lease, _ in renewer.asked} == {LEASE}
    finally:
        keeper.close()
    assert renewer.closed
    assert not keeper.is_alive
    keeper.close()


def test_a_keeper_that_is_closed_renews_nothing() -> None:
    renewer = ScriptedRenewer()
    keeper = ThreadLeaseKeeper(SystemClock(), keeper_times(1000, 250), renewer)
    keeper.tick()
    keeper.close()
    keeper.on_renewed(LEASE)
    assert (renewer.asked, keeper.is_alive) == ([], False)
