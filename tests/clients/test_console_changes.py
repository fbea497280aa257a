"""Changes in the console over a real broker: rehearsed, carried out as shown, and refused if something has changed."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from lowtide.admin.client import AdminClient
from lowtide.admin.topics import NewTopic
from lowtide.protocol.records import iterate_batches, iterate_records
from lowtide.protocol.types import TopicPartition
from lowtide.testing.cluster import LowtideCluster

from .console_visitor import Page, console_of

NUMBERS = count()


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


async def made(admin: AdminClient, partitions: int = 1, **configs: str) -> str:
    """Creates a topic with a new name."""
    name = f"made-{next(NUMBERS)}"
    configs = {key.replace("_", "."): value for key, value in configs.items()}
    found = await admin.create_topics(
        [NewTopic(name=name, partitions=partitions, replication_factor=1, configs=configs)]
    )
    assert not isinstance(found[name], Exception)
    return name


async def rehearsed(page: Page, path: str, given: object) -> dict:
    status, plan = await page.post(f"{path}/rehearsal", given)
    assert status == 200, plan
    return plan


async def carried(page: Page, path: str, plan: dict, **more: object) -> dict:
    status, outcome = await page.post(path, {"plan": plan["plan"], **more})
    assert status == 200, outcome
    return outcome


async def test_a_topic_is_created_with_the_brokers_numbers(page: Page, admin: AdminClient):
    name = f"made-{next(NUMBERS)}"
    plan = await rehearsed(page, "creation", {"topic": name, "settings": {"retention.ms": "1000"}})
    assert (plan["partitions"], plan["replication_factor"], plan["replicas"]) == (1, 1, 1)
    assert name not in await admin.list_topics()
    await carried(page, "creation", plan)
    assert len((await admin.list_topics())[name].partitions) == 1
    assert (await page.post("creation", {"plan": plan["plan"]}))[0] == 409
    again = await page.post("creation/rehearsal", {"topic": name})
    assert again[0] == 409
    assert "TOPIC_ALREADY_EXISTS" in again[1]["error"]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"topic": "a/b"},
        {"topic": "ok", "partitions": "none"},
        {"topic": "ok", "partitions": 0},
        {"topic": "ok", "settings": {"retention.ms": "soon"}},
        {"topic": "ok", "settings": {"no.such.key": "1"}},
        {"topic": "ok", "settings": ["retention.ms"]},
        {"topic": "ok", "replication_factor": 9},
    ],
)
async def test_a_topic_that_cannot_be_created_is_refused_at_once(page: Page, given: dict):
    status, answer = await page.post("creation/rehearsal", given)
    assert status in {400, 409}, answer
    assert answer["error"].endswith(".")


async def test_records_are_written_where_the_rehearsal_says(page: Page, admin: AdminClient):
    name = await made(admin, 3)
    records = [
        {"key": {"form": "text", "text": "UA"}, "value": {"form": "json", "text": '{"delay": 3}'}},
        {"key": {"form": "hex", "text": "00ff"}, "value": {"form": "null"}},
        {
            "value": {"form": "base64", "text": base64.b64encode(b"\0\1").decode()},
            "headers": [{"name": "trace", "value": {"form": "text", "text": "7"}}],
            "timestamp": 5,
        },
    ]
    plan = await rehearsed(page, "records", {"topic": name, "partition": "2", "records": records})
    assert [(row["partition"], row["records"]) for row in plan["partitions"]] == [(2, 3)]
    assert plan["tombstones"] == 1
    outcome = await carried(page, "records", plan)
    assert outcome["partitions"] == [{"partition": 2, "records": 3, "offset": 0, "error": None}]
    assert (await page.post("records", {"plan": plan["plan"]}))[0] == 409
    assert await written(admin, TopicPartition(name, 2)) == [
        (b"UA", b'{"delay": 3}', []),
        (b"\0\xff", None, []),
        (None, b"\0\1", [(b"trace", b"7")]),
    ]


async def written(admin: AdminClient, key: TopicPartition) -> list[tuple]:
    fetched = await admin.fetch_records(key, 0)
    return [
        (record.key, record.value, list(record.headers))
        for position, header in iterate_batches(fetched.records)
        for record in iterate_records(
            memoryview(fetched.records)[position : position + header.size_bytes], max_bytes=1 << 20
        )
    ]


async def test_keys_choose_the_partition_of_kafkas_clients(page: Page, admin: AdminClient):
    name = await made(admin, 1000)
    records = [{"key": {"form": "text", "text": text}, "value": {"form": "text"}} for text in ("21", "foobar")]
    plan = await rehearsed(page, "records", {"topic": name, "records": records})
    assert [row["partition"] for row in plan["partitions"]] == [166, 340]


async def test_records_are_not_written_after_the_topic_has_changed(page: Page, admin: AdminClient):
    name = await made(admin)
    plan = await rehearsed(page, "records", {"topic": name, "records": [{"value": {"form": "text", "text": "v"}}]})
    await admin.create_partitions({name: 2})
    status, answer = await page.post("records", {"plan": plan["plan"]})
    assert (status, "2 partitions now" in answer["error"]) == (409, True)


@pytest.mark.parametrize(
    "record",
    [
        7,
        {"value": {"form": "json", "text": "{"}},
        {"value": {"form": "hex", "text": "f"}},
        {"value": {"form": "base64", "text": "?"}},
        {"value": {"form": "xml", "text": ""}},
        {"value": "text"},
        {"headers": {}},
        {"headers": [{"name": ""}]},
        {"timestamp": -1},
    ],
)
async def test_a_record_that_cannot_be_meant_is_refused(page: Page, admin: AdminClient, record: object):
    name = await made(admin)
    status, answer = await page.post("records/rehearsal", {"topic": name, "records": [record]})
    assert (status, answer["error"][-1]) == (400, ".")


async def test_partitions_are_added_once(page: Page, admin: AdminClient):
    name = await made(admin, 2)
    assert (await page.post("growth/rehearsal", {"topic": name, "partitions": 2}))[0] == 400
    plan, other = [await rehearsed(page, "growth", {"topic": name, "partitions": wanted}) for wanted in (3, 5)]
    assert (plan["old"], plan["new"]) == (2, 3)
    await carried(page, "growth", plan)
    status, answer = await page.post("growth", {"plan": other["plan"]})
    assert (status, "3 partitions now, and had 2" in answer["error"]) == (409, True)
    assert len((await admin.list_topics())[name].partitions) == 3
