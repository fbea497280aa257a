"""Clocks: whole milliseconds, and deadlines that arrive when their timer fires."""

from __future__ import annotations

import asyncio

import pytest

from lowtide.runtime.clock import SystemClock
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SIMULATION_WALL_START_MS, SimulatedClock
from tests.scenarios import played_by


def test_system_clock_counts_milliseconds_since_1970_and_never_back() -> None:
    clock = SystemClock()
    assert 1_700_000_000_000 < clock.wall_ms() < 4_000_000_000_000
    readings = [clock.monotonic_ms() for _ in range(1000)]
    assert readings == sorted(readings)


@pytest.mark.parametrize("deadline_ms", [1, 5, 1005, 4035, 1_000_003, 86_400_001])
def test_a_timer_for_a_deadline_finds_the_deadline_reached(deadline_ms: int) -> None:
    """Otherwise code that sets the timer again would loop forever at the same instant."""

    async def main(loop: SimulatedLoop) -> int:
        clock = SimulatedClock(loop)
        done = loop.create_future()
        loop.call_at(deadline_ms / 1000, done.set_result, None)
        await done
        return clock.monotonic_ms()

    assert run_simulation(main, 1, time_limit_s=200_000) == deadline_ms


@played_by(run_simulation, 1)
async def test_the_simulated_wall_clock_may_jump_and_the_monotonic_one_does_not(loop: SimulatedLoop, /) -> None:
    clock = SimulatedClock(loop)
    await asyncio.sleep(2)
    assert (clock.monotonic_ms(), clock.wall_ms()) == (2000, SIMULATION_WALL_START_MS + 2000)
    clock.wall_offset_ms = -10_000
    assert (clock.monotonic_ms(), clock.wall_ms()) == (2000, SIMULATION_WALL_START_MS - 8000)
