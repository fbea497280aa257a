"""Protects the times of requests: each response counts once, parts are separate, quantiles cover the last minutes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bench.request_path import World, fetch, produce
from lowtide.broker.metrics.recent_times import STEP_MS, WINDOW_MS, RecentRequestTimes, counts_of, quantile_ms
from lowtide.broker.network.connection.outgoing import BufferPool, OutgoingQueue
from lowtide.broker.network.routing.request_times import BUCKETS, ApiTimes, RequestClock, RequestTimes
from lowtide.protocol.api_keys import ApiKey
from lowtide.runtime.clock import SystemClock
from lowtide.simulation.client import WireClient

from .scraping import scrape, simulate

REQUESTS = "kafka_network_requestmetrics_"


def test_every_answer_is_counted_once() -> None:
    async def run(world: World, client: WireClient) -> None:
        before = await scrape(world.machines[0])
        for _ in range(3):
            await client.request(produce(1), 9)
        await client.request(fetch(), 11)
        after = await scrape(world.machines[0])
        assert after.since(before, f"{REQUESTS}requestspersec", request="Produce") == 3
        assert after.since(before, "lowtide_request_seconds_count", request="Produce") == 3
        for name in ("FetchConsumer", "Fetch"):
            assert after.since(before, f"{REQUESTS}requestspersec", request=name) == 1
        assert not after.has(f"{REQUESTS}requestspersec", request="FetchFollower")

    simulate(run)


def test_a_request_that_waits_is_remote_for_as_long() -> None:
    async def run(world: World, client: WireClient) -> None:
        request = fetch()
        request.topics[0].partitions[0].fetch_offset = 20
        request.max_wait_ms = 2_000
        await client.request(request, 11)
        page = await scrape(world.machines[0])
        for part in ("remotetimems", "totaltimems"):
            assert 1_000 <= page.of(f"{REQUESTS}{part}", request="FetchConsumer", quantile=0.99) <= 4_300, part
        assert page.of(f"{REQUESTS}localtimems", request="FetchConsumer", quantile=0.99) < 1
        assert 2 <= page.of("lowtide_request_seconds_sum", request="FetchConsumer") < 2.1
        buckets = {
            bound: page.of("lowtide_request_seconds_bucket", request="FetchConsumer", le=bound)
            for bound in (1.073741824, 2.147483648)
        }
        assert buckets == {1.073741824: 0, 2.147483648: 1}

    simulate(run)


def test_fetches_of_followers_are_separate() -> None:
    async def run(world: World, client: WireClient) -> None:
        await client.request(produce(-1), 9)
        page = await scrape(world.machines[0])
        assert page.of(f"{REQUESTS}requestspersec", request="FetchFollower") > 0
        assert not page.has(f"{REQUESTS}requestspersec", request="FetchConsumer")
        assert page.of(f"{REQUESTS}remotetimems", request="Produce", quantile=0.999) > 0

    simulate(run, 3)


@pytest.mark.parametrize(
    ("spans", "quantile", "low", "high"),
    [([1_000_000] * 100, 0.5, 0.5, 1.1), ([1_000] * 99 + [10**9], 0.999, 500, 1100)],
)
def test_a_quantile_is_within_its_bucket(spans: list[int], quantile: float, low: float, high: float) -> None:
    counts = [0] * BUCKETS
    for span in spans:
        counts[span.bit_length()] += 1
    assert low <= quantile_ms(counts, quantile) <= high


@pytest.mark.parametrize("takes_all", [True, False])
def test_of_sending_only_what_the_socket_does_not_take_is_measured(takes_all: bool) -> None:
    class Transport:
        def writelines(self, _parts: Any) -> None:
            queue.paused = not takes_all

        def get_write_buffer_size(self) -> int:
            return 0

    clock = RequestClock(SystemClock())
    clock.now_ns = lambda: next(moments)
    moments = iter((1_000, 1_000 + 5_000_000))
    queue = OutgoingQueue(Transport(), BufferPool(1, 1), None, pytest.fail, clock)  # nothing is read
    times = clock.times = ApiTimes("Fetch")
    queue.send([b"an answer"])
    queue.resume()
    assert sum(times.send) == times.send[(5_000_000).bit_length()] == (not takes_all)


def test_of_nothing_there_is_no_quantile() -> None:
    assert math.isnan(quantile_ms([0] * BUCKETS, 0.5))


def test_quantiles_forget_what_is_long_ago() -> None:
    times = RequestTimes()
    produce_times = times.of(ApiKey.PRODUCE)
    recent = RecentRequestTimes(times)
    produce_times.quick[30] += 1_000
    for now_ms in range(0, WINDOW_MS + 3 * STEP_MS, STEP_MS // 4):
        found = recent.look(now_ms)
        produce_times.quick[10] += 1
    now, before = found["Produce"]
    assert before is not None
    since = [count - earlier for count, earlier in zip(now.total, before.total, strict=True)]
    assert since[30] == 0
    assert WINDOW_MS // STEP_MS * 4 <= since[10] <= (WINDOW_MS // STEP_MS + 2) * 4


def test_the_parts_of_quick_requests_are_as_many_as_these() -> None:
    times = ApiTimes("x")
    times.quick[12] += 5
    times.total[20] += 1
    times.remote[20] += 1
    times.local[20] += 1
    times.response_queue[20] += 1
    times.send[22] += 1
    counts = counts_of(times)
    assert {name: sum(part) for name, part in counts.parts.items()} == dict.fromkeys(counts.parts, 6)
    assert (counts.parts["send"][0], counts.parts["send"][22]) == (5, 1)
    assert counts.parts["remote"][0] == 5
