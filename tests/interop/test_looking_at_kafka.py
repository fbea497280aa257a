"""`lowtide top` and the console at an Apache Kafka: what only Lowtide tells is left out."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lowtide.console.erasing import NOT_LOWTIDE
from tests.clients.console_visitor import OWN, console_of
from tests.clients.driver import until
from tests.free_ports import free_ports

from .kafka import Kafka

pytestmark = pytest.mark.interop

TOPIC, GROUP = "clicks", "readers"


@pytest.fixture(scope="module")
def bootstrap(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running Kafka node with a topic, records, and a group that is behind."""
    node = Kafka(jars, tmp_path_factory.mktemp("kafka") / "node", free_ports(2))
    try:
        node.start()
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(60)
        producer = Producer({"bootstrap.servers": node.bootstrap})
        for number in range(100):
            producer.produce(TOPIC, value=b"v", key=b"k", partition=number % 2)
        assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": GROUP})
        until(lambda: commits(consumer))
        consumer.close()
        yield node.bootstrap
    finally:
        node.stop()


def commits(consumer: Consumer) -> bool:
    """Returns whether a commit is taken: the first one meets a coordinator that has still to be elected."""
    try:
        consumer.commit(offsets=[TopicPartition(TOPIC, number, 20) for number in range(2)], asynchronous=False)
    except KafkaException:
        return False
    return True


def test_top_shows_it(bootstrap: str) -> None:
    def top(*words: str) -> str:
        command = [
            sys.executable,
            "-m",
            "lowtide.cli.main",
            "top",
            "--once",
            "--bootstrap-server",
            bootstrap,
            "--timeout",
            "60",
            *words,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    text = top()
    assert TOPIC in text
    assert GROUP in text
    assert json.loads(top("--output", "json"))


async def test_the_console_shows_it(bootstrap: str) -> None:
    async with console_of({"bootstrap.servers": bootstrap}) as page:
        cluster = await page.view("cluster")
        assert [broker["id"] for broker in cluster["brokers"]] == [1]
        assert {each["name"] for each in cluster["alerts"]} <= {"Log directory fills", "Full log directory"}
        assert TOPIC in json.dumps(await page.view("topics"))
        topic = await page.view(f"topic?topic={TOPIC}")
        assert len(topic["partitions"]) == 2
        assert GROUP in json.dumps(await page.view("groups"))
        assert TOPIC in json.dumps(await page.view(f"group?group={GROUP}"))
        records = await page.view(f"records?topic={TOPIC}&partition=0")
        assert len(records["records"]) > 0
        for view in ("deletes", f"segments?topic={TOPIC}&partition=0", f"history?topic={TOPIC}&partition=0"):
            assert await page.view(view) is not None, view


async def test_the_console_shows_groups_transactions_and_settings_of_it(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "payments"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(TOPIC, value=b"v", partition=0)
    assert producer.flush(60) == 0
    async with console_of({"bootstrap.servers": bootstrap}, write=True) as page:
        names = await page.view("names")
        assert [names[kind]["error"] for kind in names] == [None] * 5
        assert TOPIC in names["topics"]["names"]
        assert {"log.retention.ms", "retention.ms"} <= set(names["settings"]["names"])
        readers = await page.view(f"readers?topic={TOPIC}")
        assert [(row["group"], row["committed"], row["furthest"]) for row in readers["groups"]] == [(GROUP, 2, 0)]
        found = await page.view("transactions")
        (row,) = found["transactions"]
        assert (row["id"], row["state"], row["late"], found["orphans"]) == ("payments", "Ongoing", False, [])
        (place,) = row["partitions"]
        assert (place["topic"], place["holds"], place["first"]) == (TOPIC, True, 50)
        broker = await page.view("broker?broker=1")
        assert (broker["known"], broker["replicas"]) == (True, len(broker["replicas_shown"]))
        settings = {row["key"]: row for row in (await page.view("broker.settings?broker=1"))["settings"]}
        assert settings["log.segment.bytes"]["source"] == "the broker's file"
        assert (await page.get("api/view/broker.settings?broker=99", **OWN)).status == 404
        assert (await page.view("setting?key=retention.ms"))["meaning"]
        assert (await page.view("moves"))["moves"] == []
        assert not (await page.view("access.acls"))["secured"]
        assert (await page.view("access.users"))["users"] == []
        assert (await page.view("access.quotas"))["quotas"] == []
        assert (await page.view("access.tokens"))["trouble"]
        quota = {"user": "etl", "key": "consumer_byte_rate", "limit": "1000"}
        status, plan = await page.post("quota/rehearsal", quota)
        assert (status, plan["old"], plan["new"]) == (200, None, 1000.0)
        assert (await page.view("access.quotas"))["quotas"] == []
        assert (await page.post("quota", {"plan": plan["plan"]}))[0] == 200
        async with asyncio.timeout(60):
            while not (await page.view("access.quotas"))["quotas"]:
                await asyncio.sleep(0.1)  # Brokers learn of it from the controller.
        status, plan = await page.post("quota/rehearsal", quota | {"limit": "2000"})
        assert (status, plan["old"], plan["new"]) == (200, 1000.0, 2000.0)
    producer.abort_transaction(60)


async def test_the_console_erases_nothing_there(bootstrap: str) -> None:
    """The pages say in one sentence that its brokers can't erase; nothing is asked of them."""
    async with console_of({"bootstrap.servers": bootstrap}, write=True) as page:
        erasures = await page.view("erasures")
        assert (erasures["trouble"], erasures["own"], erasures["standing"]["rows"]) == (NOT_LOWTIDE, [], [])
        status, refused = await page.post("erase/search", {"keys": ["k"], "topics": [TOPIC]})
        assert (status, refused["error"]) == (501, NOT_LOWTIDE)
