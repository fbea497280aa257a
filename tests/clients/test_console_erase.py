"""A person is erased in the console, over HTTP: searched, rehearsed, erased, and gone from the files of all brokers."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from lowtide.admin.client import AdminClient
from lowtide.admin.topics import NewTopic
from lowtide.protocol.key_hash import partition_of_key
from lowtide.protocol.types import TopicPartition
from lowtide.testing.cluster import LowtideCluster

from .command_lines import run
from .console_visitor import OWN, Page, console_of
from .replica_files import files_with

PERSON = "person-4711"
OTHER = "person-1"
LIMIT_S = 90


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


async def test_a_broker_that_is_away_is_named_until_it_is_back(page: Page, cluster: LowtideCluster):
    await create(cluster, "away")
    marker = f"of {PERSON} in away".encode()
    erasure_id, _ = await searched(page, topics=["away"])
    await asyncio.to_thread(cluster.stop_broker, 3)
    try:
        await erased(page, erasure_id)
        value = await until(page, erasure_id, lambda value: value["erasure"] and value["erasure"]["missing"])
        assert value["stage"] == "cleaning"
        assert value["erasure"]["missing"] == [{"topic": "away", "partition": 0, "brokers": [3]}]
        (row,) = [row for row in value["erasure"]["brokers"] if row["broker"] == 3]
        assert (row["clean"], row["replicas"], row["reasons"]) == (0, 1, ["it is not live"])
        status, receipt = await page.post("erase/receipt", {"id": erasure_id})
        assert (status, receipt["clean"]) == (200, False)
        assert "away-0: not confirmed by broker 3." in json.loads(receipt["document"])["not_covered"]
        (row,) = [row for row in (await page.view("ledger"))["erasures"] if row["id"] == erasure_id]
        assert (row["missing"], row["records"], row["topics"]) == ([3], 3, ["away"])
        assert files_with(cluster, marker) != []
        status, answer = await page.post("erase/confirm", {"id": erasure_id})
        assert (status, answer["gone"]) == (200, 0)
        assert [row["broker"] for row in answer["brokers"] if row["clean"] < row["replicas"]] == [3]
    finally:
        await asyncio.to_thread(cluster.start_broker, 3)
    value = await until(page, erasure_id, lambda value: value["stage"] == "clean")
    assert value["erasure"]["missing"] == []
    assert files_with(cluster, marker) == []
    (row,) = [row for row in (await page.view("ledger"))["erasures"] if row["id"] == erasure_id]
    assert row["missing"] == []


async def test_a_hold_is_shown_and_keeps_its_topic(page: Page, cluster: LowtideCluster):
    """A hold is placed and ended by rehearsed changes; a person's records in the topic stay meanwhile."""
    await create(cluster, "evidence")
    await create(cluster, "free")
    assert (await page.post("hold/rehearsal", {"topics": ["evidence"], "until": "2020-01-01T00:00:00Z"}))[0] == 400
    assert (await page.post("hold/rehearsal", {"topics": ["none-such"], "until": "2099-01-01T00:00:00Z"}))[0] == 400
    status, plan = await page.post(
        "hold/rehearsal", {"topics": ["evid*"], "until": "2099-01-01T00:00:00Z", "reason": "case 7"}
    )
    assert (status, [row["topic"] for row in plan["topics"]]) == (200, ["evidence"])
    assert (await page.view("holds"))["holds"] == []
    status, done = await page.post("hold", {"plan": plan["plan"]})
    assert (status, [row["error"] for row in done["topics"]]) == (200, [None])
    assert (await page.post("hold", {"plan": plan["plan"]}))[0] == 409
    (row,) = (await page.view("holds"))["holds"]
    assert (row["topic"], row["reason"]) == ("evidence", "case 7")
    erasure_id, found = await searched(page, topics=["evidence"])
    assert (found["records"], [row["topic"] for row in found["reach"]["holds"]]) == (3, ["evidence"])
    status, refused = await page.post("erase/rehearsal", {"id": erasure_id})
    assert (status, refused["error"]) == (400, "There is no partition in which anything may be erased.")
    erasure_id, _ = await searched(page, topics=["evidence", "free"])
    plan = await erased(page, erasure_id)
    assert plan["records"] == 3
    assert "Nothing is erased in evidence: a hold keeps all records there." in plan["sentences"]
    await until(page, erasure_id, lambda value: value["stage"] == "clean")
    assert files_with(cluster, f"of {PERSON} in free".encode()) == []
    assert files_with(cluster, f"of {PERSON} in evidence".encode()) != []
    status, plan = await page.post("hold/rehearsal", {"topics": ["evidence"], "remove": True})
    assert "To end or to shorten a hold needs ALTER on the cluster." in plan["sentences"]
    assert (await page.post("hold", {"plan": plan["plan"]}))[0] == 200
    assert (await page.view("holds"))["holds"] == []


async def test_an_erasure_stands_until_it_is_ended(page: Page, cluster: LowtideCluster):
    await create(cluster, "standing")
    erasure_id, _ = await searched(page, topics=["standing"])
    plan = await erased(page, erasure_id, standing_days=30)
    assert plan["sentences"][-1].startswith("For 30 days the brokers go on")
    value = await until(page, erasure_id, lambda value: value["stage"] == "clean")
    assert value["erasure"]["standing_until_ms"] > value["times"]["asked"]
    standing = (await page.view("erasures"))["standing"]
    assert [(row["id"], row["keys"], row["topics"]) for row in standing["rows"]] == [(erasure_id, 1, ["standing"])]
    status, plan = await page.post("standing/rehearsal", {"id": erasure_id})
    assert (status, plan["keys"]) == (200, 1)
    assert (await page.post("standing/end", {"plan": plan["plan"]}))[0] == 200
    assert (await page.post("standing/rehearsal", {"id": erasure_id}))[0] == 404


async def test_tombstones_tell_tables_downstream(page: Page, cluster: LowtideCluster):
    """They are written after the erasure, with the key and no value, where Java's clients put the key."""
    await create(cluster, "downstream", 3)
    erasure_id, _ = await searched(page, topics=["downstream"])
    status, refused = await page.post("erase/rehearsal", {"id": erasure_id, "tombstone": True, "standing_days": 1})
    assert (status, refused["error"].startswith("A tombstone needs a key")) == (400, True)
    plan = await erased(page, erasure_id, tombstone=True)
    assert any(each.startswith("Then 1 record with a key and no value") for each in plan["sentences"])
    value = await until(page, erasure_id, lambda value: value["stage"] == "clean")
    assert value["erasure"]["tombstones"] == {"written": 1, "error": None}
    assert files_with(cluster, f"of {PERSON} in downstream".encode()) == []
    place = partition_of_key(PERSON.encode(), 3)
    shown = await page.view(f"records?topic=downstream&partition={place}&place=end&count=1")
    assert [(row["key"]["text"], row["value"]) for row in shown["records"]] == [(PERSON, None)]
    erasure_id, found = await searched(page, topics=["downstream"])
    assert [(row["partition"], row["records"]) for row in found["partitions"]] == [(place, 1)]


async def test_a_receipt_is_signed_from_what_the_page_gives(page: Page, cluster: LowtideCluster, tmp_path: Path):
    await create(cluster, "proof")
    erasure_id, _ = await searched(page, topics=["proof"])
    await erased(page, erasure_id)
    await until(page, erasure_id, lambda value: value["stage"] == "clean")
    _, without = await page.post("erase/receipt", {"id": erasure_id})
    status, found = await page.post("erase/receipt", {"id": erasure_id, "nonce": True})
    assert (status, found["clean"], found["has_nonce"]) == (200, True, True)
    document = json.loads(found["document"])
    assert json.loads(without["document"])["nonces"] == []
    (partition,) = document["partitions"]
    assert [each["broker"] for each in partition["confirmed"]] == [1, 2, 3]
    (nonce,) = document["nonces"]
    export, key, signed = tmp_path / "export.jsonl", tmp_path / "audit.key", tmp_path / "receipt.json"
    export.write_text(found["export"])
    await asyncio.to_thread(run, "erasures", "key", "create", key)
    asked = ("--from-export", export, "--signing-key", key, "--nonce", nonce)
    signed.write_text((await asyncio.to_thread(run, "erasures", "receipt", erasure_id, *asked)).stdout)
    question = ("erasures", "verify", signed, "--public-key", f"{key}.pub", "--key", PERSON)
    assert "Verified." in (await asyncio.to_thread(run, *question)).stdout
    status, exported = await page.post("erasures/export")
    assert status == 200
    export.write_text(exported["export"])
    assert erasure_id in (await asyncio.to_thread(run, "erasures", "list", "--from-export", export)).stdout


async def test_only_what_was_shown_is_erased_and_once(page: Page, cluster: LowtideCluster):
    await create(cluster, "once")
    erasure_id, _ = await searched(page, topics=["once"])
    status, plan = await page.post("erase/rehearsal", {"id": erasure_id})
    assert (await page.post("erase", {"plan": plan["plan"], "records": 4}))[0] == 400
    assert (await page.post("erase", {"plan": plan["plan"], "records": 3}))[0] == 409, "a plan is taken once"
    status, plan = await page.post("erase/rehearsal", {"id": erasure_id})
    status, other = await page.post("erase/rehearsal", {"id": erasure_id})
    assert (await page.post("erase", {"plan": plan["plan"], "records": 3}))[0] == 200
    status, refused = await page.post("erase", {"plan": other["plan"], "records": 3})
    assert (status, refused["error"]) == (409, "This search can't be erased any more: search again.")
    assert (await page.post("delete", {"plan": other["plan"]}))[0] == 409


async def test_keys_are_read_strictly_and_repeated_nowhere(page: Page, cluster: LowtideCluster):
    await create(cluster, "strict")
    await create(cluster, "first-erased")
    erasure_id, _ = await searched(page, topics=["first-erased"])
    await erased(page, erasure_id)  # The first erasure creates the ledger.
    await until(page, erasure_id, lambda value: value["stage"] == "clean")
    for given, error in (
        ({"keys": [], "topics": ["strict"]}, "Give keys or a header."),
        ({"keys": [PERSON], "header": "who=x", "topics": ["strict"]}, "Give keys or a header."),
        ({"keys": [PERSON]}, "Give topics or patterns, or choose all topics."),
        ({"keys": [PERSON], "all": True, "topics": ["strict"]}, "Give topics or patterns, or choose all topics."),
        ({"keys": ["aa", PERSON], "key_format": "hex", "topics": ["strict"]}, "Key 2 is not hex."),
        ({"keys": [PERSON, ""], "topics": ["strict"]}, "Key 2 is empty."),
        ({"header": PERSON, "topics": ["strict"]}, "The header must have the form NAME=VALUE."),
        ({"keys": [PERSON], "topics": ["none-such"]}, "There is no topic none-such, or you may not describe it."),
        (
            {"keys": [PERSON], "topics": ["__lowtide_erasures"]},
            "__lowtide_erasures is an internal topic: its records belong to the brokers.",
        ),
        ({"keys": [PERSON], "patterns": ["zzz*"]}, "No topic matches zzz*."),
        ({"keys": [f"{PERSON}-{number}" for number in range(1001)], "topics": ["strict"]}, "keys must be a list of"),
    ):
        status, answer = await page.post("erase/search", given)
        assert status == 400, answer
        assert answer["error"].startswith(error)
        assert PERSON not in answer["error"]
    for given in (
        {"keys": [PERSON.encode().hex()], "key_format": "hex"},
        {"keys": [base64.b64encode(PERSON.encode()).decode()], "key_format": "base64"},
        {"keys": [], "header": f"who={PERSON}"},
    ):
        erasure_id, found = await searched(page, topics=["strict"], **given)
        assert found["records"] == 3
        shown = json.dumps([await page.view(f"person?id={erasure_id}"), found, await page.view("erasures")])
        assert PERSON not in shown
        assert PERSON.encode().hex() not in shown
    assert (await page.post("erase/search", {"keys": ["x" * 70_000], "topics": ["strict"]}))[0] == 413


async def test_all_topics_are_searched(page: Page, cluster: LowtideCluster):
    await create(cluster, "all-1")
    await create(cluster, "all-2")
    _, found = await searched(page, all=True)
    by_topic = {row["topic"]: row["records"] for row in found["topics"]}
    assert (by_topic["all-1"], by_topic["all-2"]) == (3, 3)
    assert "__lowtide_erasures" not in by_topic


async def test_groups_that_have_read_the_records_are_named(page: Page, cluster: LowtideCluster):
    await create(cluster, "read")
    async with AdminClient(cluster.bootstrap) as admin:
        await admin.alter_group_offsets("billing", {TopicPartition("read", 0): 4})
    _, found = await searched(page, topics=["read"])
    assert [(row["group"], row["read"]) for row in found["reach"]["readers"]] == [("billing", 2)]


async def test_newest_versions_in_a_compacted_topic_are_named(page: Page, cluster: LowtideCluster):
    await create(cluster, "profiles", cleanup_policy="compact")
    erasure_id, found = await searched(page, topics=["profiles"], keys=[], header=f"who={PERSON}")
    assert found["reach"]["compacted"] == ["profiles"]
    assert (found["partitions"][0]["newest"], found["partitions"][0]["newest_count"]) == ([[8, 8]], 1)
    plan = await erased(page, erasure_id)
    assert "In profiles all versions of the keys go, on every replica." in plan["sentences"]
    value = await until(page, erasure_id, lambda value: value["stage"] == "clean")
    assert value["erasure"]["erased"] == 3


async def test_without_write_nothing_is_erased(cluster: LowtideCluster):
    await create(cluster, "read-only")
    async with console_of({"bootstrap.servers": cluster.bootstrap}) as page:
        erasure_id, found = await searched(page, topics=["read-only"])
        assert found["records"] == 3
        status, plan = await page.post("erase/rehearsal", {"id": erasure_id})
        assert status == 200
        assert (await page.post("erase", {"plan": plan["plan"], "records": 3}))[0] == 403
        for path in ("hold", "standing/end"):
            assert (await page.post(path, {"plan": plan["plan"]}))[0] == 403
    assert files_with(cluster, f"of {PERSON} in read-only".encode()) != []


async def test_an_unknown_erasure_is_one_sentence(page: Page):
    answer = await page.get("api/view/person?id=00000000-0000-4000-8000-000000000000", **OWN)
    assert (answer.status, json.loads(answer.body)) == (404, {"error": "This session has no erasure with this id."})
    assert (await page.post("erase/receipt", {"id": "no-id"}))[0] == 400
    assert (await page.post("erase/receipt", {"id": "00000000-0000-4000-8000-000000000000"}))[0] == 404
    assert (await page.post("erase/cancel", {"id": "x"}))[0] == 404


async def test_a_console_with_a_signing_key_signs_receipts(cluster: LowtideCluster, tmp_path: Path):
    """Protects the chain of the key: each receipt is the next one, and the command line verifies all of them."""
    await create(cluster, "signed")
    key = tmp_path / "audit.key"
    await asyncio.to_thread(run, "erasures", "key", "create", key)
    properties = {"bootstrap.servers": cluster.bootstrap}
    async with console_of(properties, write=True, signing_key=str(key)) as page:
        assert json.loads((await page.get("api/session", **OWN)).body)["signs"]
        erasure_id, _ = await searched(page, topics=["signed"])
        assert (await page.post("erase/sign", {"id": erasure_id}))[0] == 404
        await erased(page, erasure_id)
        await until(page, erasure_id, lambda value: value["stage"] == "clean")
        files = []
        for number in (1, 2):
            status, found = await page.post("erase/sign", {"id": erasure_id, "nonce": True})
            assert (status, found["clean"]) == (200, True)
            files.append(tmp_path / f"receipt-{number}.json")
            files[-1].write_text(found["receipt"])
        key.chmod(0o644)
        status, refused = await page.post("erase/sign", {"id": erasure_id})
        assert (status, "chmod 600" in refused["error"]) == (409, True)
        key.chmod(0o600)
    question = ("erasures", "verify", *files, "--public-key", f"{key}.pub", "--key", PERSON)
    shown = (await asyncio.to_thread(run, *question)).stdout
    assert "number 1" in shown
    assert "number 2" in shown
    assert "Verified." in shown
    async with console_of(properties, signing_key=str(key)) as page:
        assert (await page.post("erase/sign", {"id": erasure_id}))[0] == 403
    async with console_of(properties, write=True) as page:
        status, refused = await page.post("erase/sign", {"id": erasure_id})
        assert (status, "no signing key" in refused["error"]) == (409, True)


async def test_no_log_of_a_broker_has_a_key(page: Page, cluster: LowtideCluster):
    await create(cluster, "quiet")
    since = cluster.log_size
    erasure_id, _ = await searched(page, topics=["quiet"])
    await erased(page, erasure_id)
    await until(page, erasure_id, lambda value: value["stage"] == "clean")
    assert PERSON not in cluster.log(since)


async def test_another_session_asks_the_brokers_again(cluster: LowtideCluster):
    """Who began the erasure may be gone: the ledger knows what the brokers must have erased, without any key."""
    await create(cluster, "later", 2)
    properties = {"bootstrap.servers": cluster.bootstrap}
    async with console_of(properties, write=True) as page:
        erasure_id, _ = await searched(page, topics=["later"])
        await asyncio.to_thread(cluster.stop_broker, 2)
        try:
            await erased(page, erasure_id)
            await until(page, erasure_id, lambda value: value["erasure"] and value["erasure"]["missing"])
        except BaseException:
            await asyncio.to_thread(cluster.start_broker, 2)
            raise
    await asyncio.to_thread(cluster.start_broker, 2)
    async with console_of(properties, write=True) as page:
        assert (await page.get(f"api/view/person?id={erasure_id}", **OWN)).status == 404
        async with asyncio.timeout(LIMIT_S):
            while True:
                status, answer = await page.post("erase/confirm", {"id": erasure_id})
                assert status == 200, answer
                if all(row["clean"] == row["replicas"] for row in answer["brokers"]):
                    break
                await asyncio.sleep(0.1)
        (row,) = [row for row in (await page.view("ledger"))["erasures"] if row["id"] == erasure_id]
        assert row["missing"] == []
    assert files_with(cluster, f"of {PERSON} in later".encode()) == []
