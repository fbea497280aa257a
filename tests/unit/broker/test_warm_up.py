"""What requests need is made ready before they come: all of it, a little at a time."""

from __future__ import annotations

from lowtide.broker.dispatcher import Dispatcher, HandlerSpec
from lowtide.broker.warm_up import FIRST_PAUSE_S, PAUSE_S, WarmUp
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation

KEYS = (ApiKey.METADATA, ApiKey.DELETE_RECORDS)


def dispatcher() -> Dispatcher:
    made = Dispatcher(spawn=lambda coro, *, name: None, maximum_versions={ApiKey.DELETE_RECORDS: 2})
    made.register([HandlerSpec(key=key, handle=lambda request, context: request) for key in KEYS])
    return made


def test_what_is_served_is_told_newest_versions_first() -> None:
    newest = API[ApiKey.METADATA].max_version
    served = dispatcher().served()
    assert served[:4] == [(3, newest), (21, 2), (3, newest - 1), (21, 1)]
    assert sorted(served) == [(3, version) for version in range(newest + 1)] + [(21, version) for version in range(3)]


def test_all_routes_are_made_one_at_a_time() -> None:
    async def main(loop: SimulatedLoop) -> None:
        routes = (given := dispatcher()).routes
        made_before = routes[ApiKey.METADATA, 12]
        warm_up = WarmUp(loop, given)
        warm_up.start()
        count = len(given.served())
        seen = []

        def look() -> None:
            seen.append(len(routes))
            if len(routes) < count:
                loop.call_later(PAUSE_S, look)

        loop.call_later(FIRST_PAUSE_S + PAUSE_S / 2, look)
        await _later(loop, FIRST_PAUSE_S + PAUSE_S * (count + 2))
        assert seen == list(range(2, count + 1))
        assert sorted(routes) == sorted(given.served())
        assert routes[ApiKey.METADATA, 12] is made_before

    run_simulation(main, 1)


def test_nothing_is_made_after_a_stop() -> None:
    async def main(loop: SimulatedLoop) -> None:
        given = dispatcher()
        warm_up = WarmUp(loop, given)
        warm_up.start()
        await _later(loop, FIRST_PAUSE_S + PAUSE_S * 2.5)
        warm_up.stop()
        count = len(given.routes)
        await _later(loop, 10)
        assert len(given.routes) == count == 3

    run_simulation(main, 1)


async def _later(loop: SimulatedLoop, seconds: float) -> None:
    waiter = loop.create_future()
    loop.call_later(seconds, waiter.set_result, None)
    await waiter
