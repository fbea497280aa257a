"""The console over real brokers: what it shows, what it changes, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest

from lowtide.admin.client import AdminClient
from lowtide.admin.topics import NewTopic
from lowtide.console.settings import LoginKind
from lowtide.protocol.types import TopicPartition
from lowtide.testing.cluster import LowtideCluster

from .console_visitor import OWN, Page, console_of
from .driver import OutgoingRecord
from .driver_confluent import Confluent

HOSTILE = "<img src=x onerror=alert(1)>'\"\u202e"
RECORDS = 40
BATCH = 10
"""Records of a segment: one batch."""


@pytest.fixture(scope="module")
def cluster():
    with LowtideCluster() as cluster:
        yield cluster


@pytest.fixture
async def page(cluster: LowtideCluster) -> AsyncIterator[Page]:
    async with console_of({"bootstrap.servers": cluster.bootstrap}, write=True) as page:
        yield page


@pytest.fixture
async def topic(cluster: LowtideCluster, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Two partitions with records, and a group that has consumed some."""
    name = f"topic.{abs(hash(request.node.name))}"
    async with AdminClient(cluster.bootstrap) as admin:
        configs = {"internal.segment.bytes": "3000", "file.delete.delay.ms": "0"}
        assert not isinstance(
            (await admin.create_topics([NewTopic(name=name, partitions=2, replication_factor=1, configs=configs)]))[
                name
            ],
            Exception,
        )
        driver = Confluent(cluster.bootstrap)
        for partition in (0, 1):
            for _ in range(RECORDS // BATCH):
                await asyncio.to_thread(
                    driver.produce, name, [OutgoingRecord(b"key", b"x" * 200)] * BATCH, partition=partition
                )
        await admin.alter_group_offsets(f"group-{name}", {TopicPartition(name, 0): 10, TopicPartition(name, 1): 20})
        yield name
        await admin.delete_topics([name])


async def test_every_view(page: Page, topic: str):
    cluster = await page.view("cluster")
    assert [broker["leads"] for broker in cluster["brokers"]] == [cluster["partitions"]]
    assert cluster["brokers"][0]["disks"][0]["live_bytes"] > 0
    assert cluster["sees_disks"]
    (row,) = [each for each in (await page.view("topics"))["topics"] if each["name"] == topic]
    assert (row["partitions"], row["records"], row["behind"]) == (2, 2 * RECORDS, 0)
    found = await page.view(f"topic?topic={topic}")
    assert [(each["log_start"], each["high_watermark"]) for each in found["partitions"]] == [(0, RECORDS)] * 2
    assert found["partitions"][0]["replicas"][0]["log_start"] == 0
    assert found["partitions"][0]["kept"]
    picture = await page.view(f"segments?topic={topic}&partition=0")
    assert picture["known"]
    assert next(each["base"] for each in picture["segments"]) == 0
    assert len(picture["segments"]) > 2
    (row,) = [each for each in (await page.view("groups"))["groups"] if each["group"] == f"group-{topic}"]
    assert row["lag"] == 2 * RECORDS - 30
    group = await page.view(f"group?group=group-{topic}")
    assert [each["lag"] for each in group["partitions"]] == [RECORDS - 10, RECORDS - 20]
    records = await page.view(f"records?topic={topic}&partition=1&place=offset&value=5&count=3")
    assert [each["offset"] for each in records["records"]] == [5, 6, 7]
    assert records["next"] == 8
    assert (await page.view("deletes"))["known"]


async def test_records_by_every_place(page: Page, topic: str):
    where = f"records?topic={topic}&partition=0"
    assert [each["offset"] for each in (await page.view(f"{where}&place=start&count=2"))["records"]] == [0, 1]
    assert [each["offset"] for each in (await page.view(f"{where}&place=end&count=2"))["records"]] == [
        RECORDS - 2,
        RECORDS - 1,
    ]
    first = (await page.view(f"{where}&place=start&count=1"))["records"][0]["timestamp"]
    assert (await page.view(f"{where}&place=time&value={first}&count=1"))["first"] == 0
    assert (await page.view(f"{where}&place=time&value=2099-01-01T00:00:00Z&count=1"))["records"] == []
    assert (await page.view(f"{where}&place=offset&value=99999&count=1"))["records"] == []


async def test_a_delete_from_rehearsal_to_freed_bytes(page: Page, topic: str):
    """Exactly the previewed records are deleted, no later ones, and the shown bytes are freed."""
    status, plan = await page.post(
        "delete/rehearsal", {"topic": topic, "partitions": [0], "to": "offset", "value": "30"}
    )
    assert (status, plan["records"]) == (200, 30)
    freed = plan["partitions"][0]["freed"]
    assert freed["bytes"] > 0
    assert (await page.view(f"topic?topic={topic}"))["partitions"][0]["log_start"] == 0
    status, begun = await page.post("delete", {"plan": plan["plan"]})
    assert status == 200
    assert (await page.post("delete", {"plan": plan["plan"]}))[0] == 409
    async with asyncio.timeout(60):
        while not (job := await job_of(page, begun["job"]))["over"]:
            await asyncio.sleep(0.05)
    assert list(job["times"]) == ["asked", "leader", "replicas", "freed"]
    assert job["freed_bytes"] >= job["expected_bytes"] == freed["bytes"]
    assert [(row["state"], row["low_watermark"]) for row in job["partitions"]] == [("done", 30)]
    assert (await page.view(f"topic?topic={topic}"))["partitions"][0]["log_start"] == 30
    finished = [row for row in (await page.view("deletes"))["finished"] if row["topic"] == topic]
    assert [(row["old_log_start"], row["log_start"], row["error"]) for row in finished] == [(0, 30, None)]


async def job_of(page: Page, job_id: str):
    return next(job for job in (await page.view("deletes"))["own"] if job["id"] == job_id)


async def test_a_delete_to_what_a_group_has_committed(page: Page, topic: str):
    status, plan = await page.post(
        "delete/rehearsal", {"topic": topic, "to": "committed", "groups": [f"group-{topic}"]}
    )
    assert (status, [row["delete_to"] for row in plan["partitions"]]) == (200, [10, 20])
    status, plan = await page.post("delete/rehearsal", {"topic": topic, "to": "committed", "groups": ["none-such"]})
    assert (status, [row["delete_to"] for row in plan["partitions"]]) == (200, [None, None])
    assert (await page.post("delete", {"plan": plan["plan"]}))[0] == 400


async def test_offsets_are_reset_and_deleted_after_a_rehearsal(page: Page, topic: str):
    group = f"group-{topic}"
    status, plan = await page.post("reset/rehearsal", {"group": group, "to": "shift", "value": "-5"})
    assert (status, [(row["old"], row["new"]) for row in plan["partitions"]]) == (200, [(10, 5), (20, 15)])
    assert (await page.post("reset", {"plan": plan["plan"]}))[0] == 200
    assert [row["committed"] for row in (await page.view(f"group?group={group}"))["partitions"]] == [5, 15]
    status, plan = await page.post("forget/rehearsal", {"group": group, "topic": topic})
    assert (status, len(plan["partitions"])) == (200, 2)
    assert (await page.post("forget", {"plan": plan["plan"]}))[0] == 200
    answer = await page.get(f"api/view/group?group={group}", **OWN)
    assert answer.status == 404 or json.loads(answer.body)["partitions"] == []


async def test_a_plan_is_of_one_kind(page: Page, topic: str):
    _, plan = await page.post("delete/rehearsal", {"topic": topic, "to": "all"})
    assert (await page.post("reset", {"plan": plan["plan"]}))[0] == 409
    assert (await page.post("delete", {"plan": plan["plan"]}))[0] == 200


async def test_a_console_that_may_not_write_rehearses_only(cluster: LowtideCluster, topic: str):
    async with console_of({"bootstrap.servers": cluster.bootstrap}) as page:
        status, plan = await page.post("delete/rehearsal", {"topic": topic, "to": "all"})
        assert status == 200
        for path in ("delete", "reset", "forget"):
            assert (await page.post(path, {"plan": plan["plan"]}))[0] == 403
        assert (await page.view(f"topic?topic={topic}"))["partitions"][0]["log_start"] == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Sec_Fetch_Site": "cross-site"},
        {"X_Lowtide_Console": "0"},
        {"Content_Type": "text/plain"},
        {"Host": "evil.example"},
    ],
)
async def test_a_page_of_another_site_changes_nothing(page: Page, topic: str, headers: dict[str, str]):
    _, plan = await page.post("delete/rehearsal", {"topic": topic, "to": "all"})
    status, _ = await page.post("delete", {"plan": plan["plan"]}, **headers)
    assert status in (403, 421)
    assert (await page.view(f"topic?topic={topic}"))["partitions"][0]["log_start"] == 0


async def test_nothing_is_changed_by_a_get(page: Page):
    for path in ("login", "logout", "delete", "reset", "forget", "delete/rehearsal"):
        assert (await page.get(f"api/{path}", **OWN)).status == 405, path


async def test_every_answer_has_the_headers_that_guard_it(page: Page):
    for path in (
        "",
        "js/app.js",
        "js/none.js",
        "api/session",
        "api/view/cluster",
        "api/view/none",
        "api/view/topic",
        "none",
    ):
        headers = (await page.get(path)).headers
        policy = headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    "path",
    [
        "../../../../etc/passwd",
        "css/../../site.py",
        "js/..%2f..%2fsite.py",
        "js/%2e%2e/%2e%2e/site.py",
        "vendor/uplot.LICENSE",
        "js/app.js%00.css",
        "js//app.js",
        "/etc/passwd",
        "css/base.css/..",
    ],
)
async def test_no_path_leads_out(page: Page, path: str):
    answer = await page.get(path)
    assert answer.status in (302, 400, 404), answer.status
    assert b"root:" not in answer.body
    assert b"import" not in answer.body


@pytest.mark.parametrize(
    "view", ["topic?topic={}", "group?group={}", "records?topic={}&partition=0", "segments?topic={}&partition=0", "{}"]
)
async def test_hostile_names_are_errors_in_json(page: Page, view: str):
    """A name comes back as a text in JSON at most, never as HTML."""
    answer = await page.get("api/view/" + view.format(quote(HOSTILE, safe="")), **OWN)
    assert answer.status in (200, 400, 404, 409), answer.body
    assert answer.headers["content-type"].startswith("application/json")
    assert b"<img" not in answer.body or answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'"x"',
        b"[" * 30_000,
        b"\xff",
        b'{"topic": 1}',
        b'{"topic": "a", "to": "offset", "value": "-1"}',
    ],
)
async def test_hostile_bodies_are_refused(page: Page, body: bytes):
    status, _ = await page.post("delete/rehearsal", body)
    assert status in (400, 404)


async def test_a_large_body_is_refused(page: Page):
    status, _ = await page.post("delete/rehearsal", b'{"topic": "' + b"a" * 70_000 + b'"}')
    assert status == 413


async def test_a_question_is_asked_once_for_many(page: Page):
    """Within a second all visitors of a session get one answer."""
    answers = {(await page.get("api/view/cluster", **OWN)).body for _ in range(10)}
    assert len(answers) <= 2


async def test_events_send_a_view_and_what_has_changed(cluster: LowtideCluster, page: Page, topic: str):
    views = quote(json.dumps([["topics", {"internal": "1"}], ["topic", {"topic": topic}]]))
    page.visitor.writer.write(
        f"GET /console/api/events?views={views} HTTP/1.1\r\nHost: 127.0.0.1:{page.visitor.port}\r\n\r\n".encode()
    )
    async with asyncio.timeout(30):
        head = await page.visitor.reader.readuntil(b"\r\n\r\n")
        assert b"text/event-stream" in head
        topics = await page.visitor.reader.readuntil(b"\n\n\r\n")
        assert b'data: {"view":0,"value":{"sizes_known"' in topics
        first = await page.visitor.reader.readuntil(b"\n\n\r\n")
        assert b'data: {"view":1,"value"' in first
        assert f'"name":"{topic}"'.encode() in first
        await asyncio.to_thread(Confluent(cluster.bootstrap).produce, topic, [OutgoingRecord(None, b"more")])
        second = b""
        while b'"view":1' not in second:
            second = await page.visitor.reader.readuntil(b"\n\n\r\n")
        assert f'"high_watermark":{RECORDS + 1}'.encode() in second


@pytest.mark.parametrize(
    ("views", "status"),
    [
        ("", 400),
        ("x", 400),
        ("[]", 400),
        ('[["cluster"]]', 400),
        (json.dumps([["cluster", {}]] * 33), 400),
        ('[["no", {}]]', 404),
    ],
)
async def test_a_stream_of_other_views_is_refused(page: Page, views: str, status: int):
    assert (await page.get(f"api/events?views={quote(views)}", **OWN)).status == status


async def test_the_token_of_the_address_is_needed(cluster: LowtideCluster):
    """The console has a separate login."""
    async with console_of({"bootstrap.servers": cluster.bootstrap}, LoginKind.TOKEN, token="secret") as page:
        assert (await page.get("api/view/cluster", **OWN)).status == 401
        assert (await page.get("")).status == 200
        assert (await page.post("login", {"token": "other"}))[0] == 401
        answer = await page.visitor.ask("/console/api/login", "POST", b'{"token": "secret"}', **OWN)
        assert answer.status == 200
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        inside = page._replace(cookie=cookie.partition("=")[2].partition(";")[0])
        assert (await inside.view("cluster"))["brokers"]
        assert (await inside.post("logout"))[0] == 200
        assert (await inside.get("api/view/cluster", **OWN)).status == 401
