"""What a request that waits holds: until its client goes, and a share of the places."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from lowtide.broker import handlers as handlers_package
from lowtide.broker.client_waits import client_wait
from lowtide.broker.pending import Pending
from lowtide.broker.promises import answer_of, promised
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.tasks import TaskRegistry


def raised(name: str, error: BaseException) -> None:
    raise AssertionError(name) from error


def test_a_wait_ends_when_the_client_goes_and_what_follows_is_done() -> None:
    async def main(loop: SimulatedLoop) -> None:
        tasks, steps = TaskRegistry(raised), list[str]()

        async def work() -> str:
            try:
                async with client_wait(loop.time() + 600):
                    await loop.create_future()
            except TimeoutError:
                steps.append(f"waited {loop.time():.0f} s")
            await asyncio.sleep(5)
            steps.append("carried out")
            with pytest.raises(TimeoutError):
                async with client_wait():
                    await loop.create_future()
            return "answer"

        pending = promised(work, tasks.spawn, name="work")
        await asyncio.sleep(3)
        pending.abandon()
        await asyncio.sleep(6)
        assert steps == ["waited 3 s", "carried out"]
        assert len(tasks) == 0

    run_simulation(main, 1)


def test_a_wait_of_another_task_does_not_end_with_the_client() -> None:
    """It was begun by the request, and others may wait for it too."""

    async def main(loop: SimulatedLoop) -> None:
        tasks, outcome = TaskRegistry(raised), list[str]()

        async def shared() -> None:
            async with client_wait(loop.time() + 600):
                await asyncio.sleep(10)
            outcome.append("done")

        async def work() -> None:
            tasks.spawn(shared(), name="shared")

        pending = promised(work, tasks.spawn, name="work")
        pending.abandon()
        await asyncio.sleep(11)
        assert outcome == ["done"]

    run_simulation(main, 1)


def test_an_answer_that_is_passed_on_is_abandoned_with_its_client() -> None:
    async def main(loop: SimulatedLoop) -> None:
        tasks = TaskRegistry(raised)
        inner: dict[bool, Pending[str]] = {True: Pending(), False: Pending()}
        outer = {
            passed_on: promised(
                lambda given=given, passed_on=passed_on: answer_of(given, for_client=passed_on),  # type: ignore[misc]
                tasks.spawn,
                name="outer",
            )
            for passed_on, given in inner.items()
        }
        await asyncio.sleep(1)
        for pending in outer.values():
            pending.abandon()
        await asyncio.sleep(1)
        assert (inner[True].abandoned, inner[False].abandoned, len(tasks)) == (True, False, 1)
        inner[False].complete("an answer that decides what is done next")
        await asyncio.sleep(1)
        assert len(tasks) == 0

    run_simulation(main, 1)


def test_no_handler_bounds_a_wait_without_its_client() -> None:
    handlers = Path(handlers_package.__file__).parent
    found = [
        path.name
        for path in handlers.rglob("*.py")
        if re.search(r"asyncio\.(timeout|wait)", path.read_text(encoding="utf-8"))
    ]
    assert found == [], "use `client_wait`: the wait is to end with the connection"
