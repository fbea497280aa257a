"""The HTTP listener of real brokers: where it listens, and that it costs nothing until it is used."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lowtide.broker.config.broker_config import Setting, load_config
from lowtide.broker.config.http_listeners import (
    DEFAULT_HTTP_LISTENERS,
    HTTP_LISTENERS,
    SERVE_DEFAULT,
    TRUST_LOCAL,
    TRUSTED_PROXIES,
)
from lowtide.broker.http import service
from lowtide.broker.lifecycle.broker import Broker
from lowtide.broker.lifecycle.local_cluster import LocalCluster
from lowtide.broker.lifecycle.ports import real_ports
from tests.chaos.serving import ServeProcess, run_to_end, serve_command
from tests.http_visitor import Visitor, visit


class Lines:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, object]]] = []

    def __getattr__(self, level: str):
        return lambda event, **fields: self.lines.append((level, event, fields))


@asynccontextmanager
async def broker_of(directory: Path, log: Lines, **given: Setting) -> AsyncIterator[Broker]:
    own = {"listeners": Setting("PLAINTEXT://127.0.0.1:0", "test"), "log.dirs": Setting(str(directory), "test")}
    broker = Broker(load_config(given=own | given), real_ports(asyncio.get_running_loop()), log)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@pytest.fixture
def taken_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


async def test_health_is_served(tmp_path):
    async with broker_of(
        tmp_path,
        Lines(),
        **{HTTP_LISTENERS: Setting("http://127.0.0.1:0", "test"), TRUST_LOCAL: Setting("true", "test")},
    ) as broker:
        (url,) = broker.http_addresses
        async with Visitor(url) as visitor:
            for _ in range(2):  # Also by a connection that is kept.
                answer = await visitor.ask("/health/live")
                assert (answer.status, json.loads(answer.body)) == (200, {"live": True})
                assert answer.headers["x-content-type-options"] == "nosniff"
            assert (await visitor.ask("/nothing")).status == 404
            assert (await visitor.ask("/health/live", "DELETE")).status == 405


async def test_a_default_port_that_is_taken_costs_one_line(tmp_path, taken_port):
    log = Lines()
    async with broker_of(
        tmp_path, log, **{HTTP_LISTENERS: Setting(f"http://127.0.0.1:{taken_port}", SERVE_DEFAULT)}
    ) as broker:
        assert broker.http_addresses == ()
    (line,) = [line for line in log.lines if line[0] == "warning"]
    assert line[1:] == (
        "no listener of HTTP",
        {
            "address": f"http://127.0.0.1:{taken_port}",
            "reason": "address already in use",
            "remedy": "set http.listeners to another address, or to nothing",
        },
    )


async def test_a_listener_in_the_clear_names_the_proxies_to_list(tmp_path, monkeypatch):
    """A proxy on this machine alone is no remedy: what it passes on looks like a request of this machine."""
    monkeypatch.setattr(service, "beyond_loopback", lambda listeners: [each.text for each in listeners])
    log = Lines()
    async with broker_of(tmp_path, log, **{HTTP_LISTENERS: Setting("http://127.0.0.1:0", "test")}):
        pass
    (line,) = [line for line in log.lines if line[0] == "warning"]
    assert TRUSTED_PROXIES in str(line[2]["remedy"])


def test_a_configured_port_that_is_taken_stops_the_start(tmp_path, taken_port):
    ended = run_to_end(serve_command(tmp_path, f"http.listeners=http://127.0.0.1:{taken_port}"))
    assert ended.returncode == 2
    assert ended.stderr.endswith(
        f"lowtide serve: http.listeners=http://127.0.0.1:{taken_port} is not possible: address already in use.\n"
    )


async def test_a_process_names_where_it_listens(tmp_path):
    async with ServeProcess(tmp_path, "http.listeners=http://127.0.0.1:0,http://localhost:0") as broker:
        (ready,) = [line for line in broker.lines if line["event"] == "ready"]
        assert len(ready["http"]) == 2
        for url in ready["http"]:
            assert (await visit(url, "/health/live")).status == 200
        assert not broker.faults
        assert await broker.terminate() == 0


async def test_only_serve_has_a_default():
    """And that isn't asked for by tests: they listen on no fixed port."""
    assert load_config().http_listeners == ()
    assert load_config(given={HTTP_LISTENERS: Setting("", "test")}).http_listeners == ()
    (default,) = load_config(given={HTTP_LISTENERS: Setting(DEFAULT_HTTP_LISTENERS, SERVE_DEFAULT)}).http_listeners
    assert default.text == "http://127.0.0.1:9644"


async def test_brokers_of_one_process_listen_nowhere_by_themselves(tmp_path):
    own = {
        "listeners": Setting("PLAINTEXT://127.0.0.1:0", "test"),
        "log.dirs": Setting(str(tmp_path), "test"),
        "node.id": Setting("1", "test"),
    }
    cluster = LocalCluster([own], None, lambda _: Lines())
    await cluster.start()
    try:
        assert cluster.brokers[1].http_addresses == ()
    finally:
        await cluster.stop()


def test_nothing_of_it_is_imported_by_a_broker_that_is_not_visited():
    program = (
        "import sys, lowtide.cli.serve, lowtide.broker.lifecycle.running; "
        "print([name for name in sys.modules if name.startswith(('aiohttp', 'prometheus'))])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
