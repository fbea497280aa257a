"""HTTPS on the loop that a broker has.

Handshakes end well though the client's first message is there when it is accepted.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from typing import Any

import pytest
import trustme
import uvloop
from aiohttp import web

from lowtide.runtime.clock import SystemClock
from lowtide.runtime.http_server import HttpServer
from lowtide.runtime.http_visits import CONNECTION_BURST
from lowtide.runtime.tasks import TaskRegistry

HOST = "localhost"
LIMIT_S = 8
"""Less than a handshake may take."""
AUTHORITY = trustme.CA()


class OpenGate:
    async def passed(self, _request: web.Request) -> web.StreamResponse | str:
        return ""


def context() -> ssl.SSLContext:
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert(HOST).configure_cert(made)
    return made


def visit(port: int, count: int) -> list[bytes]:
    """The first line of an answer to each of so many connections in turn; empty where the connection ended instead."""
    trust = ssl.create_default_context()
    AUTHORITY.configure_trust(trust)
    found = []
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as plain:
            try:
                with trust.wrap_socket(plain, server_hostname=HOST) as secure:
                    secure.sendall(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    found.append(secure.recv(4096).partition(b"\r\n")[0])
            except OSError as error:
                found.append(repr(error).encode())
    return found


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_every_handshake_ends_well(make_loop: Any) -> None:
    failures: list[str] = []

    async def scenario() -> list[bytes]:
        tasks = TaskRegistry(lambda name, error: failures.append(f"{name}: {error}"))
        server = HttpServer(OpenGate, [], SystemClock(), tasks, None)
        port = await server.listen("127.0.0.1", 0, context)
        answers: list[bytes] = []
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def work() -> None:
            answers.extend(visit(port, CONNECTION_BURST - 10))
            loop.call_soon_threadsafe(ended.set)

        thread = threading.Thread(target=work)
        thread.start()
        await ended.wait()
        thread.join()
        await server.close()
        assert server.visits.count == 0
        await tasks.cancel_all()
        return answers

    with asyncio.Runner(loop_factory=make_loop) as runner:
        answers = runner.run(scenario())
    assert answers == [b"HTTP/1.1 404 Not Found"] * (CONNECTION_BURST - 10)
    assert failures == []


def test_who_does_not_shake_hands_holds_a_place_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is no TLS, and who has gone."""
    monkeypatch.setattr("lowtide.runtime.http_server.HEAD_MS", 200)

    async def scenario() -> None:
        tasks = TaskRegistry(lambda name, error: pytest.fail(f"{name}: {error}"))
        server = HttpServer(OpenGate, [], SystemClock(), tasks, None)
        port = await server.listen("127.0.0.1", 0, context)
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        clients[1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        clients[2].close()
        for client in clients[:2]:
            client.setblocking(False)
            while True:
                try:
                    if not client.recv(4096):
                        break
                except BlockingIOError:
                    await asyncio.sleep(0.01)
                except ConnectionError:
                    break
            client.close()
        while server.visits.count:
            await asyncio.sleep(0.01)
        await server.close()
        await tasks.cancel_all()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
