"""The follower of the image continues, and proves the image's age, when the connection of a watch breaks."""

from __future__ import annotations

import asyncio
from collections import Counter

from lowtide.metadata.image_follower import ImageFollower
from lowtide.metadata.store import Put
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.simulation.shared_store import SharedStore, StoreLink
from tests.scenarios import played_by

PREFIX = b"/lowtide/"


@played_by(run_simulation, 1)
async def test_a_watch_that_ends_while_the_image_is_behind(loop: SimulatedLoop, /) -> None:
    """Its age is proved all the time, also during the back-off before the next watch."""
    shared = SharedStore(loop, Random(1))
    link = StoreLink(shared, Random(2), Counter())
    follower = ImageFollower(store=link, clock=SimulatedClock(loop), prefix=PREFIX, age_ms=20, pause_ms=1)
    await follower.read()
    tasks = [loop.create_task(follower.follow()), loop.create_task(follower.prove_age())]
    for number in range(60):
        link.watch_lag_ms = (0.0, 30.0)
        await shared.store.transact([], [Put(PREFIX + b"producer_ids/next", b"%d" % number)])
        await asyncio.sleep(0.01)
        link.break_watches()
        await asyncio.sleep(0.02)
    assert [task for task in tasks if task.done()] == []
    link.heal()
    await asyncio.sleep(1)
    assert follower.image.revision == 60
