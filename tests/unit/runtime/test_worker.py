"""Work in other threads: its result or error is reported in the loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.worker import SimulatedWorker, ThreadWorker, Worker
from tests.scenarios import played_by


def on_threads(scenario: Callable[[Worker], Any]) -> None:
    async def main() -> None:
        worker = ThreadWorker(asyncio.get_running_loop(), threads=2, name="test-worker")
        try:
            async with asyncio.timeout(10):
                await scenario(worker)
        finally:
            worker.close()

    asyncio.run(main())


def simulated(scenario: Callable[[Worker], Any]) -> None:
    async def main(loop: SimulatedLoop) -> None:
        worker = SimulatedWorker(loop, Random(1))
        await scenario(worker)
        worker.close()

    run_simulation(main, 1)


either = pytest.mark.parametrize("run", [on_threads, simulated])


@either
def test_results_and_exceptions_are_answered_in_the_loop_s_thread(run: Callable[..., None]) -> None:
    async def scenario(worker: Worker) -> None:
        loop, told, threads = asyncio.get_running_loop(), [], set()
        done = loop.create_future()

        def on_done(outcome: object) -> None:
            told.append(outcome)
            threads.add(threading.get_ident())
            if len(told) == 2:
                done.set_result(None)

        worker.submit(lambda: 6 * 7, on_done)
        worker.submit(lambda: int("x"), on_done)
        assert told == [], "never answered inside submit"
        await done
        assert threads == {threading.get_ident()}
        assert 42 in told
        assert any(isinstance(outcome, ValueError) for outcome in told)

    run(scenario)


@either
def test_close_finishes_what_was_submitted(run: Callable[..., None]) -> None:
    async def scenario(worker: Worker) -> None:
        told: list[object] = []
        for number in range(20):
            worker.submit(lambda number=number: number, told.append)  # type: ignore[misc]
        worker.close()
        assert sorted(told) == list(range(20))  # type: ignore[type-var]
        worker.close()
        with pytest.raises(AssertionError):
            worker.submit(int, told.append)

    run(scenario)


@played_by(on_threads)
async def test_threads_work_side_by_side(worker: Worker, /) -> None:
    """A cold read must not wait for another cold read."""
    meeting, done = threading.Barrier(2), asyncio.get_running_loop().create_future()
    told = []

    def on_done(outcome: object) -> None:
        told.append(outcome)
        if len(told) == 2:
            done.set_result(None)

    for _ in range(2):
        worker.submit(lambda: meeting.wait(10), on_done)
    await done
    assert sorted(told) == [0, 1]  # type: ignore[type-var]


def test_an_idle_thread_keeps_nothing_alive() -> None:
    """A file whose read was the last job must close although the worker has no further work."""

    class Thing:
        pass

    async def scenario(worker: Worker) -> None:
        done = asyncio.get_running_loop().create_future()
        thing = Thing()
        watched = weakref.ref(thing)
        worker.submit(lambda kept=thing: id(kept), done.set_result)  # type: ignore[misc]
        del thing
        await done
        for _ in range(100):
            gc.collect()
            if watched() is None:
                return
            await asyncio.sleep(0.001)
        pytest.fail("still referenced")

    on_threads(scenario)


def test_simulated_work_overlaps_and_ends_in_any_order() -> None:
    def order(seed: int) -> list[int]:
        async def main(loop: SimulatedLoop) -> list[int]:
            worker = SimulatedWorker(loop, loop.random)
            told: list[Any] = []
            for number in range(6):
                worker.submit(lambda number=number: number, told.append)  # type: ignore[misc]
            await asyncio.sleep(1)
            return told

        return run_simulation(main, seed)

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(10)}) > 3
