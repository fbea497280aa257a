"""What the console shows of real brokers: names, readers, groups of all kinds, transactions, brokers, settings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from confluent_kafka import Producer

from lowtide.admin import AdminClient, NewTopic, TopicPartition
from lowtide.console import settings as console_settings
from lowtide.testing.cluster import LowtideCluster

from .console_visitor import OWN, Page, console_of
from .streams_member import heartbeat, heartbeats, word_count

WAIT_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster() as cluster:
        yield cluster


@pytest.fixture
async def page(cluster: LowtideCluster) -> AsyncIterator[Page]:
    async with console_of({"bootstrap.servers": cluster.bootstrap}) as page:
        yield page


@pytest.fixture
async def admin(cluster: LowtideCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.bootstrap) as admin:
        yield admin


async def create(admin: AdminClient, name: str, **configs: str) -> None:
    topic = NewTopic(name=name, partitions=2, replication_factor=1, configs=configs)
    outcome = (await admin.create_topics([topic]))[name]
    assert not isinstance(outcome, Exception), outcome


async def test_names_of_everything_and_a_sentence_about_what_is_not_known(page: Page, admin: AdminClient):
    await create(admin, "named")
    found = await page.view("names")
    assert "named" in found["topics"]["names"]
    assert found["brokers"]["names"] == [str(each.broker_id) for each in (await admin.describe_cluster()).brokers]
    assert {"log.retention.ms", "retention.ms"} <= set(found["settings"]["names"])
    assert [found[kind]["error"] for kind in found] == [None] * 5


async def test_the_groups_of_a_topic(page: Page, admin: AdminClient):
    await create(admin, "read")
    await create(admin, "other")
    await admin.alter_group_offsets("reader", {TopicPartition("read", 0): 0, TopicPartition("other", 0): 0})
    await admin.alter_group_offsets("stranger", {TopicPartition("other", 0): 0})
    found = await page.view("readers?topic=read")
    assert [(row["group"], row["kind"], row["committed"], row["lag"]) for row in found["groups"]] == [
        ("reader", "classic", 1, 0)
    ]
    assert (found["left_out"], found["errors"]) == (0, [])


async def test_a_streams_group_with_its_topology_and_tasks(page: Page, admin: AdminClient, cluster: LowtideCluster):
    await create(admin, "words")
    await asyncio.to_thread(heartbeats, cluster.bootstrap, heartbeat("counts", 0, word_count("words", "counts")), 4)
    try:
        found = await page.view("group?group=counts")
        assert (found["kind"], found["topology"]["epoch"]) == ("streams", 3)
        assert found["topology"]["subtopologies"][0]["sources"] == ["words"]
        (member,) = found["members"]
        assert member["streams"]["tasks"]["active"] == ["0_0", "0_1", "1_0", "1_1"]
        assert member["streams"]["endpoint"] == "app:8080"
        (row,) = (await page.view("readers?topic=words"))["groups"]
        assert (row["group"], row["kind"], row["members"], row["lag"]) == ("counts", "streams", 1, None)
    finally:
        await asyncio.to_thread(heartbeats, cluster.bootstrap, heartbeat("counts", -1))


async def test_an_open_transaction_and_what_it_holds_back(page: Page, admin: AdminClient, cluster: LowtideCluster):
    await create(admin, "paid")

    def begin() -> Producer:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "payments"})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        for _ in range(3):
            producer.produce("paid", b"x", partition=0)
        assert producer.flush(WAIT_S) == 0
        return producer

    producer = await asyncio.to_thread(begin)
    found = await page.view("transactions")
    (row,) = found["transactions"]
    assert (row["id"], row["state"], row["timeout_ms"], row["late"]) == ("payments", "Ongoing", 60_000, False)
    assert row["partitions"] == [
        {"topic": "paid", "partition": 0, "first": 0, "last_stable": 0, "high_watermark": 3, "holds": True}
    ]
    assert (found["orphans"], found["complete"], found["errors"]) == ([], True, [])
    await asyncio.to_thread(producer.abort_transaction, WAIT_S)
    ends_s = time.monotonic() + WAIT_S
    while (await page.view("transactions"))["transactions"]:
        assert time.monotonic() < ends_s
        await asyncio.sleep(0.1)


async def test_a_broker_and_its_settings(page: Page, admin: AdminClient):
    await create(admin, "kept", **{"retention.ms": "1234"})
    (broker,) = (await admin.describe_cluster()).brokers
    found = await page.view(f"broker?broker={broker.broker_id}")
    assert (found["known"], found["controller"], found["behind"]) == (True, True, 0)
    assert found["disks"][0]["path"]
    row = next(row for row in found["replicas_shown"] if (row["topic"], row["partition"]) == ("kept", 1))
    assert (row["leads"], row["in_sync"], row["directory"]) == (True, True, found["disks"][0]["path"])
    settings = (await page.view(f"broker.settings?broker={broker.broker_id}"))["settings"]
    assert {row["key"]: row["source"] for row in settings}["log.dirs"] == "the broker's file"
    setting = await page.view("setting?key=retention.ms")
    assert [(row["topic"], row["value"]) for row in setting["topics"] if row["topic"] == "kept"] == [("kept", "1234")]
    assert setting["meaning"]


async def test_a_broker_that_is_not_known(cluster: LowtideCluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(console_settings, "CALL_MS", 4_000)  # So long the page waits for a broker that may be new.
    async with console_of({"bootstrap.servers": cluster.bootstrap}) as page:
        assert not (await page.view("broker?broker=99"))["known"]
        answer = await page.get("api/view/broker.settings?broker=99", **OWN)
        assert (answer.status, b"no broker 99" in answer.body) == (404, True)


async def test_a_cluster_without_an_authorizer_and_without_users(page: Page):
    assert not (await page.view("access.acls"))["secured"]
    assert (await page.view("access.users"))["users"] == []
    assert (await page.view("access.quotas"))["quotas"] == []
    assert (await page.view("access.tokens"))["tokens"] == []
