"""Requests that are carried out at once when one comes now and then, and in turns when many come together."""

from __future__ import annotations

import asyncio
from functools import partial

from lowtide.broker.pending import Pending
from lowtide.broker.turns import APART_MS, Pacing, Turns
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock


class Lines:
    """A log that counts errors."""

    errors = 0

    def error(self, _event: str, **_values: object) -> None:
        self.errors += 1


class WorkingClock(SimulatedClock):
    """Work takes time: half a millisecond for each time it is done."""

    worked = 0

    def work(self) -> int:
        self.worked += 1
        return self.worked

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.worked // 2


def test_one_now_and_then_is_carried_out_at_once() -> None:
    async def main(loop: SimulatedLoop) -> None:
        clock = WorkingClock(loop)
        pacing = Pacing(Turns(loop, clock), Lines())
        for number in range(1, 4):
            assert pacing.carry_out(clock.work) == number
            await asyncio.sleep(APART_MS / 1000)

    run_simulation(main, 1)


def test_many_together_leave_the_loop_half_of_the_time() -> None:
    async def main(loop: SimulatedLoop) -> None:
        clock = WorkingClock(loop)
        pacing = Pacing(Turns(loop, clock), Lines())
        answers = [pacing.carry_out(clock.work) for _ in range(41)]
        assert clock.worked == 1
        began_s, others = loop.time(), 0
        while not all(not isinstance(answer, Pending) or answer.done for answer in answers):
            others += 1
            await asyncio.sleep(0.001)
        rested_ms = (loop.time() - began_s) * 1000
        assert rested_ms >= clock.worked / 2 - 2, "as long as they worked"
        assert others > 10
        assert [answer.response if isinstance(answer, Pending) else answer for answer in answers] == list(range(1, 42))

    run_simulation(main, 1)


def test_an_answer_that_is_not_there_yet_is_waited_for_and_a_client_that_goes_is_not_served() -> None:
    async def main(loop: SimulatedLoop) -> None:
        clock, log = WorkingClock(loop), Lines()
        pacing = Pacing(Turns(loop, clock), log)
        later: list[Pending[int]] = []

        def ask() -> Pending[int]:
            later.append(Pending())
            return later[-1]

        def fail() -> int:
            message = "a bug"
            raise ValueError(message)

        pacing.carry_out(clock.work)
        waiting, gone, left, failed = (pacing.carry_out(act) for act in (ask, partial(ask), ask, fail))
        assert isinstance(waiting, Pending)
        assert isinstance(gone, Pending)
        assert isinstance(left, Pending)
        assert isinstance(failed, Pending)
        gone.abandon()
        await asyncio.sleep(1)
        assert len(later) == 2
        later[0].complete(7)
        assert (waiting.done, waiting.response) == (True, 7)
        left.abandon()
        assert later[1].abandoned
        assert (failed.done, failed.response, log.errors) == (True, None, 1)

    run_simulation(main, 1)
