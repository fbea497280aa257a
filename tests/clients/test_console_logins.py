"""The console as users of the cluster: logins, and what their access rules allow."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lowtide.admin.client import AdminClient
from lowtide.admin.topics import NewTopic
from lowtide.broker.config.broker_config import Setting, load_config
from lowtide.broker.lifecycle.broker import Broker
from lowtide.broker.lifecycle.logger import quiet_logger
from lowtide.broker.lifecycle.ports import real_ports
from lowtide.cli.broker_console import broker_console
from lowtide.console.settings import LoginKind
from lowtide.testing.cluster import LowtideCluster
from tests.http_visitor import Visitor

from .console_visitor import OWN, Page, console_of


@pytest.fixture(scope="module")
def secure():
    with LowtideCluster(secure=True) as cluster:
        yield cluster


def without_login(cluster: LowtideCluster) -> dict[str, str]:
    settings = cluster.for_confluent_kafka
    return {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": settings["ssl.ca.location"],
    }


@asynccontextmanager
async def logged_in(cluster: LowtideCluster, user: str, password: str) -> AsyncIterator[tuple[int, Page]]:
    async with console_of(without_login(cluster), LoginKind.PASSWORD, write=True) as page:
        body = json.dumps({"user": user, "password": password, "mechanism": "SCRAM-SHA-512"}).encode()
        answer = await page.visitor.ask("/console/api/login", "POST", body, **OWN)
        cookie = answer.headers.get("set-cookie", "").partition("=")[2].partition(";")[0]
        yield answer.status, page._replace(cookie=cookie)


async def test_a_visitor_logs_in_as_a_user_of_the_cluster(secure: LowtideCluster):
    settings = secure.for_confluent_kafka
    async with logged_in(secure, settings["sasl.username"], settings["sasl.password"]) as (status, page):
        assert status == 200
        assert (await page.view("cluster"))["brokers"]
        session = json.loads((await page.get("api/session", **OWN)).body)
        assert (session["in"], session["user"]) == (True, settings["sasl.username"])
        assert settings["sasl.password"] not in json.dumps(session)


async def test_without_a_login_nothing_is_shown(secure: LowtideCluster):
    async with logged_in(secure, "admin", "wrong") as (status, page):
        assert status == 401
        for view in ("cluster", "topics", "groups", "deletes", "topic?topic=a"):
            assert (await page.get(f"api/view/{view}", **OWN)).status == 401
        for path in ("delete", "delete/rehearsal", "reset/rehearsal", "search", "follow"):
            assert (await page.post(path, {"topic": "a"}))[0] == 401
        assert (await page.get("api/events?views=%5B%5B%22cluster%22,%7B%7D%5D%5D", **OWN)).status == 401


async def test_the_access_rules_of_the_user_decide(secure: LowtideCluster):
    """A user without rights sees no topic, and deletes nothing."""
    admin_settings = secure.for_confluent_kafka
    async with AdminClient(admin_settings) as admin:
        await admin.create_topics([NewTopic(name="secret", partitions=1, replication_factor=1)])
        from lowtide.admin.users import ScramUpsertion
        from lowtide.protocol.scram import ScramMechanism

        change = ScramUpsertion(mechanism=ScramMechanism.SHA_512, password="weak", salt=b"0123456789abcdef")
        assert (await admin.alter_scram_users({"mallory": change}))["mallory"] is None
    async with logged_in(secure, "mallory", "weak") as (status, page):
        assert status == 200
        assert (await page.view("topics"))["topics"] == []
        assert (await page.get("api/view/topic?topic=secret", **OWN)).status in (403, 404)
        assert (await page.get("api/view/records?topic=secret&partition=0", **OWN)).status in (403, 404, 409)
        assert (await page.post("delete/rehearsal", {"topic": "secret", "to": "all"}))[0] in (403, 404)
        for path in ("search", "follow"):
            _, answer = await page.post(path, {"topic": "secret"})
            assert json.loads(answer.splitlines()[-1]) == {"trouble": "You have no right to read this topic."}
        cluster = await page.view("cluster")
        assert cluster["brokers"][0]["disks"] is None or cluster["brokers"][0]["disks"] == []
        assert cluster["brokers"][0]["health"] is None
        assert not cluster["sees_disks"], "no alert may claim that every disk has room"


@asynccontextmanager
async def served(directory: Path, **given: str) -> AsyncIterator[tuple[Broker, str]]:
    """A broker that serves its own console."""
    own = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory),
        "http.listeners": "http://127.0.0.1:0",
        "http.trust.local": "true",
    } | given
    config = load_config(given={name: Setting(value, "test") for name, value in own.items()})
    broker: Broker = Broker(
        config, real_ports(asyncio.get_running_loop()), quiet_logger(), sites=[lambda: broker_console(broker)]
    )
    await broker.start()
    try:
        yield broker, broker.http_addresses[0]
    finally:
        await broker.stop()


async def test_a_broker_serves_its_own_console(tmp_path: Path):
    """Its root redirects to the console, which is read-only by default and shows the broker."""
    async with served(tmp_path) as (broker, url), Visitor(url) as visitor:
        page = Page(visitor)
        answer = await visitor.ask("/")
        assert (answer.status, answer.headers["location"]) == (302, "/console/")
        assert b"<title>Lowtide</title>" in (await page.get("")).body
        (row,) = (await page.view("cluster"))["brokers"]
        assert row["address"].endswith(f":{broker.port}")
        assert row["health"]["up_ms"] >= 0
        assert row["disks"][0]["deleted_bytes"] == 0
        assert (await page.post("delete", {"plan": "x"}))[0] == 403
        assert (await visitor.ask("/console/", X_Forwarded_For="10.0.0.1")).status == 401


async def test_a_broker_that_may_write_says_so(tmp_path: Path):
    async with served(tmp_path, **{"console.write": "true"}) as (_, url), Visitor(url) as visitor:
        assert (await Page(visitor).post("delete", {"plan": "x"}))[0] == 409


async def test_a_name_and_a_password_with_each_request_are_a_login(secure: LowtideCluster):
    """Browsers send these credentials to a remote listener after they have asked the user."""
    settings = secure.for_confluent_kafka
    pair = base64.b64encode(f"{settings['sasl.username']}:{settings['sasl.password']}".encode()).decode()
    async with console_of(without_login(secure), LoginKind.PASSWORD) as page:
        assert json.loads((await page.get("api/view/cluster", **OWN, Authorization=f"Basic {pair}")).body)["brokers"]
        wrong = base64.b64encode(b"admin:wrong").decode()
        assert (await page.get("api/view/cluster", **OWN, Authorization=f"Basic {wrong}")).status == 401
        assert (await page.get("api/view/cluster", **OWN, Authorization="Basic %%%")).status == 401
