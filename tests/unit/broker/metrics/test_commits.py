"""Protects what the metrics say of syncs, of the journal of log starts and of the metadata store."""

from __future__ import annotations

import asyncio

from bench.request_path import World, delete
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.runtime.committer import BOUNDS_S, BUCKETS, Durations
from lowtide.simulation.client import WireClient
from lowtide.storage.log_start.journal_format import frame_bytes

from .scraping import scrape, simulate

A = {"directory": "/a"}


def test_a_delete_is_a_frame_of_the_journal_and_a_round_of_the_committer() -> None:
    async def run(world: World, client: WireClient) -> None:
        before = await scrape(world.machines[0])
        await client.request(delete(12), 2)
        after = await scrape(world.machines[0])
        assert after.since(before, "lowtide_log_start_journal_size_bytes", **A) == frame_bytes(1)
        assert after.since(before, "lowtide_log_start_journal_entries", **A) == 1
        rounds = after.since(before, "lowtide_commit_seconds_count", **A)
        assert rounds >= 1
        assert after.since(before, "lowtide_commit_syncs_total", **A) >= rounds
        assert after.since(before, "lowtide_commit_requests_total", **A) >= rounds
        assert after.since(before, "lowtide_commit_seconds_sum", **A) > 0
        assert 0 < after.of("lowtide_commit_max_seconds", **A) <= after.of("lowtide_commit_seconds_sum", **A)
        assert after.of("lowtide_commit_waiting", **A) == 0

    simulate(run)


def test_what_the_disk_has_not_taken_yet_waits() -> None:
    async def run(world: World, client: WireClient) -> None:
        broker = world.machines[0].broker
        assert broker is not None
        committer = broker.log_manager.directories.committers["/a"]
        committer.delay_range_ms = (5_000, 5_000)  # type: ignore[attr-defined]  # it is a simulated one
        answer = client.send(delete(12), 2)
        await asyncio.sleep(1)
        assert (await scrape(world.machines[0])).of("lowtide_commit_waiting", **A) >= 1
        await answer
        page = await scrape(world.machines[0])
        assert page.of("lowtide_commit_max_seconds", **A) >= 5

    simulate(run)


def test_a_change_of_the_metadata_is_timed() -> None:
    async def run(world: World, client: WireClient) -> None:
        before = await scrape(world.machines[0])
        topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        assert (
            not (await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)).topics[0].error_code
        )
        after = await scrape(world.machines[0])
        assert after.since(before, "lowtide_metadata_write_seconds_count") >= 1
        assert after.of("lowtide_metadata_write_max_seconds") > 0

    simulate(run)


def test_durations_are_in_the_bucket_that_their_bound_says() -> None:
    for bucket, bound_s in enumerate(BOUNDS_S):
        times = Durations()
        times.add(round(bound_s * 1e9) - 1)
        assert times.counts.index(1) == bucket
    times = Durations()
    times.add(3600 * 10**9)
    times.add(1)
    assert (times.counts[0], times.counts[BUCKETS - 1]) == (1, 1)
    assert (times.total_ns, times.longest_ns) == (3600 * 10**9 + 1, 3600 * 10**9)
