"""TLS between a socket and a connection: unsent bytes wait, and nothing is lost or out of order."""

from __future__ import annotations

import asyncio
import random
import ssl
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from lowtide.broker.network.connection.tls_connection import PIECE_BYTES, ListenerTls, TlsConnection
from lowtide.broker.security.principal import ANONYMOUS

RECORD_OVERHEAD = 64
"""More than a record of TLS, of 16 KiB at most, has besides what it carries."""


class Socket:
    """A transport with limited room that pauses its protocol as soon as bytes are left, as uvloop does."""

    def __init__(self) -> None:
        self.room = 1 << 40
        self.sent = bytearray()
        self.waiting = bytearray()
        self.closed = False
        self.reads = True
        self.protocol: Any = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes) -> None:
        was_empty = not self.waiting
        self.waiting += data
        self._take()
        if was_empty and self.waiting:
            self.protocol.pause_writing()

    def make_room(self, room: int) -> None:
        self.room = room
        was_full = bool(self.waiting)
        self._take()
        if was_full and not self.waiting:
            self.protocol.resume_writing()

    def _take(self) -> None:
        taken = self.waiting[: self.room]
        self.room -= len(taken)
        self.sent += taken
        del self.waiting[: len(taken)]

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        self.closed = True


class Inner:
    """The connection: it writes, and is paused."""

    def __init__(self) -> None:
        self.closed = False
        self.paused = False
        self.principal: Any = None
        self.received = bytearray()
        self._buffer = memoryview(bytearray(1 << 16))

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, _: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self.received += self._buffer[:count]

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False


class Turns:
    """The queue of handshakes: at once, or when the test says so."""

    def __init__(self) -> None:
        self.holds = False
        self.waiting: list[TlsConnection] = []

    def enter(self, connection: TlsConnection) -> None:
        self.waiting.append(connection)
        if not self.holds:
            self.give()

    def give(self) -> None:
        self.waiting.pop(0).take_turn()

    def leave(self, connection: TlsConnection) -> None:
        self.waiting = [each for each in self.waiting if each is not connection]


class World:
    """A connection with TLS whose handshake is done, and its client."""

    def __init__(self, *, holds: bool = False) -> None:
        authority = trustme.CA()
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority.issue_cert("localhost").configure_cert(server)
        authority.configure_trust(client)
        self.socket, self.inner = Socket(), Inner()
        self.turns = Turns()
        host: Any = SimpleNamespace(
            logins={},
            cipher_scratch=memoryview(bytearray(1 << 18)),
            on_login=lambda _connection, _reason: None,
            handshakes=self.turns,
        )
        inner: Any = self.inner
        self.tls = TlsConnection(host, inner, ListenerTls(lambda: server, lambda _: ANONYMOUS), identifies=True)
        self._host = host
        self._to_client, self._from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._client = client.wrap_bio(self._to_client, self._from_client, server_hostname="localhost")
        self._seen = 0
        socket: Any = self.socket
        self.socket.protocol = self.tls
        self.tls.connection_made(socket)
        self.turns.holds = holds
        for _ in range(3):
            self.shake()

    def shake(self) -> None:
        """Go on with the handshake, as far as the client can."""
        try:
            self._client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        self.exchange()

    def exchange(self) -> None:
        """Carry what is on the way, in both directions."""
        data = self._from_client.read()
        if data:
            self._host.cipher_scratch[: len(data)] = data
            self.tls.buffer_updated(len(data))
        self._to_client.write(bytes(self.socket.sent[self._seen :]))
        self._seen = len(self.socket.sent)

    def read(self) -> bytes:
        """What the client can decrypt by now."""
        self.exchange()
        found = bytearray()
        try:
            while more := self._client.read(1 << 20):
                found += more
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        return bytes(found)


@pytest.fixture
def world() -> World:
    return World()


def test_a_full_socket_costs_a_piece(world: World) -> None:
    """What it hasn't taken isn't encrypted yet, is counted, and pauses the connection until all of it is sent."""
    data = random.Random(1).randbytes(1 << 20)
    world.socket.room = 1000
    world.tls.writelines([b"head", memoryview(data)])
    assert world.inner.paused
    assert len(world.socket.waiting) <= PIECE_BYTES + PIECE_BYTES // 16384 * RECORD_OVERHEAD
    assert world.tls.get_write_buffer_size() == pytest.approx(len(data), abs=PIECE_BYTES)
    resumed = 0
    while world.inner.paused:
        world.socket.make_room(50_000)
        resumed += 1
    assert resumed > len(data) // 50_000
    assert world.tls.get_write_buffer_size() == 0
    assert world.read() == b"head" + data


@pytest.mark.parametrize("seed", range(5))
def test_parts_of_any_size_stay_in_order(world: World, seed: int) -> None:
    chance = random.Random(seed)
    whole = bytearray()
    for _ in range(40):
        parts = [
            chance.randbytes(chance.choice((0, 3, 500, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 300_000)))
            for _ in range(3)
        ]
        world.socket.room = chance.randrange(200_000)
        world.tls.writelines([memoryview(part) for part in parts])
        whole += b"".join(parts)
        while world.inner.paused:
            world.socket.make_room(chance.randrange(400_000))
    assert world.read() == bytes(whole)


def test_a_close_sends_what_was_written(world: World) -> None:
    data = random.Random(2).randbytes(500_000)
    world.socket.room = 0
    world.tls.write(data)
    world.tls.close()
    assert world.socket.closed
    world.socket.sent += world.socket.waiting
    assert world.read() == data


def test_a_handshake_waits_for_its_turn() -> None:
    """It costs nothing until then, and its client isn't read from."""
    world = World(holds=True)
    assert world.turns.waiting == [world.tls]
    assert not world.socket.reads
    assert not world.socket.sent
    world.turns.give()
    assert world.socket.reads
    assert world.socket.sent
    world.shake()
    world.shake()
    world.turns.give()
    assert world.socket.reads
    world.tls.write(b"data")
    assert world.read() == b"data"


def test_a_handshake_that_is_lost_waits_no_more() -> None:
    world = World(holds=True)
    world.inner.connection_lost = lambda _: None  # type: ignore[attr-defined]
    world.tls.connection_lost(None)
    assert world.turns.waiting == []


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (
            bytes.fromhex("0000003600120003000000010007"),
            ": it speaks Kafka's protocol without TLS: clients of this listener need security.protocol=SSL",
        ),
        (
            b"GET / HTTP/1.1\r\n\r\n",
            ": it speaks HTTP, and this is a listener for Kafka's clients, with TLS: HTTP is served at http.listeners",
        ),
        (bytes(20), "TLS: wrong version number"),
    ],
)
def test_what_speaks_no_tls_is_named_where_it_is_known(sent: bytes, expected: str) -> None:
    """In the log of closed connections and in that of logins, for the one who looks for a wrong security.protocol."""
    world = World(holds=True)
    refused: list[str] = []
    world._host.on_login = lambda _connection, reason: refused.append(reason)
    world.inner.refuse = refused.append  # type: ignore[attr-defined]
    world.turns.waiting.clear()
    fresh = TlsConnection(world._host, world.inner, world.tls._settings, identifies=True)
    fresh.connection_made(world.socket)
    for piece in (sent[:3], sent[3:]):
        world._host.cipher_scratch[: len(piece)] = piece
        fresh.buffer_updated(len(piece))
        world.turns.give()
    assert len(refused) == 2
    assert all(reason.startswith("TLS: ") and reason.endswith(expected) for reason in refused), refused


def test_nothing_is_kept_of_a_lost_connection(world: World) -> None:
    world.socket.room = 0
    world.tls.write(bytes(1 << 20))
    world.inner.connection_lost = lambda _: None  # type: ignore[attr-defined]
    world.tls.connection_lost(None)
    assert world.tls.get_write_buffer_size() == 0
    world.tls.write(b"more")
    assert isinstance(world.tls, asyncio.BufferedProtocol)
