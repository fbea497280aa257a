"""Which connections are admitted, and which are closed for others."""

from __future__ import annotations

import pytest

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.config.key import ConfigError
from lowtide.broker.config.listeners import OVERRIDES, PER_IP, parse_overrides
from lowtide.broker.descriptors import DESCRIPTORS_MIN, share_out
from lowtide.broker.network.admission.admission import (
    IDLE_MS,
    LOGIN_MS,
    LOGINS_MIN,
    SILENT_MS,
    Admission,
    Admitted,
    ConnectionLimits,
)


class Client:
    """A connection."""

    def __init__(self, world: World, name: str, *, listener: str, address: str) -> None:
        self._world = world
        self.name = name
        self.listener_name = listener
        self.client_address = address
        self.last_active_ms = world.now_ms - 1
        self.connected_ms = world.now_ms
        self.closed = False
        self.busy = False
        self.reason = ""

    def close(self, reason: str) -> None:
        self.closed, self.reason = True, reason
        self._world.logins.pop(self, None)

    def sends(self) -> None:
        self.last_active_ms = self._world.now_ms


class World:
    """Connections and their limits."""

    def __init__(self, total: int, per_address: int = 100, **limits: object) -> None:
        self.now_ms = 1_000_000
        self.connections: dict[Admitted, None] = {}
        self.logins: dict[Admitted, None] = {}
        self.admission = Admission(
            ConnectionLimits(total, "the limit is reached", per_address, **limits), lambda: self.now_ms
        )

    def connect(
        self,
        name: str,
        *,
        listener: str = "PLAINTEXT",
        address: str = "10.0.0.1",
        sends: bool = True,
        logs_in: bool = True,
    ) -> Client:
        client = Client(self, name, listener=listener, address=address)
        self.connections[client] = None
        if not logs_in:
            self.logins[client] = None
        refused = self.admission.admit(client, self.connections, self.logins)
        if refused is not None:
            client.close(refused)
        elif sends:
            self.now_ms += 1
            client.sends()
        return client

    def sockets_close(self) -> None:
        for client in [each for each in self.connections if each.closed]:
            del self.connections[client]
            self.admission.left(client)


def test_a_connection_above_the_limit_is_closed_while_all_others_are_in_use():
    world = World(total=2)
    first, second, third = (world.connect(name) for name in ("first", "second", "third"))
    assert (first.closed, second.closed, third.reason) == (False, False, "the limit is reached")


def test_the_connection_that_was_idle_for_longest_is_closed_first():
    world = World(total=2)
    first, second = world.connect("first"), world.connect("second")
    world.now_ms += IDLE_MS
    first.sends()
    third = world.connect("third")
    assert (first.closed, second.closed, third.closed) == (False, True, False)


def test_a_connection_that_waits_for_an_answer_is_not_closed():
    world = World(total=1)
    waiting = world.connect("waiting")
    waiting.busy = True
    world.now_ms += 10 * IDLE_MS
    assert world.connect("other").closed
    assert not waiting.closed


def test_of_a_flood_of_silent_connections_the_newest_are_closed_first():
    """An honest client that connected before the flood, and has sent nothing yet, keeps its connection."""
    world = World(total=3)
    honest = world.connect("honest", sends=False)
    world.now_ms += 1
    flood = []
    for number in range(2):
        flood.append(world.connect(f"flood {number}", sends=False))
        world.now_ms += 1
    assert world.connect("too early").closed
    world.now_ms += 2 * SILENT_MS
    late = world.connect("late")
    assert (honest.closed, flood[0].closed, flood[1].closed, late.closed) == (False, False, True, False)


def test_a_closed_connection_does_not_count_though_its_socket_is_still_there():
    world = World(total=2)
    for name in ("first", "second"):
        world.connect(name)
    world.now_ms += IDLE_MS
    third, fourth = world.connect("third"), world.connect("fourth")
    assert not third.closed
    assert not fourth.closed
    assert world.connect("fifth").closed
    world.sockets_close()
    assert len(world.connections) == 2


def test_a_connection_of_a_broker_takes_the_place_of_an_active_client():
    world = World(total=2, brokers_listener="INTERNAL")
    older, newer = world.connect("older"), world.connect("newer")
    broker = world.connect("broker", listener="INTERNAL")
    assert (older.closed, newer.closed, broker.closed) == (True, False, False)


def test_a_connection_of_a_broker_is_never_closed_for_another():
    world = World(total=1, brokers_listener="INTERNAL")
    broker = world.connect("broker", listener="INTERNAL")
    world.now_ms += 10 * IDLE_MS
    assert world.connect("client").closed
    assert world.connect("other broker", listener="INTERNAL").closed
    assert not broker.closed


def test_clients_that_do_not_log_in_have_half_of_the_places():
    """Though they have sent something.

    The oldest gives way to the next, when it has had time; a client that is logged in never does.
    """
    world = World(4 * LOGINS_MIN)
    early = [world.connect(f"in {number}") for number in range(LOGINS_MIN)]
    flood = [world.connect(f"flood {number}", logs_in=False) for number in range(2 * LOGINS_MIN)]
    world.now_ms += IDLE_MS - LOGIN_MS
    assert not any(client.closed for client in (*early, *flood))
    late = world.connect("late", logs_in=False)
    assert flood[0].closed
    assert not late.closed
    young = [world.connect(f"young {number}", logs_in=False) for number in range(2 * LOGINS_MIN)]
    refused = [client for client in young if client.closed]
    assert [client.reason for client in refused] == [f"{2 * LOGINS_MIN} connections have still to log in"]
    assert not any(client.closed for client in early)
    assert not any(world.connect(f"others {number}").closed for number in range(LOGINS_MIN))


def test_an_address_with_many_connections_without_a_login_gives_way_to_others():
    """However young they are: one stranger that connects all the time keeps no other client from logging in."""
    world = World(4 * LOGINS_MIN)
    flood = [world.connect(f"flood {number}", address="10.0.0.66", logs_in=False) for number in range(2 * LOGINS_MIN)]
    assert world.connect("one more", address="10.0.0.66", logs_in=False).closed
    honest = [
        world.connect(f"honest {number}", address=f"10.0.1.{number}", logs_in=False) for number in range(LOGINS_MIN)
    ]
    assert not any(client.closed for client in honest)
    assert [client.closed for client in flood] == [True] * LOGINS_MIN + [False] * LOGINS_MIN
    crowd = [
        world.connect(f"crowd {number}", address=f"2001:db8:1:{number}::1", logs_in=False)
        for number in range(2 * LOGINS_MIN)
    ]
    assert [client.closed for client in crowd].count(False) <= LOGINS_MIN
    assert not any(client.closed for client in honest)


def test_an_address_with_many_connections_gives_way_to_one_with_few():
    """Though all of them are active: one client keeps no other out. Of its own address none gives way."""
    world = World(total=10)
    greedy = [world.connect(f"greedy {number}", address="10.0.0.66") for number in range(10)]
    for client in greedy[1:]:
        client.sends()
    assert world.connect("one more", address="10.0.0.66").closed
    other = world.connect("other", address="10.0.0.7")
    assert not other.closed
    assert [client.closed for client in greedy] == [True] + [False] * 9
    for number in range(20):
        world.now_ms += 1
        world.connect(f"others {number}", address="10.0.0.7").sends()
    assert [client.closed for client in greedy].count(False) >= 4
    assert not other.closed


def test_a_login_that_takes_long_gives_way_before_a_client_that_is_logged_in():
    world = World(3)
    early = world.connect("early")
    waiting = [world.connect("first", logs_in=False), world.connect("second", logs_in=False)]
    world.now_ms += 2 * IDLE_MS
    assert not world.connect("next").closed
    assert [client.closed for client in (early, *waiting)] == [False, True, False]


def test_a_broker_that_logs_in_needs_no_place_of_the_clients():
    world = World(2 * LOGINS_MIN, brokers_listener="BROKERS")
    flood = [world.connect(f"flood {number}", logs_in=False) for number in range(LOGINS_MIN)]
    brokers = [world.connect(f"broker {number}", listener="BROKERS", logs_in=False) for number in range(3)]
    assert not any(client.closed for client in (*flood, *brokers))
    world.now_ms += LOGIN_MS
    for number in range(LOGINS_MIN):
        world.connect(f"more {number}", logs_in=False)
    assert not any(client.closed for client in brokers)


def test_each_address_has_the_limit_and_some_have_an_override():
    world = World(total=100, per_address=1, overrides={"10.0.0.2": 2, "10.0.0.3": 0})
    assert [world.connect("a").closed for _ in range(2)] == [False, True]
    assert [world.connect("b", address="10.0.0.2").closed for _ in range(3)] == [False, False, True]
    refused = world.connect("c", address="10.0.0.3")
    assert refused.reason == f"{OVERRIDES}=0 are open from 10.0.0.3"
    world.sockets_close()
    assert world.connect("a").reason == f"{PER_IP}=1 are open from 10.0.0.1"


def test_overrides_are_read_as_kafka_writes_them():
    assert parse_overrides({OVERRIDES: "127.0.0.1:200, ::1:7,[FE80:0::1]:8", PER_IP: 5}) == {
        "127.0.0.1": 200,
        "::1": 7,
        "fe80::1": 8,
    }
    assert load_config(settings={OVERRIDES: "127.0.0.1:200", PER_IP: "0"}).max_connections_per_ip == 0


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:-1", "some.host:5", "127.0.1:5", "abc:5"]
)
def test_a_wrong_override_refuses_the_start(text: str):
    with pytest.raises(ConfigError, match=OVERRIDES):
        load_config(settings={OVERRIDES: text})


def test_no_connection_from_anywhere_refuses_the_start():
    with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip=0 is invalid"):
        load_config(settings={PER_IP: "0"})


@pytest.mark.parametrize("limit", [DESCRIPTORS_MIN, 256, 1024, 4096, 65_536, 1 << 20])
def test_all_descriptors_are_shared_out(limit: int):
    budget = share_out(limit)
    assert budget.reserve + budget.segment_files + budget.connections == limit
    assert min(budget.reserve, budget.connections) >= 40
    assert budget.segment_files >= 20
    assert budget.accept_backlog < budget.reserve


def test_too_few_descriptors_refuse_the_start():
    with pytest.raises(OSError, match=r"RLIMIT_NOFILE, ulimit -n\) is 100: a broker needs at least 128"):
        share_out(100)
