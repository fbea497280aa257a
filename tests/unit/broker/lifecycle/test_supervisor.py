"""What a supervisor does about brokers that end, refuse and stop: with members that only pretend to have a process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.lifecycle.supervisor.line import GiveLeadership, PagesRequest, PagesResponse
from lowtide.broker.lifecycle.supervisor.member import Restarts
from lowtide.broker.lifecycle.supervisor.supervisor import REFUSED, Supervisor
from lowtide.replication.leader_balance import (
    SAMPLES,
    BalanceRules,
    BrokerLoad,
    LeaderBalance,
    LeaderMove,
    PartitionLoad,
)
from lowtide.runtime.service_manager import ServiceManager
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock

NEVER = 1_000_000.0


class Member:
    """Lives as long as `lives` says, in seconds, each life ending with its code; the last one until it is stopped."""

    def __init__(
        self, node_id: int, lives: Sequence[tuple[float, int]] = (), *, serves: bool = True, stops_with: int = 0
    ) -> None:
        self.node_id, self.pid, self.address = node_id, 100 + node_id, ""
        self.restarts = Restarts()
        self.orders: list[str] = []
        self.sent: list[Any] = []
        self.begun = 0
        self.supervisor: Supervisor
        self._lives, self._serves, self._stops_with = list(lives), serves, stops_with
        self._stopped = asyncio.Event()

    async def live(self) -> int:
        self.begun += 1
        if self._serves:
            self.address = f"host:{self.node_id}"
            self.supervisor.on_serves(self)
        try:
            if self._lives:
                seconds, code = self._lives.pop(0)
                await asyncio.sleep(seconds)
                return code
            await self._stopped.wait()
            return self._stops_with
        finally:
            self.address = ""

    def stop(self) -> None:
        self.orders.append("stop")
        self._stopped.set()

    def hurry(self) -> None:
        self.orders.append("hurry")

    def kill(self) -> None:
        self.orders.append("kill")

    def send(self, message: Any) -> None:
        self.sent.append(message)

    async def page(self, _form: str) -> bytes:
        return b"page" if self.address else b""


class Lines:
    """A log."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __getattr__(self, _level: str) -> Any:
        return lambda event, **_fields: self.events.append(event)


def run(
    *members: Member,
    signals: Sequence[float] = (5.0,),
    store: Any = None,
    first_alone: bool = False,
    balance: LeaderBalance | None = None,
) -> tuple[int, list[str]]:
    """Exit code and log of a supervisor that gets signals at these times."""
    log = Lines()

    async def scenario(loop: SimulatedLoop) -> int:
        parts: Any = {"members": members, "store": store, "balance": balance, "log": log}
        supervisor = Supervisor(**parts, clock=SimulatedClock(loop), service=ServiceManager({}))
        for member in members:
            member.supervisor = supervisor
        for at_s in signals:
            loop.call_later(at_s, supervisor.on_signal)
        return await supervisor.run(first_alone=first_alone)

    return run_simulation(scenario, seed=1), log.events


def test_all_stop_at_a_signal() -> None:
    first, second = Member(1), Member(2)
    code, lines = run(first, second)
    assert (code, first.orders, second.orders) == (0, ["stop"], ["stop"])
    assert lines == ["broker ready", "broker ready", "all brokers ready", "stopping"]


@pytest.mark.parametrize(
    ("ends_with", "code"), [(0, 0), (-signal.SIGTERM, 0), (1, 1), (-signal.SIGKILL, 1), (-signal.SIGSEGV, 1)]
)
def test_the_exit_code_is_that_of_the_stops(ends_with: int, code: int) -> None:
    """A service manager may send SIGTERM to a process that is just starting; any other death at a stop is a failure."""
    assert run(Member(1), Member(2, stops_with=ends_with))[0] == code


def test_one_that_ends_is_started_again_and_the_others_are_left_alone() -> None:
    first, second = Member(1), Member(2, [(1.0, -9), (0.5, 1), (0.5, REFUSED)])
    code, lines = run(first, second, signals=(60.0,))
    assert (code, first.begun, second.begun) == (0, 1, 4)
    assert lines.count("broker ended, it is restarted") == 3
    away = [each.brokers for each in first.sent]
    assert away[:8] == [(2,), ()] * 4, "at the start, and at each end"


def test_one_that_does_not_stay_up_is_named_for_the_last_time() -> None:
    _, lines = run(Member(1), Member(2, [(0.1, 1)] * 12), signals=(600.0,))
    assert lines.count("broker ended, it is restarted") == 5
    assert len([line for line in lines if line.startswith("broker keeps failing")]) == 1


def test_a_refusal_at_the_first_start_stops_all() -> None:
    first = Member(1)
    code, lines = run(first, Member(2, [(1.0, REFUSED)], serves=False), signals=())
    assert (code, first.orders) == (REFUSED, ["stop"])
    assert "a broker refused to start, all brokers stop" in lines


def test_a_failed_store_stops_all() -> None:
    first = Member(1)
    code, lines = run(first, Member(2), signals=(), store=SimpleNamespace(failure="the disk is gone"))
    assert (code, first.orders) == (1, ["stop"])
    assert "metadata store failed, all brokers stop" in lines


def test_new_metadata_are_the_first_ones_before_the_others_begin() -> None:
    """It may have topics to take over; where it refuses, no other one was started."""
    first, second = Member(1, [(1.0, REFUSED)], serves=False), Member(2)
    assert run(first, second, signals=(), first_alone=True)[0] == REFUSED
    assert second.begun == 0
    second = Member(2)
    assert run(Member(1), second, first_alone=True)[0] == 0
    assert second.begun == 1


def test_a_second_signal_hurries_and_a_third_one_kills() -> None:
    class Slow(Member):
        def stop(self) -> None:
            self.orders.append("stop")
            asyncio.get_running_loop().call_later(10.0, super().stop)

    first = Slow(1)
    run(first, signals=(1.0, 2.0, 3.0))
    assert first.orders[:3] == ["stop", "hurry", "kill"]


def test_pages_come_from_those_that_serve() -> None:
    first, second, third = Member(1), Member(2), Member(3, serves=False)

    class Asking(Member):
        async def live(self) -> int:
            self.supervisor.on_pages_asked(self, PagesRequest(7, "text"))
            return await super().live()

    asking = Asking(4)
    run(first, second, third, asking)
    assert [each for each in asking.sent if isinstance(each, PagesResponse)] == [
        PagesResponse(7, ((1, b"page"), (2, b"page")))
    ]


class Reporting(Member):
    """Says how busy it is, again and again."""

    def __init__(self, load: BrokerLoad, **fields: Any) -> None:
        super().__init__(load.broker, **fields)
        self._load = load

    async def live(self) -> int:
        for _ in range(SAMPLES):
            self.supervisor.on_load(self._load)
        return await super().live()


def test_a_full_broker_is_ordered_to_give() -> None:
    """It alone, and only where leaderships move."""
    load = BrokerLoad(1, 0.9, (PartitionLoad("t", 0, 0.3, 1, (2,)),))
    for balance, orders in (
        (LeaderBalance(BalanceRules()), [GiveLeadership(LeaderMove("t", 0, 1, 2, 0.3, 0.9, 0.1))]),
        (None, []),
    ):
        first, second = Reporting(load), Reporting(BrokerLoad(2, 0.1))
        run(first, second, balance=balance)
        assert [each for each in first.sent if isinstance(each, GiveLeadership)] == orders
        assert not [each for each in second.sent if isinstance(each, GiveLeadership)]


def test_a_broker_that_has_ended_takes_no_part() -> None:
    """What it reported is of another life."""
    load = BrokerLoad(1, 0.9, (PartitionLoad("t", 0, 0.3, 1, (2,)),))
    balance = LeaderBalance(BalanceRules())
    first, second = Reporting(load, lives=[(1.0, -9)]), Member(2)
    run(first, second, balance=balance)
    for _ in range(SAMPLES):
        balance.on_load(BrokerLoad(2, 0.1))
    assert balance.moves(0) == []
