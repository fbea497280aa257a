"""The limits of a listener of HTTP, without a socket: rates, places, phases."""

from __future__ import annotations

import asyncio

import pytest

from lowtide.broker.lifecycle.local_cluster import http_listeners_of
from lowtide.runtime import http_visits
from lowtide.runtime.http_connection import HEAD_BYTES_MAX, HEAD_MS, IDLE_MS, ConnectionPhase, HttpConnection
from lowtide.runtime.http_origin import Proxies
from lowtide.runtime.http_visits import PLACES, KnownVisitors, Rate, Rates, VisitorKind, Visits
from lowtide.runtime.tasks import TaskRegistry


class Clock:
    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms


class Socket:
    def __init__(self, address: str) -> None:
        self.address = address
        self.written = b""
        self.is_ended = False
        self.is_paused = False

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return self.address, 1

    def abort(self) -> None:
        self.is_ended = True

    close = abort

    def is_closing(self) -> bool:
        return self.is_ended

    def pause_reading(self) -> None:
        self.is_paused = True

    def write(self, data: bytes) -> None:
        self.written += data


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.visits = Visits(self.clock, TaskRegistry(lambda *_: None), lambda: None, Proxies(["10.0.0.0/8"]))

    def connect(self, address: str = "192.0.2.1") -> tuple[HttpConnection, Socket]:
        connection, socket = HttpConnection(self.visits), Socket(address)
        connection.connection_made(socket)
        return connection, socket

    def later(self, passed_ms: int) -> None:
        self.clock.now_ms += passed_ms
        self.visits.end_slow()


def test_a_rate_has_a_burst_and_fills_again():
    rate = Rate(0, 10, 3)
    assert [rate.take(0) for _ in range(4)] == [True, True, True, False]
    assert [rate.take(100), rate.take(100)] == [True, False]
    assert [rate.take(100_000) for _ in range(4)] == [True, True, True, False]


def test_visitors_have_rates_of_their_own_and_one_together():
    rates = Rates(0, (1, 2), (1, 3))
    assert [rates.take("a", 0), rates.take("a", 0), rates.take("a", 0)] == [True, True, False]
    assert [rates.take("b", 0), rates.take("b", 0)] == [True, False]


def test_rates_of_many_addresses_are_bounded():
    rates = Rates(0, (1, 1), (1_000_000, 1_000_000))
    for number in range(5_000):
        rates.take(f"10.0.{number}", 0)
    assert len(rates._by_visitor) == 1024


async def test_each_kind_of_visitor_has_places_of_its_own():
    """Strangers that take all of theirs keep out neither this machine, nor proxies, nor who has logged in."""
    world = World()
    world.visits.on_login("192.0.2.1")
    for number in range(PLACES[VisitorKind.STRANGER]):
        world.connect(f"198.51.100.{number}")[0].on_request()
        world.clock.now_ms += 50
    assert world.connect("198.51.100.250")[1].is_ended
    for address, kind in {
        "127.0.0.1": VisitorKind.HERE,
        "::1": VisitorKind.HERE,
        "10.1.2.3": VisitorKind.PROXY,
        "192.0.2.1": VisitorKind.KNOWN,
    }.items():
        connection, socket = world.connect(address)
        assert (connection.kind, socket.is_ended) == (kind, False)
    assert world.connect("127.0.0.2")[0].kind is VisitorKind.STRANGER


async def test_a_visitor_with_many_connections_gives_way_to_one_with_few():
    world = World()
    many = [world.connect(f"198.51.100.{number % 2}") for number in range(PLACES[VisitorKind.STRANGER])]
    for connection, _ in many:
        connection.data_received(b"G")
    _newcomer, socket = world.connect("198.51.100.7")
    assert not socket.is_ended
    assert [each.is_ended for _, each in many].count(True) == 1
    assert world.visits.count == PLACES[VisitorKind.STRANGER]


async def test_a_stranger_that_logs_in_is_one_no_more():
    world = World()
    connection, _ = world.connect("192.0.2.1")
    assert connection.kind is VisitorKind.STRANGER
    world.visits.on_login(connection.visitor)
    assert connection.kind is VisitorKind.KNOWN
    world.clock.now_ms += http_visits.KNOWN_MS
    assert world.visits.kind_of("192.0.2.1") is VisitorKind.STRANGER


def test_probes_and_those_who_have_logged_in_have_rates_of_their_own():
    world = World()
    assert [world.visits.admits_request("a", is_probe=False) for _ in range(http_visits.BURST + 1)][-1] is False
    assert world.visits.admits_request("a", is_probe=True)
    for number in range(100):
        for _ in range(http_visits.BURST + 1):
            world.visits.admits_request(f"stranger {number}", is_probe=False)
    assert world.visits.admits_login("User:alice")
    assert [world.visits.admits_login("User:mallory") for _ in range(http_visits.BURST + 1)][-1] is False
    assert world.visits.admits_login("User:alice")


def test_visitors_that_are_known_are_bounded():
    known = KnownVisitors()
    for number in range(2_000):
        known.add(f"10.0.{number}", 0)
    assert (known.has("10.0.1", 0), known.has("10.0.1999", 0)) == (False, True)


async def test_places_of_an_address_are_bounded_and_come_free():
    world = World()
    made = [world.connect() for _ in range(http_visits.ADDRESS_CONNECTIONS_MAX)]
    assert world.connect()[1].is_ended
    made[0][0].connection_lost(None)
    assert not world.connect()[1].is_ended
    assert world.visits.refused_count == 1


async def test_new_connections_are_paced():
    world = World()
    ended = []
    for _ in range(http_visits.CONNECTION_BURST + 5):
        connection, socket = world.connect()
        ended.append(socket.is_ended)
        connection.connection_lost(None)
    assert ended == [False] * http_visits.CONNECTION_BURST + [True] * 5


async def test_the_one_that_is_silent_for_longest_gives_way():
    world = World()
    made = []
    for number in range(PLACES[VisitorKind.STRANGER]):
        made.append(world.connect(f"192.0.2.{number}"))
        world.clock.now_ms += 50
    made[0][0].on_request()
    assert not world.connect("198.51.100.1")[1].is_ended
    assert [socket.is_ended for _, socket in made[:3]] == [False, True, False]
    assert world.visits.count == PLACES[VisitorKind.STRANGER]


async def test_where_all_are_busy_a_new_one_finds_no_place():
    world = World()
    for number in range(PLACES[VisitorKind.STRANGER]):
        world.connect(f"192.0.2.{number}")[0].on_request()
        world.clock.now_ms += 50
    world.clock.now_ms += 60_000
    assert world.connect("198.51.100.1")[1].is_ended


@pytest.mark.parametrize(
    "sent", [b"", b"\r\n", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n\r\n"], ids=["nothing", "blank", "half", "whole"]
)
async def test_a_connection_without_a_request_is_ended_in_time(sent):
    """Also one whose head looks whole, and to aiohttp isn't."""
    world = World()
    world.visits.serve(lambda _connection: asyncio.Protocol())
    connection, socket = world.connect()
    if sent:
        connection.data_received(sent)
    world.later(HEAD_MS)
    assert not socket.is_ended
    world.later(1)
    assert socket.is_ended
    assert world.visits.slow_count == 1


async def test_the_first_visitor_waits_as_long_as_the_import_takes():
    world = World()
    connection, socket = world.connect()
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    world.later(10 * HEAD_MS)
    assert not socket.is_ended


async def test_a_slow_head_has_no_more_time_for_coming_in_pieces():
    world = World()
    connection, socket = world.connect()
    for _ in range(11):
        connection.data_received(b"a")
        world.later(HEAD_MS // 10)
    assert socket.is_ended


async def test_a_kept_connection_may_be_idle_for_longer():
    world = World()
    connection, socket = world.connect()
    connection.on_request()
    world.later(10 * IDLE_MS)  # Its handler has a limit of its own.
    connection.on_answered()
    world.later(IDLE_MS)
    assert not socket.is_ended
    world.later(1)
    assert socket.is_ended


async def test_a_head_in_pieces_is_counted_to_its_end():
    world = World()
    connection, socket = world.connect()
    for piece in (b"GET / HTTP/1.1\r\n", b"X: y\r\n\r", b"\n"):
        assert connection.phase in (ConnectionPhase.IDLE, ConnectionPhase.HEAD)
        connection.data_received(piece)
    assert connection.phase is ConnectionPhase.WHOLE
    other, socket = world.connect()
    other.data_received(b"x" * HEAD_BYTES_MAX)
    assert not socket.is_ended
    other.data_received(b"x")
    assert socket.is_ended
    assert socket.written.startswith(b"HTTP/1.1 431 ")


async def test_what_arrives_before_there_is_an_answer_is_bounded_and_handed_on():
    world = World()
    connection, socket = world.connect()
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    connection.data_received(b"b" * HEAD_BYTES_MAX)
    assert socket.is_paused
    got: list[bytes] = []

    class Handler(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            got.append(data)

    socket.resume_reading = lambda: got.append(b"resumed")  # type: ignore[attr-defined]
    world.visits.serve(lambda _connection: Handler())
    assert got == [b"GET / HTTP/1.1\r\n\r\n" + b"b" * HEAD_BYTES_MAX, b"resumed"]


def test_several_brokers_of_one_process_have_ports_that_follow():
    given = "http://127.0.0.1:9644, https://[::1]:0"
    assert http_listeners_of(given, 2) == "http://127.0.0.1:9646,https://[::1]:0"
    assert http_listeners_of("", 2) == ""
    assert http_listeners_of("nonsense", 1) == "nonsense"
