"""Records in the console, over a real broker: searches and new records as streams of lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from lowtide.admin.client import AdminClient
from lowtide.admin.topics import NewTopic
from lowtide.console.own_users import OwnUsers, Role, line_of, new_user
from lowtide.console.settings import LoginKind
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.testing.cluster import LowtideCluster
from tests.unit.admin.schemas.registry_server import schema_registry

from .console_visitor import OWN, Page, console_of
from .driver import OutgoingRecord
from .driver_confluent import Confluent

PARTITIONS = 3
RECORDS = 30
BEGAN_MS = 1_790_000_000_000
LIMIT_S = 60


@pytest.fixture(scope="module")
def cluster():
    with LowtideCluster() as cluster:
        yield cluster


@pytest.fixture
async def page(cluster: LowtideCluster) -> AsyncIterator[Page]:
    async with console_of({"bootstrap.servers": cluster.bootstrap}) as page:
        yield page


@pytest.fixture
async def topic(cluster: LowtideCluster, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Record n is in partition n modulo 3, a millisecond after record n - 1."""
    name = f"topic.{abs(hash(request.node.name))}"
    async with AdminClient(cluster.bootstrap) as admin:
        kept = {"retention.ms": "-1"}
        await admin.create_topics([NewTopic(name=name, partitions=PARTITIONS, replication_factor=1, configs=kept)])
        driver = Confluent(cluster.bootstrap)
        for number in range(PARTITIONS):
            rows = [
                OutgoingRecord(b"k%d" % n, b'{"n": %d}' % n, BEGAN_MS + n, (("tens", b"%d" % (n // 10)),))
                for n in range(number, RECORDS, PARTITIONS)
            ]
            await asyncio.to_thread(driver.produce, name, rows, partition=number)
        yield name
        await admin.delete_topics([name])


async def search(page: Page, topic: str, **given: Any) -> tuple[list[int], dict[str, Any]]:
    """Returns n of each row, in the order in which a page shows them, and the last line."""
    answer = await page.visitor.ask(
        "/console/api/search", "POST", json.dumps({"topic": topic, **given}).encode(), **OWN
    )
    assert answer.status == 200, answer.body
    lines = [json.loads(each) for each in answer.body.splitlines()]
    rows = [row for line in lines for row in line.get("hits", ())]
    sign = 1 if given.get("order") == "oldest" else -1
    return sorted((row["timestamp"] - BEGAN_MS for row in rows), key=lambda n: sign * n), lines[-1]


async def test_a_search_finds_records_of_all_partitions(page: Page, topic: str):
    found, last = await search(page, topic)
    assert found == list(range(RECORDS))[::-1]
    assert last["end"]["why"] == "complete"
    assert (last["end"]["share"], last["end"]["partitions"]) == (1.0, PARTITIONS)
    assert (await search(page, topic, text='": 1'))[0] == [*range(19, 9, -1), 1]
    assert (await search(page, topic, key="k7"))[0] == [7]
    assert (await search(page, topic, header="tens=2"))[0] == list(range(29, 19, -1))
    assert (await search(page, topic, where="n > `27`", order="oldest"))[0] == [28, 29]
    assert (await search(page, topic, partitions=[1], text="8"))[0] == [28]


async def test_a_later_search_goes_on_where_one_ended(page: Page, topic: str):
    seen: list[int] = []
    offsets: dict[str, int] | None = None
    for _ in range(RECORDS):
        found, last = await search(page, topic, count=7, **({} if offsets is None else {"offsets": offsets}))
        seen += found[:7]
        if last["end"]["why"] == "complete":
            break
        offsets = last["end"]["next"]
    assert seen == list(range(RECORDS))[::-1]


async def test_a_search_from_a_time_on(page: Page, topic: str):
    assert (await search(page, topic, order="oldest", time=str(BEGAN_MS + 20)))[0] == list(range(20, RECORDS))
    assert (await search(page, topic, order="newest", time=str(BEGAN_MS + 5)))[0] == [4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"where": "n >"}, 'The filter "n >" is not JMESPath: it ends too early.'),
        ({"where": "x" * 2000}, "The filter has 2000 characters: at most 1000 are allowed."),
        ({"partitions": ["x"]}, "partitions must be a whole number from 0 to 2147483647."),
        ({"topic": ""}, "topic must be a string of 1 to 249 characters."),
    ],
)
async def test_bad_input_is_a_sentence(page: Page, topic: str, given: dict[str, Any], sentence: str):
    status, answer = await page.post("search", {"topic": topic, **given})
    assert (status, answer) == (400, {"error": sentence})


async def test_what_the_cluster_refuses_is_a_line(page: Page, topic: str):
    status, answer = await page.post("search", {"topic": "no-such-topic"})
    assert status == 200
    missing = {"trouble": "The cluster has no such topic or partition, or you have no right to see it."}
    assert json.loads(answer.splitlines()[-1]) == missing
    _, answer = await page.post("search", {"topic": topic, "partitions": [9]})
    assert json.loads(answer.splitlines()[-1]) == missing


async def test_a_registry_reads_values_and_says_why_not(cluster: LowtideCluster, topic: str):
    """Pages and filters see what it reads; if it is away, the bytes are shown with the reason."""
    with schema_registry() as registry:
        number = registry.register("flights", '{"type": "object"}', "JSON")
        head = b"\0" + number.to_bytes(4, "big")
        rows = [OutgoingRecord(None, head + b'{"delay": %d}' % n, BEGAN_MS + 100 + n) for n in (1, 2)]
        await asyncio.to_thread(Confluent(cluster.bootstrap).produce, topic, rows, partition=0)
        servers, settings = {"bootstrap.servers": cluster.bootstrap}, (("url", registry.url),)
        async with console_of(servers, registry=settings) as page:
            assert (await search(page, topic, where="delay == `2`"))[0] == [102]
            _, answer = await page.post("search", {"topic": topic, "count": 1})
            (row,) = json.loads(answer.splitlines()[0])["hits"][:1]
            assert row["value"]["schema_name"] == f"JSON Schema, schema {number}"
            assert json.loads(row["value"]["schema"]) == {"delay": 2}
    async with console_of(servers, registry=settings) as page:
        _, answer = await page.post("search", {"topic": topic, "where": "delay == `2`"})
        end = json.loads(answer.splitlines()[-1])["end"]
        assert end["other_format"] == 2
        assert end["other_format_reason"].startswith(f"the schema registry does not answer: {registry.url}/schemas")


async def test_other_sites_can_search_nothing(page: Page, topic: str):
    body = json.dumps({"topic": topic}).encode()
    for headers in ({}, {**OWN, "Origin": "https://evil.example"}, {**OWN, "Sec_Fetch_Site": "cross-site"}):
        for path in ("search", "follow"):
            answer = await page.visitor.ask(f"/console/api/{path}", "POST", body, **headers)
            assert answer.status == 403, path


async def test_new_records_are_followed_and_the_page_ends_it(cluster: LowtideCluster, topic: str):
    """A page that comes back goes on where it was."""
    driver = Confluent(cluster.bootstrap)
    async with console_of({"bootstrap.servers": cluster.bootstrap}) as page, asyncio.timeout(LIMIT_S):
        reader = Lines(page)
        offsets = (await reader.begin({"topic": topic}))["followed"]["next"]
        assert offsets == {str(number): RECORDS // PARTITIONS for number in range(PARTITIONS)}
        await asyncio.to_thread(driver.produce, topic, [OutgoingRecord(b"k", b"new", BEGAN_MS + 5000)], partition=2)
        assert [(row["partition"], row["value"]["text"]) for row in await reader.hits()] == [(2, "new")]
        reader.close()
    await asyncio.to_thread(driver.produce, topic, [OutgoingRecord(b"k", b"meanwhile", BEGAN_MS + 5001)], partition=0)
    async with console_of({"bootstrap.servers": cluster.bootstrap}) as page, asyncio.timeout(LIMIT_S):
        reader = Lines(page)
        await reader.begin({"topic": topic, "offsets": offsets})
        assert {row["value"]["text"] for _ in range(2) for row in await reader.hits()} == {"new", "meanwhile"}
        reader.close()


async def test_following_ends_with_the_session_of_its_user(cluster: LowtideCluster, topic: str):
    """The stream ends soon after its user is removed from the console's file, even if nobody sends a request."""
    files = MemoryFileSystem()
    line = line_of("ann", new_user(Role.READ, "right", Random(1), iterations=1))
    files.write_bytes("/users", line.encode())
    own = {"login": LoginKind.USERS, "users": OwnUsers(files, "/users", print)}
    async with console_of({"bootstrap.servers": cluster.bootstrap}, **own) as page, asyncio.timeout(LIMIT_S):
        body = json.dumps({"user": "ann", "password": "right"}).encode()
        answer = await page.visitor.ask("/console/api/login", "POST", body, **OWN)
        reader = Lines(page, Cookie=answer.headers["set-cookie"].partition(";")[0])
        assert "followed" in await reader.begin({"topic": topic})
        files.write_bytes("/users", b"# nobody\n")
        assert await reader.rest() == ["trouble"]


class Lines:
    """The lines of an answer that goes on."""

    def __init__(self, page: Page, **headers: str) -> None:
        self._visitor = page.visitor
        self._headers = OWN | headers

    async def begin(self, given: dict[str, Any]) -> Any:
        """Follows; returns the first line."""
        body = json.dumps(given).encode()
        names = {name.replace("_", "-"): value for name, value in self._headers.items()}
        names |= {"Host": f"{self._visitor.host}:{self._visitor.port}", "Content-Length": str(len(body))}
        head = "\r\n".join(["POST /console/api/follow HTTP/1.1", *(f"{k}: {v}" for k, v in names.items()), "", ""])
        await self._visitor.send(head.encode() + body)
        assert b" 200 " in await self._visitor.reader.readuntil(b"\r\n\r\n")
        return await self.line()

    async def line(self) -> Any:
        """Returns the next line, which is one chunk."""
        size = int(await self._visitor.reader.readline(), 16)
        return json.loads((await self._visitor.reader.readexactly(size + 2))[:-2])

    async def hits(self) -> list[Any]:
        """Returns the rows of the next line that has any."""
        while True:
            found: list[Any] | None = (await self.line()).get("hits")
            if found:
                return found

    async def rest(self) -> list[str]:
        """Returns the kinds of the lines up to the end of the answer, without those that say how far it came."""
        kinds = []
        while size := int(await self._visitor.reader.readline(), 16):
            kinds += json.loads((await self._visitor.reader.readexactly(size + 2))[:-2])
        return [kind for kind in kinds if kind != "followed"]

    def close(self) -> None:
        self._visitor.writer.close()
