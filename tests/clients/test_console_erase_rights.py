"""What a visitor may search, see and erase in the console is decided by the rights of the visitor's own login."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from lowtide.admin.acls import Acl
from lowtide.admin.client import AdminClient
from lowtide.admin.topics import NewTopic
from lowtide.admin.users import ScramUpsertion
from lowtide.console.erasure_ledger import NO_RIGHT
from lowtide.console.settings import LoginKind
from lowtide.protocol.acl_values import AclOperation, AclPattern, AclPermission, AclResourceType
from lowtide.protocol.scram import ScramMechanism
from lowtide.testing.cluster import LowtideCluster

from .console_visitor import OWN, Page, console_of
from .replica_files import files_with

PERSON = "person-4711"
RIGHTS = {
    "eraser": ("READ", "DELETE", "DESCRIBE_CONFIGS"),
    "reader": ("READ",),
    "deleter": ("DELETE",),
    "nobody": (),
}
"""What users may do with the topics people and erased. The deleter may not search them, although it may see them."""

TOPICS = ("people", "erased", "secret")
LEDGER = "__lowtide_erasures"
LIMIT_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster(secure=True) as cluster:
        asyncio.run(prepare(cluster))
        producer = Producer(cluster.for_confluent_kafka)
        for topic in TOPICS:
            for number in range(10):
                key = PERSON if number < 3 else "other"
                producer.produce(topic, f"of {key} in {topic}".encode(), key.encode(), partition=0)
        assert producer.flush(30) == 0
        yield cluster


def allows(user: str, operation: AclOperation, topic: str) -> Acl:
    allow = AclPermission.ALLOW
    return Acl(AclResourceType.TOPIC, topic, AclPattern.LITERAL, f"User:{user}", "*", operation, allow)


async def prepare(cluster: LowtideCluster) -> None:
    async with AdminClient(cluster.for_confluent_kafka) as admin:
        await admin.create_topics([NewTopic(name=name, partitions=1) for name in TOPICS])
        change = ScramUpsertion(mechanism=ScramMechanism.SHA_512, password="weak", salt=b"0123456789abcdef")
        assert set((await admin.alter_scram_users(dict.fromkeys(RIGHTS, change))).values()) == {None}
        acls = [
            allows(user, AclOperation[name], topic)
            for user, operations in RIGHTS.items()
            for name in operations
            for topic in ("people", "erased")
        ]
        acls.append(allows("eraser", AclOperation.READ, LEDGER))
        assert set((await admin.create_acls(acls)).values()) == {None}


@asynccontextmanager
async def visiting(cluster: LowtideCluster, user: str) -> AsyncIterator[Page]:
    ours = cluster.for_confluent_kafka
    properties = {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": ours["ssl.ca.location"],
    }
    async with console_of(properties, LoginKind.PASSWORD, write=True) as page:
        body = json.dumps({"user": user, "password": "weak", "mechanism": "SCRAM-SHA-512"}).encode()
        answer = await page.visitor.ask("/console/api/login", "POST", body, **OWN)
        assert answer.status == 200
        yield page._replace(cookie=answer.headers.get("set-cookie", "").partition("=")[2].partition(";")[0])


async def searched(page: Page, **given: Any) -> tuple[str, Any]:
    status, begun = await page.post("erase/search", {"keys": [PERSON], **given})
    assert status == 200, begun
    value = await until(page, begun["id"], "searching")
    assert value["stage"] == "found", value
    return begun["id"], await page.view(f"person_found?id={begun['id']}")


async def until(page: Page, erasure_id: str, *running: str) -> Any:
    async with asyncio.timeout(LIMIT_S):
        while (value := await page.view(f"person?id={erasure_id}"))["stage"] in running:
            await asyncio.sleep(0.1)
    return value


async def test_who_may_read_but_not_delete_can_search_only(cluster: LowtideCluster):
    async with visiting(cluster, "reader") as page:
        erasure_id, found = await searched(page, topics=["people"])
        assert (found["records"], found["reach"]["without_delete"]) == (3, ["people"])
        status, refused = await page.post("erase/rehearsal", {"id": erasure_id})
        assert (status, refused["error"]) == (400, "There is no partition in which anything may be erased.")
        assert (await page.view("ledger"))["trouble"] == NO_RIGHT
        assert (await page.view("erasures"))["standing"]["trouble"] == NO_RIGHT
        status, refused = await page.post("erasures/export")
        assert (status, refused["error"]) == (403, NO_RIGHT)
        status, plan = await page.post("hold/rehearsal", {"topics": ["people"], "until": "2099-01-01T00:00:00Z"})
        assert status == 403, plan


async def test_who_may_not_read_learns_nothing_about_how_many_match(cluster: LowtideCluster):
    async with visiting(cluster, "deleter") as page:
        erasure_id, found = await searched(page, topics=["people"])
        assert (found["records"], [row["records"] for row in found["partitions"]]) == (0, [None])
        assert "you lack a right on the topic" in found["partitions"][0]["error"]
        assert found["reach"]["readers"] == []
        assert (await page.post("erase/rehearsal", {"id": erasure_id}))[0] == 400
        value = await page.view(f"person?id={erasure_id}")
        assert (value["found"], value["search"]["bytes"]) == (0, 0)


async def test_who_may_see_no_topic_searches_none(cluster: LowtideCluster):
    async with visiting(cluster, "nobody") as page:
        status, refused = await page.post("erase/search", {"keys": [PERSON], "topics": ["people"]})
        assert (status, refused["error"]) == (400, "There is no topic people, or you may not describe it.")
        status, refused = await page.post("erase/search", {"keys": [PERSON], "all": True})
        assert (status, refused["error"]) == (400, "There is no topic that you may see.")
        assert (await page.view("holds"))["holds"] == []


async def test_an_erasure_is_seen_by_the_own_session_only(cluster: LowtideCluster):
    async with visiting(cluster, "eraser") as page:
        erasure_id, _ = await searched(page, topics=["erased"])
        body = json.dumps({"user": "reader", "password": "weak", "mechanism": "SCRAM-SHA-512"}).encode()
        answer = await page.visitor.ask("/console/api/login", "POST", body, **OWN)
        other = page._replace(cookie=answer.headers.get("set-cookie", "").partition("=")[2].partition(";")[0])
        for view in ("person", "person_found"):
            assert (await other.get(f"api/view/{view}?id={erasure_id}", **OWN)).status == 404
        for path in ("erase/rehearsal", "erase/cancel"):
            assert (await other.post(path, {"id": erasure_id}))[0] == 404
        assert (await other.post("erase/receipt", {"id": erasure_id}))[0] == 403
        plan = (await page.post("erase/rehearsal", {"id": erasure_id}))[1]
        assert (await other.post("erase", {"plan": plan["plan"], "records": 3}))[0] == 409
        assert (await page.post("erase", {"plan": plan["plan"], "records": 3}))[0] == 200
        value = await until(page, erasure_id, "erasing", "cleaning")
        assert (value["stage"], value["erasure"]["erased"]) == ("clean", 3)
        (row,) = (await page.view("ledger"))["erasures"]
        assert (row["id"], row["principals"]) == (erasure_id, ["User:eraser"])
    assert files_with(cluster, f"of {PERSON} in erased".encode()) == []
    assert files_with(cluster, f"of {PERSON} in secret".encode()) != []


async def test_all_topics_are_those_that_the_user_may_see(cluster: LowtideCluster):
    async with visiting(cluster, "eraser") as page:
        _, found = await searched(page, all=True)
        assert {row["topic"] for row in found["topics"]} == {"people", "erased"}
