"""Changes an Apache Kafka cluster in the console. They work as at Lowtide, but without a forecast of deletions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.clients.console_visitor import Page, carried, console_of, rehearsed
from tests.free_ports import free_ports

from .kafka import Kafka

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def bootstrap(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    node = Kafka(jars, tmp_path_factory.mktemp("kafka") / "node", free_ports(2))
    try:
        node.start()
        yield node.bootstrap
    finally:
        node.stop()


@pytest.fixture
async def page(bootstrap: str) -> AsyncIterator[Page]:
    async with console_of({"bootstrap.servers": bootstrap}, write=True) as page:
        yield page


async def test_a_topic_from_its_creation_to_its_end(page: Page) -> None:
    plan = await rehearsed(page, "creation", {"topic": "made", "settings": {"retention.ms": "5000"}})
    assert (plan["partitions"], plan["replication_factor"]) == (1, 1)
    await carried(page, "creation", plan)
    status, answer = await page.post("creation/rehearsal", {"topic": "made"})
    assert (status, "TOPIC_ALREADY_EXISTS" in answer["error"]) == (409, True)
    status, answer = await page.post("creation/rehearsal", {"topic": "other", "settings": {"retention.ms": "soon"}})
    assert (status, answer["error"][-1]) == (409, ".")

    await carried(page, "growth", await rehearsed(page, "growth", {"topic": "made", "partitions": 3}))

    records = [
        {"key": {"form": "text", "text": "k"}, "value": {"form": "text", "text": "v"}, "headers": []},
        {"key": {"form": "text", "text": "k"}, "value": {"form": "null"}},
    ]
    outcome = await carried(
        page, "records", await rehearsed(page, "records", {"topic": "made", "partition": "2", "records": records})
    )
    assert outcome["partitions"] == [{"partition": 2, "records": 2, "offset": 0, "error": None}]

    plan = await rehearsed(page, "reset", {"group": "readers", "topic": "made", "partitions": [2], "to": "latest"})
    await carried(page, "reset", plan)
    plan = await rehearsed(page, "reset", {"group": "readers", "to": "duration", "value": "1h"})
    assert [(row["old"], row["new"]) for row in plan["partitions"]] == [(2, 0)]
    await carried(page, "reset", plan)

    plan = await rehearsed(page, "topic-deletion", {"topic": "made"})
    assert (plan["partitions"], plan["records"], [row["group"] for row in plan["groups"]]) == (3, 2, ["readers"])
    await carried(page, "topic-deletion", plan, name="made")
    async with asyncio.timeout(60):  # Kafka answers before its broker's metadata lack the topic.
        while "made" in [row["name"] for row in (await page.view("topics"))["topics"]]:
            await asyncio.sleep(0.1)


async def test_settings_have_defaults_and_no_forecast(page: Page) -> None:
    for name in ("plain", "set"):
        settings = {"retention.ms": "5000", "segment.ms": "70000"} if name == "set" else {}
        await carried(page, "creation", await rehearsed(page, "creation", {"topic": name, "settings": settings}))
    rows = {row["key"]: row for row in (await page.view("settings?topic=set"))["settings"]}
    assert (rows["retention.ms"]["value"], rows["retention.ms"]["default"]) == ("5000", "604800000")
    assert (rows["segment.ms"]["value"], rows["segment.ms"]["default"]) == ("70000", "604800000")
    assert rows["retention.ms"]["about"]
    plan = await rehearsed(page, "settings", {"topic": "set", "settings": {"retention.ms": None}})
    assert plan["changes"][0]["new"] == "604800000"
    assert plan["forecast"] is None
    assert "not known" in plan["notes"][0]
    await carried(page, "settings", plan)
    rows = {row["key"]: row for row in (await page.view("settings?topic=set"))["settings"]}
    assert (rows["retention.ms"]["value"], rows["retention.ms"]["set"]) == ("604800000", False)


async def test_a_group_is_deleted(page: Page) -> None:
    await carried(page, "creation", await rehearsed(page, "creation", {"topic": "read"}))
    given = {"group": "gone", "topic": "read", "to": "earliest"}
    await carried(page, "reset", await rehearsed(page, "reset", given))
    await carried(page, "forget", await rehearsed(page, "forget", {"group": "gone"}))
    assert "gone" not in [row["group"] for row in (await page.view("groups"))["groups"]]
