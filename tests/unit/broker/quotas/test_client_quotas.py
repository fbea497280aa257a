"""The use of quotas: who counts together, what a change does at once, and that the memory is bounded."""

from __future__ import annotations

import pytest

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.quotas import client_quotas
from lowtide.broker.quotas.client_quotas import REQUEST_THROTTLE_MAX_MS, ClientQuotas
from lowtide.broker.quotas.creation_rates import CreationRates, creation_rates
from lowtide.broker.quotas.quota_entity import NAME_LENGTH_MAX
from lowtide.broker.quotas.sampled_rate import MOST_THROTTLE_MS, Window
from lowtide.metadata.config_image import ConfigImage

BYTES, PERCENT, MUTATIONS = "producer_byte_rate", "request_percentage", "controller_mutation_rate"


class World:
    """Quotas over an image that a test changes."""

    def __init__(self, **entities: dict[str, str]) -> None:
        self.configs = {text: ConfigImage(values, 1) for text, values in entities.items()}
        self.quotas = ClientQuotas(lambda: self.configs, Window, Window)


def test_all_clients_of_a_user_share_its_quota() -> None:
    quotas = World(**{"user=alice": {BYTES: "100"}}).quotas
    assert quotas.use(BYTES, "alice", "a", 900, 0) == 0
    assert quotas.use(BYTES, "alice", "b", 900, 0) > 0
    assert quotas.use(BYTES, "bob", "a", 1_000_000, 0) == 0


def test_each_client_has_the_default_for_itself() -> None:
    quotas = World(**{"client-id": {BYTES: "100"}}).quotas
    assert quotas.use(BYTES, "alice", "a", 2_000, 0) > 0
    assert quotas.use(BYTES, "alice", "b", 900, 0) == 0


def test_a_change_holds_for_the_next_request() -> None:
    world = World()
    assert not world.quotas.has_clients
    assert world.quotas.use(BYTES, "alice", "a", 1e9, 0) == 0
    world.configs = {"user=alice": ConfigImage({BYTES: "100"}, 2)}
    assert world.quotas.has_clients
    assert world.quotas.use(BYTES, "alice", "a", 2_000, 0) == 10_000
    world.configs = {"user=alice": ConfigImage({BYTES: "1000"}, 3)}
    assert world.quotas.use(BYTES, "alice", "a", 1, 0) == 0


def test_request_time_costs_a_second_at_most() -> None:
    quotas = World(**{"user=alice": {PERCENT: "1"}}).quotas
    assert quotas.use(PERCENT, "alice", "a", 5_000, 0) == REQUEST_THROTTLE_MAX_MS


def test_partitions_are_let_in_while_any_rate_is_left() -> None:
    quotas = World(**{"user=alice": {MUTATIONS: "2"}}).quotas
    assert quotas.change_partitions("alice", "a", 21, 0, force=False) == 0
    assert quotas.change_partitions("alice", "b", 10, 0, force=False) == 0
    wait_ms = quotas.change_partitions("alice", "a", 1, 0, force=False)
    assert wait_ms == 5_001
    assert quotas.change_partitions("alice", "a", 1, wait_ms, force=False) == 0
    assert quotas.change_partitions("alice", "a", 5, wait_ms, force=True) > 2_000


def test_connections_of_an_address_wait() -> None:
    quotas = World(**{"ip=10.0.0.1": {"connection_creation_rate": "2"}}).quotas
    waits = [quotas.connect("10.0.0.1", "L", 0) for _ in range(24)]
    assert waits[:20] == [0] * 20
    assert all(waits[20:])
    assert quotas.connect("10.0.0.2", "L", 0) == 0
    assert not quotas.has_clients


def test_invented_client_ids_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates that were used last are kept."""
    monkeypatch.setattr(client_quotas, "RATES_MAX", 100)
    monkeypatch.setattr(client_quotas, "SHARES_MAX", 100)
    quotas = World(**{"client-id": {BYTES: "100", MUTATIONS: "1"}}).quotas
    for number in range(1_000):
        quotas.use(BYTES, "mallory", f"c{number}", 1, 0)
        quotas.use(BYTES, "alice", "app", 10, 0)
        quotas.change_partitions("mallory", f"c{number}", 1, 0, force=False)
    assert len(quotas._rates) <= 100
    assert len(quotas._shares) <= 100
    assert len(quotas._buckets) <= 100
    assert quotas.use(BYTES, "alice", "app", 0, 0) == 90_000


def test_only_the_beginning_of_a_long_client_id_is_kept() -> None:
    """Ids may have 32 KiB: ten thousand would take 320 MB. An id of the longest name with a quota is another one."""
    named = "c" * NAME_LENGTH_MAX
    quotas = World(**{"client-id": {BYTES: "100"}, f"client-id={named}": {BYTES: "7"}}).quotas
    assert quotas.limit(BYTES, "mallory", named) == 7
    assert quotas.limit(BYTES, "mallory", named + "c" * 31_000) == 100
    quotas.use(BYTES, "mallory", named + "c" * 31_000, 1, 0)
    names = [name for key in (*quotas._shares, *quotas._rates._by_key) for name in key if name is not None]
    assert max(map(len, names)) == NAME_LENGTH_MAX + 1


def test_connections_above_the_rate_of_a_listener_or_the_broker_wait() -> None:
    """Kafka's names for both are the same; a listener's is beside the broker's, and brokers don't wait for clients."""
    rates = CreationRates(4, {"SLOW": 2}, "BROKERS")
    quotas = ClientQuotas(dict, Window, Window, lambda: rates)
    waits = [quotas.connect(f"10.0.0.{number}", "SLOW", 0) for number in range(24)]
    assert waits[:20] == [0] * 20
    assert all(waits[20:])
    assert [quotas.connect("10.0.1.1", "OTHER", 0) for _ in range(16)] == [0] * 16, (
        "the broker takes forty in ten seconds"
    )
    assert quotas.connect("10.0.1.1", "OTHER", 0) > 0
    assert quotas.connect("10.0.1.1", "BROKERS", 0) == 0
    assert quotas.connect("10.0.1.1", "OTHER", 30_000) == 0


def test_a_rate_of_nothing_lets_nobody_in() -> None:
    quotas = ClientQuotas(dict, Window, Window, lambda: CreationRates(0))
    assert quotas.connect("10.0.0.1", "L", 0) == MOST_THROTTLE_MS


def test_rates_of_connections_come_from_the_configuration() -> None:
    assert creation_rates(load_config(settings={})) == CreationRates()
    key = "max.connection.creation.rate"
    listeners = {
        "listeners": "A://:1,B://:2",
        "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
        "inter.broker.listener.name": "B",
    }
    config = load_config(settings={**listeners, key: "9", f"listener.name.a.{key}": "3"})
    assert creation_rates(config) == CreationRates(9, {"A": 3}, "B")
    assert config.unenforced_keys_given == ()


def test_what_is_used_is_known_of_those_who_came_last() -> None:
    quotas = World(**{"client-id": {BYTES: "100"}, "user=alice": {BYTES: "50"}}).quotas
    for number in range(5):
        quotas.use(BYTES, "bob", f"c{number}", 1_000, number)
    wait_ms = quotas.use(BYTES, "alice", "a", 1_000, 10)
    assert wait_ms == 10_000
    alice, *others = quotas.used(BYTES, 10, 3)
    assert (alice.user, alice.client_id, alice.wait_ms, alice.per_second) == ("alice", "", 10_000, 100)
    assert [(each.user, each.client_id, each.wait_ms) for each in others] == [("", "c4", 0), ("", "c3", 0)]
    assert quotas.used(PERCENT, 10, 3) == []
    assert quotas.used(BYTES, 60_000, 3) == [], "nothing was used within the window"


def test_each_pair_of_names_is_there_once() -> None:
    """A client without a name, and a quota of all clients of a user, have the same labels.

    A page with both would be refused.
    """
    world = World(**{"user=alice": {BYTES: "50"}})
    world.quotas.use(BYTES, "alice", "a", 10, 0)
    world.configs = {"client-id&user=alice": ConfigImage({BYTES: "50"}, 2)}
    world.quotas.use(BYTES, "alice", "", 20, 0)
    assert [(each.user, each.client_id, each.per_second) for each in world.quotas.used(BYTES, 0, 3)] == [
        ("alice", "", 2)
    ]
