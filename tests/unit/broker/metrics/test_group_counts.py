"""Protects the counts of groups and offsets by Kafka's names: by type, by state, and 0 where there is none."""

from __future__ import annotations

from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.sim.share_cluster import GROUP, ShareCluster, simulate
from tests.sim.test_streams_groups import QUICK, StreamsThread, share

from .scraping import Scraped, scrape

NAMES = "kafka_server_group_coordinator_metrics_"
STATES = {
    "classic": ["Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"],
    "consumer": ["Empty", "Assigning", "Reconciling", "Stable", "Dead"],
    "share": ["Empty", "Stable", "Dead"],
    "streams": ["Empty", "NotReady", "Assigning", "Reconciling", "Stable", "Dead"],
}


def counts(page: Scraped) -> dict[str, dict[str, float]]:
    """Returns what is not 0, by type; each type and state must have a series."""
    found = {
        kind: {state: page.of(f"{NAMES}{kind}_group_count", state=state) for state in states}
        for kind, states in STATES.items()
    }
    assert {kind: page.of(f"{NAMES}group_count", protocol=kind) for kind in STATES} == {
        kind: sum(states.values()) for kind, states in found.items()
    }
    return {kind: {state: count for state, count in states.items() if count} for kind, states in found.items()}


def test_groups_are_counted_by_type_and_state() -> None:
    async def run(cluster: ShareCluster) -> None:
        rows = [
            OffsetCommitRequestPartition(partition_index=number, committed_offset=1, committed_metadata="")
            for number in (0, 1)
        ]
        commit = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[OffsetCommitRequestTopic(name="t", partitions=rows)],
            retention_time_ms=-1,
        )
        await cluster.settled("g", GROUP, commit, 8, lambda found: found.topics[0].partitions[0].error_code)
        coordinator = cluster.machines[await cluster.coordinator("g", GROUP) - 1]
        page = await scrape(coordinator)
        assert counts(page) == {"classic": {"Empty": 1}, "consumer": {}, "share": {}, "streams": {}}
        assert page.of(f"{NAMES}offset_count") == 2
        member = StreamsThread(cluster, "one")
        await member.beat()
        found = counts(await scrape(coordinator))
        assert (found["classic"], found["streams"]) == ({}, {"NotReady": 1})
        await share([member], 4)
        assert counts(await scrape(coordinator))["streams"] == {"Stable": 1}

    simulate(run, **QUICK)
