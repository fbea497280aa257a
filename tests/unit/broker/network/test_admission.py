"""Which connections are admitted, and which give way to others."""

from __future__ import annotations

import pytest

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.config.connection_overrides import OVERRIDES, PER_IP, parse_overrides
from lowtide.broker.config.key import ConfigError
from lowtide.broker.descriptors import DESCRIPTORS_MIN, share_out
from lowtide.broker.network.admission import IDLE_MS, SILENT_MS, Admission, Admitted, ConnectionLimits


class Client:
    """A connection."""

    def __init__(self, world: World, name: str, *, listener: str, address: str) -> None:
        self._world = world
        self.name = name
        self.listener_name = listener
        self.address = address
        self.last_active_ms = world.now_ms - 1
        self.connected_ms = world.now_ms
        self.closed = False
        self.busy = False
        self.reason = ""

    def close(self, reason: str) -> None:
        self.closed, self.reason = True, reason

    def sends(self) -> None:
        self.last_active_ms = self._world.now_ms


class World:
    """Connections and their limits."""

    def __init__(self, total: int, per_address: int = 100, **limits: object) -> None:
        self.now_ms = 1_000_000
        self.connections: dict[Admitted, None] = {}
        self.admission = Admission(ConnectionLimits(total, "the limit is reached", per_address, **limits), lambda: self.now_ms)  # type: ignore[arg-type]

    def connect(self, name: str, *, listener: str = "PLAINTEXT", address: str = "10.0.0.1", sends: bool = True) -> Client:
        client = Client(self, name, listener=listener, address=address)
        self.connections[client] = None
        refused = self.admission.admit(client, self.connections)
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


def test_a_connection_above_the_limit_is_closed_while_all_others_are_used():
    world = World(total=2)
    first, second, third = (world.connect(name) for name in ("first", "second", "third"))
    assert (first.closed, second.closed, third.reason) == (False, False, "the limit is reached")


def test_the_connection_that_was_idle_for_longest_gives_way():
    world = World(total=2)
    first, second = world.connect("first"), world.connect("second")
    world.now_ms += IDLE_MS
    first.sends()
    third = world.connect("third")
    assert (first.closed, second.closed, third.closed) == (False, True, False)


def test_a_connection_that_waits_for_an_answer_does_not_give_way():
    world = World(total=1)
    waiting = world.connect("waiting")
    waiting.busy = True
    world.now_ms += 10 * IDLE_MS
    assert world.connect("other").closed
    assert not waiting.closed


def test_a_flood_of_silent_connections_gives_way_from_its_end():
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


def test_what_was_closed_counts_no_more_though_its_socket_is_there_yet():
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


def test_a_connection_of_a_broker_takes_the_place_of_a_client_that_is_used():
    world = World(total=2, brokers_listener="INTERNAL")
    older, newer = world.connect("older"), world.connect("newer")
    broker = world.connect("broker", listener="INTERNAL")
    assert (older.closed, newer.closed, broker.closed) == (True, False, False)


def test_a_connection_of_a_broker_gives_way_to_nobody():
    world = World(total=1, brokers_listener="INTERNAL")
    broker = world.connect("broker", listener="INTERNAL")
    world.now_ms += 10 * IDLE_MS
    assert world.connect("client").closed
    assert world.connect("other broker", listener="INTERNAL").closed
    assert not broker.closed


def test_each_address_has_its_number_and_some_have_another():
    world = World(total=100, per_address=1, overrides={"10.0.0.2": 2, "10.0.0.3": 0})
    assert [world.connect("a").closed for _ in range(2)] == [False, True]
    assert [world.connect("b", address="10.0.0.2").closed for _ in range(3)] == [False, False, True]
    refused = world.connect("c", address="10.0.0.3")
    assert refused.reason == f"{OVERRIDES}=0 are open from 10.0.0.3"
    world.sockets_close()
    assert world.connect("a").reason == f"{PER_IP}=1 are open from 10.0.0.1"


def test_overrides_are_read_as_kafka_writes_them():
    assert parse_overrides({OVERRIDES: "127.0.0.1:200, ::1:7,[fe80::1]:8", PER_IP: 5}) == {"127.0.0.1": 200, "::1": 7, "fe80::1": 8}
    assert load_config(settings={OVERRIDES: "127.0.0.1:200", PER_IP: "0"}).max_connections_per_ip == 0


@pytest.mark.parametrize("text", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:-1", "some.host:5"])
def test_a_wrong_override_refuses_the_start(text: str):
    with pytest.raises(ConfigError, match=OVERRIDES):
        load_config(settings={OVERRIDES: text})


def test_no_connection_from_anywhere_refuses_the_start():
    with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip=0 is not possible"):
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
