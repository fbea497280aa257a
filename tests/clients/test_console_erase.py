"""A person is erased in the console, over HTTP: searched, rehearsed, erased, and gone from the files of all brokers."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from lowtide.admin.client import AdminClient
from lowtide.admin.configs import ConfigChange, ConfigResource
from lowtide.admin.topics import NewTopic
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.types import TopicPartition
from lowtide.testing.cluster import LowtideCluster

from .console_visitor import Page, console_of
from .replica_files import files_with

PERSON = "person-4711"
OTHER = "person-1"
LIMIT_S = 90
ALL = [1, 2, 3]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    config = {"default.replication.factor": "3", "min.insync.replicas": "2"}
    with LowtideCluster(brokers=3, config=config) as cluster:
        yield cluster


@pytest.fixture
async def page(cluster: LowtideCluster) -> AsyncIterator[Page]:
    async with console_of({"bootstrap.servers": cluster.bootstrap}, write=True) as page:
        yield page


async def create(cluster: LowtideCluster, name: str, partitions: int = 1, **configs: str) -> None:
    """Creates a topic with 3 records of the person and 7 of another one in each partition."""
    async with AdminClient(cluster.bootstrap) as admin:
        topic = NewTopic(
            name=name, partitions=partitions, configs={key.replace("_", "."): value for key, value in configs.items()}
        )
        assert not isinstance((await admin.create_topics([topic]))[name], Exception)
    await asyncio.to_thread(produce, cluster, name, partitions)


def produce(cluster: LowtideCluster, name: str, partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 20})
    for partition in range(partitions):
        for number in range(10):
            key = PERSON if number in (2, 3, 8) else OTHER
            producer.produce(
                name, f"of {key} in {name}".encode(), key.encode(), partition=partition, headers=[("who", key)]
            )
    assert producer.flush(30) == 0


async def until(page: Page, erasure_id: str, done: Callable[[Any], bool]) -> Any:
    """Returns the progress when it is as wanted."""
    async with asyncio.timeout(LIMIT_S):
        while not done(value := await page.view(f"person?id={erasure_id}")):
            await asyncio.sleep(0.1)
    return value


async def searched(page: Page, **given: Any) -> tuple[str, Any]:
    """Searches; returns the id and what was found."""
    status, begun = await page.post("erase/search", {"keys": [PERSON], **given})
    assert status == 200, begun
    value = await until(page, begun["id"], lambda value: value["stage"] != "searching")
    assert value["stage"] == "found", value
    return begun["id"], await page.view(f"person_found?id={begun['id']}")


async def erased(page: Page, erasure_id: str, **given: Any) -> Any:
    """Rehearses and erases; returns the rehearsal."""
    status, plan = await page.post("erase/rehearsal", {"id": erasure_id, **given})
    assert status == 200, plan
    status, begun = await page.post("erase", {"plan": plan["plan"], "records": plan["records"]})
    assert (status, begun) == (200, {"id": erasure_id})
    return plan


async def test_a_person_is_searched_and_erased_from_all_files(page: Page, cluster: LowtideCluster):
    await create(cluster, "orders", 2)
    marker = f"of {PERSON} in orders".encode()
    assert files_with(cluster, marker)
    erasure_id, found = await searched(page, topics=["orders"])
    assert (found["records"], found["reach"]["holds"], found["reach"]["without_delete"]) == (6, [], [])
    assert [(row["partition"], row["records"], row["offsets"]) for row in found["partitions"]] == [
        (0, 3, [[2, 3], [8, 8]]),
        (1, 3, [[2, 3], [8, 8]]),
    ]
    plan = await erased(page, erasure_id)
    assert plan["records"] == 6
    value = await until(page, erasure_id, lambda value: value["stage"] not in ("erasing", "cleaning"))
    assert value["stage"] == "clean", value
    assert value["erasure"]["erased"] == 6
    assert [(row["broker"], row["clean"], row["replicas"]) for row in value["erasure"]["brokers"]] == [
        (1, 2, 2),
        (2, 2, 2),
        (3, 2, 2),
    ]
    assert files_with(cluster, marker) == []
    assert files_with(cluster, f"of {OTHER} in orders".encode()), "the records of others stay"
    assert PERSON not in str(value)
    _, again = await searched(page, topics=["orders"])
    assert again["records"] == 0
