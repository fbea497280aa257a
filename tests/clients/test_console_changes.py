"""Changes in the console over a real broker: rehearsed, carried out as shown, and refused if something has changed."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from lowtide.admin.blocking import BlockingAdminClient
from lowtide.admin.client import AdminClient
from lowtide.admin.configs import ConfigChange, ConfigResource
from lowtide.admin.topics import NewTopic
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.records import iterate_batches, iterate_records
from lowtide.protocol.types import TopicPartition
from lowtide.testing.cluster import LowtideCluster

from .console_visitor import Page, carried, console_of, rehearsed

NUMBERS = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster() as cluster, BlockingAdminClient(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name="a-plain-one", partitions=1, replication_factor=1)])
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


# ---------------------------------------------------------------------- settings
async def filled(page: Page, admin: AdminClient, **configs: str) -> str:
    """A topic of one partition with four closed segments, and an open one."""
    name = await made(admin, internal_segment_bytes="1000", **configs)
    for _ in range(5):
        row = {"value": {"form": "text", "text": "x" * 800}, "timestamp": 1_600_000_000_000}
        await carried(page, "records", await rehearsed(page, "records", {"topic": name, "records": [row]}))
    return name


async def test_each_setting_has_its_default_its_source_and_its_meaning(page: Page, admin: AdminClient):
    name = await made(admin, retention_ms="5000")
    rows = {row["key"]: row for row in (await page.view(f"settings?topic={name}"))["settings"]}
    row = rows["retention.ms"]
    assert (row["value"], row["set"], row["source"], row["default"]) == ("5000", True, "this topic", "604800000")
    assert "time for which records are kept" in row["about"]
    assert (rows["retention.bytes"]["set"], rows["retention.bytes"]["source"]) == (False, "default")
    assert rows["retention.bytes"]["default"] == rows["retention.bytes"]["value"] == "-1"


async def test_a_forecast_is_what_the_next_pass_deletes(page: Page, admin: AdminClient):
    """Four closed segments of one record, of 2020; what the pass with the new settings deletes is what was shown."""
    name = await filled(page, admin, retention_ms="-1")
    plan = await rehearsed(page, "settings", {"topic": name, "settings": {"retention.bytes": "1500"}})
    assert plan["changes"] == [{"key": "retention.bytes", "old": "-1", "new": "1500", "restores_default": False}]
    (row,) = plan["forecast"]["partitions"]
    assert (row["log_start"], row["delete_to"], row["records"], row["anyway"], row["segments"]) == (0, 3, 3, 0, 3)
    assert row["reasons"] == ["size"]
    assert plan["forecast"]["bytes"] == row["bytes"] > 3 * 800
    assert plan["notes"] == []
    plan = await rehearsed(page, "settings", {"topic": name, "settings": {"retention.ms": None}})
    (row,) = plan["forecast"]["partitions"]
    assert (row["records"], row["reasons"]) == (5, ["time"])
    assert plan["changes"][0] == {"key": "retention.ms", "old": "-1", "new": "604800000", "restores_default": True}
    plan = await rehearsed(page, "settings", {"topic": name, "settings": {"max.message.bytes": "2000"}})
    assert (plan["forecast"]["records"], plan["forecast"]["partitions"]) == (0, [])
    assert (await page.view(f"topic?topic={name}"))["partitions"][0]["log_start"] == 0


async def test_settings_are_changed_as_shown_and_once(page: Page, admin: AdminClient):
    name = await made(admin, retention_ms="5000")
    given = {"topic": name, "settings": {"retention.ms": None, "retention.bytes": "7"}}
    plan = await rehearsed(page, "settings", given)
    await carried(page, "settings", plan)
    assert (await page.post("settings", {"plan": plan["plan"]}))[0] == 409
    rows = {row["key"]: row for row in (await page.view(f"settings?topic={name}"))["settings"]}
    assert (rows["retention.ms"]["value"], rows["retention.ms"]["set"]) == ("604800000", False)
    assert (rows["retention.bytes"]["value"], rows["retention.bytes"]["set"]) == ("7", True)


async def test_a_setting_that_has_changed_since_is_left_alone(page: Page, admin: AdminClient):
    name = await made(admin, retention_ms="5000")
    plan = await rehearsed(page, "settings", {"topic": name, "settings": {"retention.ms": "1"}})
    other = await rehearsed(page, "settings", {"topic": name, "settings": {"retention.ms": "6000"}})
    await carried(page, "settings", other)
    status, answer = await page.post("settings", {"plan": plan["plan"]})
    assert status == 409
    assert answer["error"] == "retention.ms is 6000 now, and was 5000 in the rehearsal: rehearse again."


@pytest.mark.parametrize(
    "settings",
    [{}, {"retention.ms": "soon"}, {"no.such.key": "1"}, {"retention.bytes": None}, {"retention.ms": 5}, ["x"], None],
)
async def test_settings_that_cannot_be_meant_are_refused(page: Page, admin: AdminClient, settings: object):
    name = await made(admin)
    status, answer = await page.post("settings/rehearsal", {"topic": name, "settings": settings})
    assert status in {400, 409}, answer
    assert answer["error"].endswith(".")


async def test_compaction_and_too_few_replicas_are_named(page: Page, admin: AdminClient):
    name = await made(admin)
    given = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
    notes = " ".join((await rehearsed(page, "settings", {"topic": name, "settings": given}))["notes"])
    assert "newest record of each key" in notes
    assert "acks=all will be refused" in notes


# ---------------------------------------------------------------------- the end of a topic
async def test_a_topic_is_deleted_when_its_name_is_typed(page: Page, admin: AdminClient):
    name = await filled(page, admin)
    await admin.alter_group_offsets(f"group-{name}", {TopicPartition(name, 0): 2})
    plan, typo = [await rehearsed(page, "topic-deletion", {"topic": name}) for _ in range(2)]
    assert (plan["partitions"], plan["records"], plan["groups"]) == (
        1,
        5,
        [{"group": f"group-{name}", "state": "Empty", "partitions": 1}],
    )
    assert plan["bytes"] > 5 * 800
    status, answer = await page.post("topic-deletion", {"plan": typo["plan"], "name": name[:-1]})
    assert (status, "Type the name" in answer["error"]) == (400, True)
    assert name in await admin.list_topics()
    await carried(page, "topic-deletion", plan, name=name)
    assert name not in await admin.list_topics()
    assert (await page.post("topic-deletion/rehearsal", {"topic": name}))[0] == 404


async def test_a_topic_that_was_created_again_is_not_deleted(page: Page, admin: AdminClient):
    name = await made(admin)
    plan = await rehearsed(page, "topic-deletion", {"topic": name})
    await admin.delete_topics([name])
    await admin.create_topics([NewTopic(name=name, partitions=1, replication_factor=1)])
    status, answer = await page.post("topic-deletion", {"plan": plan["plan"], "name": name})
    assert (status, "created again" in answer["error"]) == (409, True)
    assert name in await admin.list_topics()


async def test_a_held_topic_is_named_and_refused(page: Page, admin: AdminClient):
    name = await made(admin, lowtide_hold_until="9000000000000")
    plan = await rehearsed(page, "topic-deletion", {"topic": name})
    assert any("held" in each for each in plan["notes"])
    status, answer = await page.post("topic-deletion", {"plan": plan["plan"], "name": name})
    assert (status, "held" in answer["error"]) == (409, True)


async def test_a_console_that_only_reads_rehearses_and_changes_nothing(cluster: LowtideCluster, admin: AdminClient):
    name = await made(admin)
    async with console_of({"bootstrap.servers": cluster.bootstrap}) as page:
        given = {
            "creation": {"topic": f"{name}-more"},
            "growth": {"topic": name, "partitions": 2},
            "settings": {"topic": name, "settings": {"retention.ms": "1"}},
            "records": {"topic": name, "records": [{"value": {"form": "text", "text": "v"}}]},
            "topic-deletion": {"topic": name},
        }
        for path, asked in given.items():
            plan = await rehearsed(page, path, asked)
            status, answer = await page.post(path, {"plan": plan["plan"], "name": name})
            assert (status, answer["error"]) == (403, "This console is read-only.")
            assert (await page.get(f"api/{path}")).status == 405, "nothing is changed by a GET"
    assert list(await admin.list_topics()).count(f"{name}-more") == 0
    assert len((await admin.list_topics())[name].partitions) == 1


async def test_the_forecast_knows_what_groups_have_consumed(page: Page, admin: AdminClient, cluster: LowtideCluster):
    """KIP-68: the group has consumed three of five records, and the forecast asks the coordinators for that."""
    name = await filled(page, admin, retention_ms="-1")
    broker = ConfigResource(ConfigResourceType.BROKER, "")
    change = ConfigChange("log.retention.commitoffset.enable", "true")
    assert set((await admin.alter_configs({broker: [change]})).values()) == {None}
    await admin.alter_group_offsets(f"group-{name}", {TopicPartition(name, 0): 3})
    plan = await rehearsed(page, "settings", {"topic": name, "settings": {"retention.commitoffset.ms": "1"}})
    (row,) = plan["forecast"]["partitions"]
    assert (row["records"], row["segments"], row["reasons"]) == (3, 3, ["consumed"])
