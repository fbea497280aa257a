"""`lowtide.advertise.local.address`: a broker whose own name leads nowhere is reached where its clients came by."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from lowtide import BlockingAdminClient, LowtideCluster

NOWHERE = {"listeners": "PLAINTEXT://:0", "lowtide.advertise.local.address": "true"}


@pytest.fixture
def by_several_addresses(monkeypatch: pytest.MonkeyPatch) -> Iterator[LowtideCluster]:
    """Like a broker in a container: it listens on every interface, and its host name is unknown outside."""
    monkeypatch.setattr("lowtide.runtime.process.socket.gethostname", lambda: "0a1b2c3d.invalid")
    with LowtideCluster(config=NOWHERE, in_process=True) as cluster:
        yield cluster


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_a_client_goes_on_where_it_came(by_several_addresses: LowtideCluster, lowtide_topic: str, host: str) -> None:
    """Metadata, DescribeCluster and FindCoordinator name its way, in every language."""
    servers = {"bootstrap.servers": f"{host}:{by_several_addresses.port}", "log_level": 0}
    (broker,) = AdminClient(servers).list_topics(timeout=60).brokers.values()
    assert (broker.host, broker.port) == (host, by_several_addresses.port)
    producer = Producer(servers)
    producer.produce(lowtide_topic, b"hello")
    assert producer.flush(60) == 0
    consumer = Consumer({**servers, "group.id": lowtide_topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([lowtide_topic])
        (message,) = consumer.consume(1, timeout=60)
        assert message.value() == b"hello"
    finally:
        consumer.close()
    with BlockingAdminClient(servers["bootstrap.servers"]) as admin:
        assert [str(each.address) for each in admin.describe_cluster().brokers] == [servers["bootstrap.servers"]]


def test_what_is_advertised_counts_where_it_is_set(lowtide_topic: str) -> None:
    given = {**NOWHERE, "advertised.listeners": "PLAINTEXT://broker.example:9092"}
    with LowtideCluster(config=given) as cluster:
        port = cluster.ports(0)["PLAINTEXT"]
        (broker,) = (
            AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
            .list_topics(timeout=60)
            .brokers.values()
        )
        assert (broker.host, broker.port) == ("broker.example", 9092)
