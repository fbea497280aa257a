"""How often deleted records are looked for: often while there are any, else seldom."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

from lowtide.broker.lifecycle.due_work import FREEING_S, QUICK_ROUNDS, SLOW_FREEING_S, DueWork
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock


class Directories:
    """Directories in which records are deleted, or none are."""

    def __init__(self) -> None:
        self.looks = 0
        self.has_deleted = False

    def free_deleted(self) -> Iterator[None]:
        self.looks += 1
        if self.has_deleted:
            yield

    def due_work(self, _wall_ms: int) -> Iterator[None]:
        return iter(())


def test_what_is_deleted_is_looked_for_more_often_while_there_is_any() -> None:
    async def main(loop: SimulatedLoop) -> None:
        directories = Directories()
        work = DueWork(loop, SimulatedClock(loop), cast("Any", directories), ())
        work.start()

        async def looks_in(seconds: float) -> int:
            before = directories.looks
            await asyncio.sleep(seconds)
            return directories.looks - before

        assert abs(await looks_in(10) - 10 / SLOW_FREEING_S) <= 1
        directories.has_deleted = True
        assert abs(await looks_in(10) - 10 / FREEING_S) <= SLOW_FREEING_S / FREEING_S + 1
        directories.has_deleted = False
        assert abs(await looks_in(10) - QUICK_ROUNDS - (10 - QUICK_ROUNDS * FREEING_S) / SLOW_FREEING_S) <= 2
        work.stop()
        assert await looks_in(10) == 0

    run_simulation(main, seed=1)
