"""`lowtide console` for other machines: who reaches it, through which proxies, with TLS, and its cookie."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from lowtide.admin.settings import ClientSettings
from lowtide.cli.console_server import CertificateFiles, ConsoleServer, Entrance
from lowtide.console.own_users import OwnUsers, Role, line_of, new_user
from lowtide.console.settings import ConsoleSettings, LoginKind
from lowtide.runtime.failed_logins import FAILURE_BURST
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.http_origin import Proxies
from tests.http_visitor import Answer, Visitor

OWN = {"X_Lowtide_Console": "1", "Content_Type": "application/json", "Sec_Fetch_Site": "same-origin"}
CERTIFICATES = Path(__file__).parent / "certificates"
EVERYWHERE = "0.0.0.0"
PROXY = "127.0.0.2"
"""An address of this machine from which a visitor connects as a proxy does."""


class NoClient:
    """The cluster is not asked for anything here."""

    def __init__(self, settings: object) -> None:
        pass

    async def close(self) -> None:
        pass


def settings(*, write: bool = False) -> ConsoleSettings:
    """A console with the users alice, who may write, and bob, who may not."""
    files, random = MemoryFileSystem(), Random(1)
    lines = [
        line_of(name, new_user(role, "right", random, iterations=1))
        for name, role in (("alice", Role.WRITE), ("bob", Role.READ))
    ]
    files.write_bytes("/users", "\n".join(lines).encode())
    return ConsoleSettings(
        client=ClientSettings.of({"bootstrap.servers": "127.0.0.1:1"}),
        login=LoginKind.USERS,
        users=OwnUsers(files, "/users", print),
        mechanisms=(),
        write=write,
        make_client=NoClient,
    )


@asynccontextmanager
async def visiting(
    entrance: Entrance, source: str | None = None, tls: ssl.SSLContext | None = None, *, write: bool = False
) -> AsyncIterator[Visitor]:
    server = ConsoleServer(settings(write=write), entrance)
    url = (await server.listen(0)).partition("/console/")[0]
    try:
        async with Visitor(url, tls, source) as visitor:
            yield visitor
    finally:
        await server.close()


async def log_in(visitor: Visitor, user: str = "alice", password: str = "right", **headers: str) -> Answer:
    body = json.dumps({"user": user, "password": password}).encode()
    return await visitor.ask("/console/api/login", "POST", body, **OWN | headers)


async def test_without_other_machines_and_proxies_only_this_machine_is_answered():
    async with visiting(Entrance()) as visitor:
        assert (await visitor.ask("/console/")).status == 200
        assert (await visitor.ask("/console/", Host="console.example")).status == 421
        assert (await visitor.ask("/console/", X_Forwarded_For="192.0.2.1")).status == 421


async def test_other_machines_come_by_any_name_and_need_a_login():
    async with visiting(Entrance(host=EVERYWHERE)) as visitor:
        for path in ("/", "/console", "/console/", "/console/js/app.js", "/console/api/session", "/health/live"):
            assert (await visitor.ask(path, Host="console.example")).status in (200, 302), path
        for path in ("view/cluster", "events?views=%5B%5B%22cluster%22,%7B%7D%5D%5D"):
            assert (await visitor.ask(f"/console/api/{path}", Host="console.example", **OWN)).status == 401
        answer = await log_in(visitor, Host="console.example", Origin="http://console.example")
        assert answer.status == 200
        assert "Secure" not in answer.headers["set-cookie"]


async def test_pages_of_other_sites_can_do_nothing():
    async with visiting(Entrance(host=EVERYWHERE)) as visitor:
        refused = [
            {"Sec_Fetch_Site": "cross-site"},
            {"Sec_Fetch_Site": "same-site"},
            {"Origin": "https://elsewhere.example"},
            {"X_Lowtide_Console": "0"},
            {"Content_Type": "text/plain"},
        ]
        for headers in refused:
            assert (await log_in(visitor, **headers)).status == 403, headers


async def test_the_cookie_is_for_encrypted_connections_where_the_browser_has_one():
    """TLS may end at a proxy; the browser's Origin says what it speaks."""
    entrance = Entrance(host=EVERYWHERE, proxies=Proxies([PROXY]))
    async with visiting(entrance, PROXY) as visitor:
        answer = await log_in(visitor, Host="console.example", Origin="https://console.example")
        cookie = answer.headers["set-cookie"]
        for word in ("Secure", "HttpOnly", "SameSite=Strict", "Path=/console"):
            assert word in cookie


async def test_a_trusted_proxy_on_this_machine_reaches_a_console_for_this_machine():
    async with visiting(Entrance(proxies=Proxies([PROXY])), PROXY) as visitor:
        assert (await log_in(visitor, Host="console.example", X_Forwarded_For="192.0.2.1")).status == 200


async def test_failed_logins_count_for_the_visitor_behind_the_proxy():
    async with visiting(Entrance(proxies=Proxies([PROXY])), PROXY) as visitor:
        behind = {"Host": "console.example", "X_Forwarded_For": "203.0.113.9, 192.0.2.1"}
        for _ in range(FAILURE_BURST):
            assert (await log_in(visitor, password="wrong", **behind)).status == 401
        assert (await log_in(visitor, **behind)).status == 429
        assert (await log_in(visitor, **behind | {"X_Forwarded_For": "198.51.100.7"})).status == 200


async def test_others_cannot_claim_an_address_of_a_visitor():
    """Only a trusted proxy is believed."""
    async with visiting(Entrance(host=EVERYWHERE)) as visitor:
        for number in range(FAILURE_BURST):
            await log_in(visitor, password="wrong", X_Forwarded_For=f"192.0.2.{number}")
        assert (await log_in(visitor, X_Forwarded_For="198.51.100.7")).status == 429


@pytest.mark.parametrize(("user", "write", "says"), [("bob", True, "role read"), ("alice", False, "read-only")])
async def test_changes_need_the_role_and_a_console_that_may_write(user: str, write: bool, says: str):
    async with visiting(Entrance(host=EVERYWHERE), write=write) as visitor:
        cookie = (await log_in(visitor, user)).headers["set-cookie"].partition(";")[0]
        session = json.loads((await visitor.ask("/console/api/session", Cookie=cookie, **OWN)).body)
        assert (session["user"], session["write"], session["login"]) == (user, False, "users")
        answer = await visitor.ask("/console/api/delete", "POST", b'{"plan":"x"}', Cookie=cookie, **OWN)
        assert answer.status == 403
        assert says in answer.body.decode()


async def test_its_own_tls():
    both = CertificateFiles(str(CERTIFICATES / "certificate.pem"), str(CERTIFICATES / "key.pem"))
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "certificate.pem"))
    context.check_hostname = False
    async with visiting(Entrance(tls=both.context), tls=context) as visitor:
        assert (await visitor.ask("/health/live")).body == b'{"live": true}'
        assert "Secure" in (await log_in(visitor)).headers["set-cookie"]
