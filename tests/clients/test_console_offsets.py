"""Offsets of groups in the console: reset to every place, deleted, and left alone if the group has moved since."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
from confluent_kafka import Consumer

from lowtide.admin.client import AdminClient
from lowtide.admin.topics import NewTopic
from lowtide.protocol.types import TopicPartition
from lowtide.testing.cluster import LowtideCluster

from .console_visitor import Page, carried, console_of, rehearsed

NUMBERS = count()
HOUR_MS = 3_600_000
RECORDS = 6
"""One for each of the last hours, in each partition."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster() as cluster:
        yield cluster


@pytest.fixture
async def admin(cluster: LowtideCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.bootstrap) as admin:
        yield admin


@pytest.fixture
async def page(cluster: LowtideCluster) -> AsyncIterator[Page]:
    async with console_of({"bootstrap.servers": cluster.bootstrap}, write=True) as page:
        yield page


@pytest.fixture
async def name(admin: AdminClient) -> str:
    """A topic of two partitions with records, and a group of the same name that has committed 4 and 5."""
    name = f"read-{next(NUMBERS)}"
    await admin.create_topics([NewTopic(name=name, partitions=2, replication_factor=1)])
    now_ms = int(time.time() * 1000)
    records = [(now_ms - (RECORDS - number) * HOUR_MS + 60_000, None, b"v", ()) for number in range(RECORDS)]
    keys = [TopicPartition(name, 0), TopicPartition(name, 1)]
    found = await admin.produce_records(dict.fromkeys(keys, records))
    assert [each.first_offset for each in found.values()] == [0, 0]
    await admin.alter_group_offsets(name, dict(zip(keys, (4, 5), strict=True)))
    return name


@pytest.mark.parametrize(
    ("to", "value", "new"),
    [
        ("earliest", None, [0, 0]),
        ("latest", None, [6, 6]),
        ("offset", "2", [2, 2]),
        ("offset", "99", [6, 6]),
        ("time", "2099-01-01T00:00:00Z", [6, 6]),
        ("duration", "3h", [3, 3]),
        ("duration", "PT1H30M", [5, 5]),
        ("shift", "-3", [1, 2]),
    ],
)
async def test_a_reset_to_every_place(page: Page, name: str, to: str, value: str | None, new: list[int]):
    plan = await rehearsed(page, "reset", {"group": name, "to": to, "value": value})
    assert [(row["old"], row["new"]) for row in plan["partitions"]] == list(zip((4, 5), new, strict=True))
    assert plan["notes"] == []
    assert await committed(page, name) == [4, 5], "a rehearsal sets nothing"
    await carried(page, "reset", plan)
    assert await committed(page, name) == new


async def committed(page: Page, group: str) -> list[int]:
    return [row["committed"] for row in (await page.view(f"group?group={group}"))["partitions"]]


async def test_one_partition_and_a_topic_that_was_not_read(page: Page, admin: AdminClient, name: str):
    plan = await rehearsed(page, "reset", {"group": name, "topic": name, "partitions": [1], "to": "earliest"})
    assert [(row["partition"], row["new"]) for row in plan["partitions"]] == [(1, 0)]
    await carried(page, "reset", plan)
    assert await committed(page, name) == [4, 0]
    plan = await rehearsed(page, "reset", {"group": f"new-{name}", "topic": name, "to": "latest"})
    assert [(row["old"], row["new"]) for row in plan["partitions"]] == [(None, 6), (None, 6)]
    await carried(page, "reset", plan)
    assert await committed(page, f"new-{name}") == [6, 6]


async def test_a_table_as_kafkas_tool_exports_it(page: Page, name: str):
    table = f'{name},0,1\n\n"{name}",1,3\n'
    plan = await rehearsed(page, "reset", {"group": name, "to": "table", "value": table})
    await carried(page, "reset", plan)
    assert await committed(page, name) == [1, 3]


@pytest.mark.parametrize(
    ("to", "value"),
    [
        ("duration", "soon"),
        ("duration", "3"),
        ("duration", "P"),
        ("duration", "99999999w"),
        ("offset", "-2"),
        ("shift", "1.5"),
        ("time", "yesterday"),
        ("table", "t;0;1"),
        ("table", "t,0"),
        ("table", "t,x,1"),
        ("table", "t,0,1\nt,0,2"),
        ("table", "\n"),
        ("somewhere", None),
    ],
)
async def test_a_place_that_cannot_be_meant_is_refused(page: Page, name: str, to: str, value: str | None):
    status, answer = await page.post("reset/rehearsal", {"group": name, "to": to, "value": value})
    assert (status, answer["error"][-1]) == (400, ".")


async def test_a_group_that_has_committed_since_is_left_alone(page: Page, admin: AdminClient, name: str):
    reset = await rehearsed(page, "reset", {"group": name, "to": "earliest"})
    some = await rehearsed(page, "forget", {"group": name, "topic": name})
    whole = await rehearsed(page, "forget", {"group": name})
    await admin.alter_group_offsets(name, {TopicPartition(name, 1): 6})
    for path, plan in (("reset", reset), ("forget", some), ("forget", whole)):
        status, answer = await page.post(path, {"plan": plan["plan"]})
        assert status == 409
        assert f"offset 6 for partition 1 of {name} now, and had 5 in the rehearsal" in answer["error"]
    assert await committed(page, name) == [4, 6]


async def test_a_group_with_members_is_named_and_refused(cluster: LowtideCluster, page: Page, name: str):
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": name, "enable.auto.commit": False})
    try:
        consumer.subscribe([name])
        async with asyncio.timeout(60):
            while not consumer.assignment():
                await asyncio.to_thread(consumer.poll, 0.1)
        reset = await rehearsed(page, "reset", {"group": name, "to": "earliest"})
        whole = await rehearsed(page, "forget", {"group": name})
        for path, plan in (("reset", reset), ("forget", whole)):
            assert "has 1 member" in plan["notes"][0]
            status, answer = await page.post(path, {"plan": plan["plan"]})
            assert (status, "has 1 member" in answer["error"]) == (409, True)
    finally:
        consumer.close()
    assert await committed(page, name) == [4, 5]


async def test_a_group_is_deleted_once(page: Page, name: str):
    plan = await rehearsed(page, "forget", {"group": name})
    assert (plan["whole"], [row["old"] for row in plan["partitions"]]) == (True, [4, 5])
    await carried(page, "forget", plan)
    assert (await page.post("forget", {"plan": plan["plan"]}))[0] == 409
    assert name not in [row["group"] for row in (await page.view("groups"))["groups"]]
