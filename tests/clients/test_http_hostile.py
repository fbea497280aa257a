"""Hostile visitors of an HTTP listener have no effect."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from lowtide.admin.client import AdminClient
from lowtide.admin.settings import ClientSettings
from lowtide.admin.users import ScramUpsertion
from lowtide.broker.config.broker_config import load_config
from lowtide.broker.http import gate, logins
from lowtide.broker.lifecycle.broker import Broker
from lowtide.broker.lifecycle.ports import real_ports
from lowtide.protocol.scram import ScramMechanism
from lowtide.runtime import failed_logins, http_app, http_connection, http_origin, http_visits
from lowtide.runtime.http_visits import PLACES, VisitorKind
from tests.clients.certificate_files import issue
from tests.clients.test_http import Lines
from tests.http_visitor import Visitor, visit

PATH = "/health/live"


@asynccontextmanager
async def visited(directory: Path, *, sites=(), **settings: str) -> AsyncIterator[Broker]:
    """A broker, as a mapping of `_` for `.` says; every one has a listener of HTTP."""
    given = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory), "http.listeners": "http://127.0.0.1:0"}
    given |= {name.replace("_", "."): value for name, value in settings.items()}
    broker = Broker(load_config(settings=given), real_ports(asyncio.get_running_loop()), Lines(), sites=sites)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def add_user(broker: Broker, name: str, password: str) -> None:
    async with AdminClient(ClientSettings.read(None, {"bootstrap.servers": broker.address})) as client:
        change = ScramUpsertion(mechanism=ScramMechanism.SHA_256, password=password, salt=b"salt of " + name.encode())
        assert await client.alter_scram_users({name: change}) == {name: None}


def basic(name: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


@pytest.fixture
def far(monkeypatch):
    """Every peer counts as another machine."""
    monkeypatch.setattr(http_origin, "is_loopback", lambda _address: False)


def failures(broker: Broker) -> list[object]:
    return [line for line in broker.log.lines if line[0] in ("error", "critical", "exception")]


# Who may come in


async def test_beyond_loopback_every_route_wants_a_login(tmp_path, far):
    async with visited(tmp_path) as broker:
        (url,) = broker.http_addresses
        for path in (
            "/health/live",
            "/health/ready",
            "/metrics",
            "/",
            "/nothing",
            "/../etc/passwd",
            "/health/live?x=1",
            "//health/live",
        ):
            for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS"):
                async with Visitor(url) as visitor:
                    await visitor.send(f"{method} {path} HTTP/1.1\r\nHost: {visitor.host}\r\n\r\n".encode())
                    head = (await visitor.reader.readuntil(b"\r\n\r\n")).decode()
                    assert " 401 " in head.splitlines()[0], (method, path, head)
                    assert "WWW-Authenticate: Basic realm=" in head


@pytest.mark.parametrize(
    "given", ["", "Basic", "Basic !!!", "Basic Og==", "Bearer x", "basic " + "A" * 8000, basic("a", ""), basic("", "b")]
)
async def test_what_is_no_login_is_none(tmp_path, far, given):
    async with visited(tmp_path) as broker:
        answer = await visit(broker.http_addresses[0], PATH, Authorization=given)
        assert answer.status == 401
        assert not failures(broker)


async def test_a_login_opens_and_a_wrong_one_is_late_and_says_nothing(tmp_path, far):
    async with visited(tmp_path, connection_failed_authentication_delay_ms="300") as broker:
        (url,) = broker.http_addresses
        await add_user(broker, "alice", "wonder:land")
        assert (await visit(url, PATH, Authorization=basic("alice", "wonder:land"))).status == 200
        began_s = asyncio.get_running_loop().time()
        wrong = await visit(url, PATH, Authorization=basic("alice", "wonder"))
        assert asyncio.get_running_loop().time() - began_s >= 0.3
        unknown = await visit(url, PATH, Authorization=basic("nobody", "wonder"))
        assert wrong.status == unknown.status == 401
        assert wrong.body == unknown.body
        text = json.dumps(broker.log.lines, default=str)
        assert "wonder" not in text
        assert "land" not in text


async def test_a_password_that_was_changed_lets_no_one_in(tmp_path, far):
    """Also where the old one is remembered."""
    async with visited(tmp_path) as broker:
        (url,) = broker.http_addresses
        await add_user(broker, "alice", "old")
        assert (await visit(url, PATH, Authorization=basic("alice", "old"))).status == 200
        await add_user(broker, "alice", "new")
        assert (await visit(url, PATH, Authorization=basic("alice", "old"))).status == 401
        assert (await visit(url, PATH, Authorization=basic("alice", "new"))).status == 200


async def test_who_fails_too_often_is_not_looked_at(tmp_path, far, monkeypatch):
    monkeypatch.setattr(logins, "DELAY_MS_MIN", 0)
    async with visited(tmp_path, connection_failed_authentication_delay_ms="0") as broker:
        (url,) = broker.http_addresses
        statuses = []
        async with Visitor(url) as visitor:
            for number in range(failed_logins.FAILURE_BURST + 20):
                statuses.append((await visitor.ask(PATH, Authorization=basic("alice", f"guess{number}"))).status)
        assert statuses[: failed_logins.FAILURE_BURST] == [401] * failed_logins.FAILURE_BURST
        assert 429 in statuses
        other = Visitor(url, source="127.0.0.2")  # Another address isn't concerned.
        async with other as visitor:
            assert (await visitor.ask(PATH, Authorization=basic("alice", "x"))).status == 401


async def test_a_login_needs_describe_on_the_cluster(tmp_path, far):
    class Site:
        def add_to(self, app):
            app.router.add_get("/figures", self.figures)

        async def figures(self, _request):
            return http_app.web.Response(text=str(gate.visitor_of(_request).principal))

    rules = {"authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    async with visited(tmp_path, sites=[Site], super_users="User:root;User:ANONYMOUS", **rules) as broker:
        (url,) = broker.http_addresses
        await add_user(broker, "root", "secret")
        await add_user(broker, "alice", "secret")
        assert (await visit(url, "/figures", Authorization=basic("root", "secret"))).body == b"User:root"
        refused = await visit(url, "/figures", Authorization=basic("alice", "secret"))
        assert (refused.status, refused.body) == (403, b"User:alice needs DESCRIBE on the cluster\n")
        assert (await visit(url, PATH, Authorization=basic("alice", "secret"))).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9644", "127.0.0.1.evil.example", "", "localhost.", "[::1", "127.0.0.1@evil.example"],
)
async def test_this_machine_is_visited_by_its_own_names_only(tmp_path, host):
    """A name of another site that resolves to 127.0.0.1 (DNS rebinding) gets nothing."""
    async with visited(tmp_path) as broker:
        (url,) = broker.http_addresses
        assert (await visit(url, PATH, Host=host)).status in (400, 421)
        for name in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:9644"):
            assert (await visit(url, PATH, Host=name)).status == 200, broker.log.lines[-1]


async def test_a_proxy_on_this_machine_does_not_open_it_to_others(tmp_path):
    async with visited(tmp_path) as broker:
        for header in http_origin.PASSED_ON:
            assert (await visit(broker.http_addresses[0], PATH, **{header: "for=192.0.2.1"})).status == 401


FIGURES = "/figures"


class Figures:
    """A site that says who asks."""

    def add_to(self, app):
        app.router.add_get(FIGURES, self.figures)

    async def figures(self, request):
        visitor = gate.visitor_of(request)
        return http_app.web.Response(text=f"{visitor.principal} {visitor.client_address}")


async def test_a_proxy_on_this_machine_that_says_nothing_opens_health_alone(tmp_path):
    """The default: nginx adds no header, so requests that it forwards look like local ones."""
    async with visited(tmp_path, sites=[Figures]) as broker:
        (url,) = broker.http_addresses
        assert (await visit(url, PATH)).status == 200
        refused = await visit(url, FIGURES)
        assert refused.status == 401
        assert b"http.trust.local" in refused.body
        assert (await visit(url, "/nothing")).status == 401
        await add_user(broker, "alice", "secret")
        assert (await visit(url, FIGURES, Authorization=basic("alice", "secret"))).body == b"User:alice 127.0.0.1"


async def test_this_machine_is_trusted_where_the_configuration_says_so(tmp_path):
    async with visited(tmp_path, sites=[Figures], http_trust_local="true") as broker:
        (url,) = broker.http_addresses
        assert (await visit(url, FIGURES)).body == b"User:ANONYMOUS 127.0.0.1"
        assert (await visit(url, FIGURES, X_Forwarded_For="127.0.0.1")).status == 401


async def test_a_trusted_proxy_names_its_clients_and_is_never_this_machine(tmp_path):
    async with visited(tmp_path, sites=[Figures], http_trust_local="true", http_trusted_proxies="127.0.0.1") as broker:
        (url,) = broker.http_addresses
        assert (await visit(url, FIGURES)).status == 401
        await add_user(broker, "alice", "secret")
        login = {"Authorization": basic("alice", "secret")}
        assert (
            await visit(url, FIGURES, X_Forwarded_For="127.0.0.1, 192.0.2.7", **login)
        ).body == b"User:alice 192.0.2.7"
        async with Visitor(url) as proxy:
            flooded = {
                (await proxy.ask(FIGURES, X_Forwarded_For="198.51.100.1")).status
                for _ in range(http_visits.BURST + 200)
            }
        assert flooded == {401, 429}
        assert (await visit(url, FIGURES, X_Forwarded_For="192.0.2.7", **login)).status == 200


async def test_strangers_starve_neither_a_probe_nor_a_user(tmp_path, monkeypatch):
    """Whatever they ask, and however many connections they hold: health answers, and so do users who have logged in."""
    monkeypatch.setattr(http_visits, "CONNECTION_BURST", 1_000)
    async with visited(tmp_path, sites=[Figures]) as broker, AsyncExitStack() as stack:
        (url,) = broker.http_addresses
        await add_user(broker, "alice", "secret")
        login = {"Authorization": basic("alice", "secret")}
        assert (await visit(url, FIGURES, **login)).status == 200
        strangers = []
        for number in range(40):
            for _ in range(2):
                strangers.append(await stack.enter_async_context(Visitor(url, source=f"127.0.1.{number + 1}")))
        for _ in range(http_visits.ALL_BURST // 20):
            for stranger in strangers[: PLACES[VisitorKind.STRANGER]]:
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    await stranger.ask(FIGURES, X_Forwarded_For="203.0.113.9")
        for _ in range(30):
            assert (await visit(url, PATH)).status == 200
            assert (await visit(url, FIGURES, **login)).status == 200
        async with Visitor(url) as user:
            assert (await user.ask(PATH)).status == 200


async def test_pages_of_other_sites_get_nothing(tmp_path):
    async with visited(tmp_path) as broker:
        (url,) = broker.http_addresses
        fetched = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
        assert (await visit(url, PATH, **fetched)).status == 403
        followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert (await visit(url, PATH, **followed)).status == 200
        assert (await visit(url, PATH, **{"Sec-Fetch-Site": "same-origin"})).status == 200


# What they send


async def test_a_slow_head_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(http_connection, "HEAD_MS", 300)
    async with visited(tmp_path) as broker, AsyncExitStack() as stack:
        (url,) = broker.http_addresses
        slow = [await stack.enter_async_context(Visitor(url)) for _ in range(4)]
        await slow[0].send(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n")
        await slow[1].send(b"\r\n\r\n")
        await slow[2].send(b"G")
        for each in slow:
            assert b"200" not in await each.ended()
        assert (await visit(url, PATH)).status == 200
        assert broker.serving.http.visits.slow_count == 4


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: 1\r\n" % number for number in range(200)) + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000,
        b"A" * 200_000,
    ],
    ids=["line", "header", "headers", "endless", "no end"],
)
async def test_a_head_that_is_too_large_is_refused(tmp_path, head):
    async with visited(tmp_path) as broker:
        (url,) = broker.http_addresses
        async with Visitor(url) as visitor:
            await visitor.send(head)
            ended = await visitor.ended()
        assert not ended or ended.split()[1] in (b"400", b"431"), ended
        assert b"aaaa" not in ended
        assert (await visit(url, PATH)).status == 200
        assert not failures(broker)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /<script>alert(1)</script> HTTP/9.9\r\n\r\n",
        b"<script>alert(1)</script>\r\n\r\n",
        b"POST /health/live HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        (
            b"POST /health/live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: "
            b"chunked\r\n\r\n0\r\n\r\n"
        ),
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"\x00" * 100 + b"\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_not_repeated(tmp_path, sent):
    """Neither to a page, which could run it, nor into the log."""
    async with visited(tmp_path) as broker:
        (url,) = broker.http_addresses
        async with Visitor(url) as visitor:
            await visitor.send(sent)
            visitor.writer.write_eof()
            ended = await visitor.ended()
        assert not ended or int(ended.split()[1]) >= 400, ended
        assert b"script" not in ended
        assert not failures(broker)


async def test_a_body_is_bounded(tmp_path):
    async with visited(tmp_path) as broker:
        (url,) = broker.http_addresses
        async with Visitor(url) as visitor:
            await visitor.send(b"POST /health/live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n")
            assert (await visitor.answer()).status == 413
            await visitor.ended()


@pytest.mark.parametrize(
    "path",
    [
        "/../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/health/../../etc/passwd",
        "/\\..\\x",
        "/%00",
    ],
)
async def test_paths_lead_nowhere(tmp_path, path):
    async with visited(tmp_path, http_trust_local="true") as broker, Visitor(broker.http_addresses[0]) as visitor:
        answer = await visitor.ask(path)
        assert answer.status in (400, 404)
        assert b"root" not in answer.body


async def test_connections_are_bounded_and_silent_ones_give_way(tmp_path, monkeypatch):
    monkeypatch.setattr(http_visits, "SILENT_MS", 0)
    monkeypatch.setattr(http_visits, "CONNECTION_BURST", 1000)
    monkeypatch.setattr(http_visits, "ALL_CONNECTION_BURST", 1000)
    async with visited(tmp_path) as broker, AsyncExitStack() as stack:
        (url,) = broker.http_addresses
        visits = broker.serving.http.visits
        for number in range(6):
            for _ in range(20):
                await stack.enter_async_context(Visitor(url, source=f"127.0.0.{number + 2}"))
        assert (await visit(url, PATH)).status == 200
        assert visits.count <= PLACES[VisitorKind.STRANGER] + PLACES[VisitorKind.HERE]


async def test_too_many_requests_are_refused(tmp_path):
    async with visited(tmp_path) as broker, Visitor(broker.http_addresses[0]) as visitor:
        answers = [await visitor.ask(PATH) for _ in range(http_visits.BURST + 200)]
        assert all(each.status == 200 for each in answers[: http_visits.BURST])
        refused = [each for each in answers if each.status == 429]
        assert refused
        assert refused[0].headers["retry-after"] == "1"
        async with Visitor(broker.http_addresses[0], source="127.0.0.2") as other:  # Another address isn't concerned.
            assert (await other.ask(PATH)).status == 200


async def test_a_handler_that_hangs_or_fails_costs_its_request(tmp_path, monkeypatch):
    monkeypatch.setattr(http_app, "REQUEST_S", 0.2)

    class Site:
        def add_to(self, app):
            app.router.add_get("/hangs", self.hangs)
            app.router.add_get("/fails", self.fails)

        async def hangs(self, _request):
            await asyncio.Event().wait()

        async def fails(self, _request):
            raise ValueError("a secret of the broker")

    async with visited(tmp_path, sites=[Site], http_trust_local="true") as broker:
        (url,) = broker.http_addresses
        assert (await visit(url, "/hangs")).status == 504
        failed = await visit(url, "/fails")
        assert failed.status == 500
        assert b"secret" not in failed.body
        assert len(failures(broker)) == 1
        assert (await visit(url, PATH)).status == 200


async def test_a_reader_that_reads_nothing_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(http_connection, "UNREAD_MS", 200)
    ended = asyncio.Event()

    class Site:
        def add_to(self, app):
            app.router.add_get("/endless", self.endless)

        @http_app.lives_long
        async def endless(self, request):
            response = http_app.web.StreamResponse()
            await response.prepare(request)
            try:
                while True:
                    await response.write(bytes(65536))
            finally:
                ended.set()

    async with (
        visited(tmp_path, sites=[Site], http_trust_local="true") as broker,
        Visitor(broker.http_addresses[0]) as visitor,
    ):
        transport: Any = visitor.writer.transport
        transport.pause_reading()
        await visitor.send(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(30):
            await ended.wait()
        assert not failures(broker)


# HTTPS


async def test_https_shows_the_certificate_in_force(tmp_path):
    """And a renewed one to the next connection."""
    authority = trustme.CA()
    issue(authority, tmp_path)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    settings = {
        "http_listeners": "https://127.0.0.1:0",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": str(tmp_path / "server.pem"),
        "lowtide_tls_reload_interval_ms": "100",
    }
    async with visited(tmp_path / "log", **settings) as broker:
        (url,) = broker.http_addresses

        async def serial() -> str:
            async with Visitor(url, tls=trust) as visitor:
                assert (await visitor.ask(PATH)).status == 200
                assert (await visitor.ask(PATH)).status == 200
                return visitor.writer.get_extra_info("peercert")["serialNumber"]

        before = await serial()
        issue(authority, tmp_path)
        async with asyncio.timeout(30):
            while await serial() == before:
                await asyncio.sleep(0.1)
        async with Visitor(url) as plain:  # What is no handshake is cut off.
            await plain.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP" not in await plain.ended()
        assert not failures(broker)


async def test_a_certificate_is_a_login(tmp_path, far):
    authority = trustme.CA()
    issue(authority, tmp_path)
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    settings = {
        "http_listeners": "https://127.0.0.1:0",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": str(tmp_path / "server.pem"),
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": str(tmp_path / "ca.pem"),
        "listener_name_https_ssl_client_auth": "requested",
    }
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    async with visited(tmp_path / "log", **settings) as broker:
        (url,) = broker.http_addresses
        async with Visitor(url, tls=trust) as visitor:
            assert (await visitor.ask(PATH)).status == 401
        authority.issue_cert("alice@example.org", common_name="alice").configure_cert(trust)
        async with Visitor(url, tls=trust) as visitor:
            assert (await visitor.ask(PATH)).status == 200
