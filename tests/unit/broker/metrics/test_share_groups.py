"""Protects what the metrics say of share groups: sessions, deliveries, acknowledgements, dead letters."""

from __future__ import annotations

import asyncio

from lowtide.protocol.errors import ErrorCode
from tests.sim.dead_letter_world import TOPIC_NAME, make_letters_topic, until_letters
from tests.sim.share_cluster import ShareCluster, simulate
from tests.sim.share_member import ACCEPT, REJECT, RELEASE, ShareMember, acquired, produce
from tests.sim.test_share_settings import set_on_group

from .scraping import scrape

ACKNOWLEDGED = "kafka_server_sharegroupmetrics_recordacknowledgements_total"
LETTERS = "kafka_server_sharegroupmetrics_"
WITHOUT = "lowtide_share_records_without_dead_letter_total"


def test_deliveries_and_acknowledgements_are_counted() -> None:
    async def run(cluster: ShareCluster) -> None:
        one = ShareMember(cluster, "one")
        await one.join()
        await one.fetch()
        machine = cluster.machines[one.leader - 1]
        before = await scrape(machine)
        assert before.of("kafka_server_sharesessioncache_sharesessionscount") == 1
        assert before.of("kafka_server_sharesessioncache_sharepartitionscount") == 1
        await produce(cluster, 0, [b"%d" % number for number in range(10)])
        assert acquired(await one.row()) == [(0, 9, 1)]
        answer = await one.acknowledge((0, 3, ACCEPT), (5, 6, RELEASE))
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE
        after = await scrape(machine)
        assert after.since(before, "lowtide_share_records_acquired_total") == 10
        assert after.since(before, ACKNOWLEDGED, ack_type="accept") == 4
        assert after.since(before, ACKNOWLEDGED, ack_type="release") == 2
        assert after.since(before, ACKNOWLEDGED, ack_type="reject") == 0
        assert after.of("lowtide_share_partitions") == 1
        assert after.of("kafka_server_sharepartitionmetrics_inflightmessagecount") == 6
        await asyncio.sleep(31)
        later = await scrape(machine)
        assert later.since(after, "kafka_server_sharepartitionmetrics_acquisitionlocktimeout_total") == 4

    simulate(run)


def test_dead_letters_are_counted_by_group() -> None:
    """Those that are written, those that fail, and given-up records that get none."""

    async def run(cluster: ShareCluster) -> None:
        await make_letters_topic(cluster, 1)
        one = ShareMember(cluster, "one")
        await one.join()
        await one.fetch()
        machine = cluster.machines[one.leader - 1]
        await produce(cluster, 0, [b"%d" % number for number in range(4)])
        assert acquired(await one.row()) == [(0, 3, 1)]
        await one.acknowledge((0, 2, REJECT))
        await until_letters(cluster, 3)
        await asyncio.sleep(1)
        found = await scrape(machine)
        assert found.of(f"{LETTERS}deadletterqueuerecordcount_total", group="g") == 3
        assert found.of(f"{LETTERS}deadletterqueuetotalproducerequests_total", group="g") == 1
        assert found.of(f"{LETTERS}deadletterqueuefailedproducerequests_total", group="g") == 0
        await set_on_group(cluster, TOPIC_NAME, "dlq.missing")
        await asyncio.sleep(1)
        await one.acknowledge((3, 3, REJECT))
        await asyncio.sleep(1)
        found = await scrape(machine)
        assert found.of(WITHOUT, group="g", reason="error") == 1
        assert found.of(WITHOUT, group="g", reason="deleted") == 0

    simulate(run)
