"""The task registry: no task and no exception is lost."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.tasks import TaskRegistry
from tests.scenarios import played_by


def test_an_exception_is_logged_with_the_task_s_name_and_cancellation_is_none() -> None:
    told: list[tuple[str, str]] = []

    async def fail() -> None:
        raise ValueError("a bug")

    async def main(_: SimulatedLoop) -> None:
        registry = TaskRegistry(lambda name, error: told.append((name, repr(error))))
        registry.spawn(fail(), name="fails")
        waits = registry.spawn(asyncio.sleep(100), name="waits")
        fine = registry.spawn(asyncio.sleep(1, "result"), name="fine")
        assert await fine == "result"
        waits.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(registry) == 0

    run_simulation(main, 1)
    assert told == [("fails", "ValueError('a bug')")]


def test_a_task_without_other_references_continues() -> None:
    """asyncio keeps only weak references.

    A task that waits for an object that only it references would be collected.
    """

    async def waits_for_its_own() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        registry = TaskRegistry(lambda *_: None)
        watched = weakref.ref(registry.spawn(waits_for_its_own(), name="lonely"))
        await asyncio.sleep(0)
        gc.collect()
        assert watched() is not None
        await registry.cancel_all()

    asyncio.run(main())


def test_cancel_all_waits_for_clean_up_and_includes_tasks_started_meanwhile() -> None:
    events: list[str] = []

    async def main(_: SimulatedLoop) -> None:
        registry = TaskRegistry(lambda name, error: events.append(f"{name} {error!r}"))

        async def late() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                events.append("late cancelled")

        async def work() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                registry.spawn(late(), name="late")
                await asyncio.sleep(1)
                events.append("cleaned up")

        registry.spawn(work(), name="work")
        await asyncio.sleep(0)
        await registry.cancel_all()
        assert len(registry) == 0

    run_simulation(main, 1)
    assert sorted(events) == ["cleaned up", "late cancelled"]


@played_by(run_simulation, 1)
async def test_a_task_may_call_cancel_all_without_ending_itself(_: SimulatedLoop, /) -> None:
    registry = TaskRegistry(lambda *_: None)

    async def stop() -> str:
        await registry.cancel_all()
        return "stopped"

    other = registry.spawn(asyncio.sleep(100), name="other")
    assert await registry.spawn(stop(), name="stop") == "stopped"
    assert other.cancelled()


@played_by(run_simulation, 1)
async def test_cancelling_cancel_all_is_not_swallowed(loop: SimulatedLoop, /) -> None:
    registry = TaskRegistry(lambda *_: None)

    async def stubborn() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(50)

    registry.spawn(stubborn(), name="stubborn")
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await registry.cancel_all()
    assert loop.time() == pytest.approx(1)
