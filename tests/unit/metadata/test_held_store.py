"""A metadata store in the same event loop as the broker's session, when that loop is blocked."""

from __future__ import annotations

import asyncio

import pytest

from lowtide.metadata.memory import MemoryDisk, MemoryStore
from lowtide.metadata.records import Listener
from lowtide.metadata.registration import BrokerRegistration
from lowtide.metadata.session import MetadataSession, SessionPorts, SessionSettings
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.runtime.tasks import TaskRegistry

SETTINGS = SessionSettings(prefix=b"/test/", time_to_live_ms=4000, keep_alive_ms=500)
REGISTRATION = BrokerRegistration((Listener("PLAINTEXT", "host", 9092),))


@pytest.mark.parametrize("held_ms", [3560, 3700, 3900, 3999])
def test_a_store_that_is_blocked_with_its_broker_ends_no_lease(held_ms: int) -> None:
    """Both run in one loop, which is blocked for less than a session.

    The timer of the lease fires before the broker can renew it.
    """

    async def scenario(loop: SimulatedLoop) -> None:
        clock, disk = SimulatedClock(loop), MemoryDisk()
        node = loop.start_node("process")

        async def live() -> MetadataSession:
            store = MemoryStore(disk, clock=clock, random=loop.random, loop=loop)
            tasks = TaskRegistry(lambda *_: None)
            session = MetadataSession(
                SessionPorts(store=store, clock=clock, tasks=tasks, random=loop.random), broker_id=1, settings=SETTINGS
            )
            await session.start(REGISTRATION)
            return session

        session = await node.spawn(live())
        epoch, controller = session.broker_epoch, session.image.controller_revision
        for rest_s in (0.47, 0.4, 1.3):  # Most of them begin shortly before a renewal is due.
            await asyncio.sleep(rest_s)
            node.pause()
            await asyncio.sleep(held_ms / 1000)
            node.resume()
            await asyncio.sleep(1.0)
            assert (session.broker_epoch, session.image.controller_revision, session.is_fenced) == (
                epoch,
                controller,
                False,
            )

    run_simulation(scenario, seed=1, time_limit_s=600)
