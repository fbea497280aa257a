"""Quotas for clients: set by the admin client and the command, kept by producers, consumers and creations."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer

from lowtide.admin import DEFAULT_NAME, BlockingAdminClient, BrokerAnsweredError, QuotaEntity
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from lowtide.simulation.client import WireClient

from . import command_lines

SLOW = QuotaEntity(client_id="slow")
RATE = 20_000


@pytest.fixture
def admin(lowtide: SimpleNamespace) -> Iterator[BlockingAdminClient]:
    """Our admin client; all quotas are removed afterwards, for the broker is shared."""
    with BlockingAdminClient(lowtide.bootstrap) as client:
        yield client
        client.alter_quotas({entity: dict.fromkeys(limits) for entity, limits in client.describe_quotas().items()})


def throttle_times(bootstrap: str, topic: str, client_id: str, count: int) -> list[float]:
    """Produces so many records of a kilobyte; returns the throttle time of each answer in seconds."""
    waits: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "throttle_cb": lambda event: waits.append(event.throttle_time),
        }
    )
    for number in range(count):
        producer.produce(topic, b"x" * 1000, partition=0)
        if number % 10 == 9:
            assert producer.flush(60) == 0
    producer.poll(0.1)
    return waits


def test_quotas_are_set_described_and_removed(admin: BlockingAdminClient) -> None:
    both, everybody = QuotaEntity(user="alice", client_id="app"), QuotaEntity(user=DEFAULT_NAME)
    outcomes = admin.alter_quotas(
        {
            both: {"request_percentage": 12.5},
            everybody: {"producer_byte_rate": 1000},
            QuotaEntity(ip="10.0.0.1"): {"producer_byte_rate": 1},
        }
    )
    assert outcomes[both] is None
    assert outcomes[everybody] is None
    refused = outcomes[QuotaEntity(ip="10.0.0.1")]
    assert isinstance(refused, BrokerAnsweredError)
    assert refused.name == "INVALID_REQUEST"
    assert admin.describe_quotas() == {both: {"request_percentage": 12.5}, everybody: {"producer_byte_rate": 1000.0}}
    assert admin.alter_quotas({both: {"request_percentage": None}}, validate_only=True) == {both: None}
    assert both in admin.describe_quotas()
    assert admin.alter_quotas({both: {"request_percentage": None}}) == {both: None}
    assert list(admin.describe_quotas()) == [everybody]


def test_a_producer_above_its_rate_is_slowed_down_and_others_are_not(
    lowtide: SimpleNamespace, admin: BlockingAdminClient, topic: str
) -> None:
    """Within its window of eleven seconds it may use what ten seconds allow; what is above that it waits for."""
    admin.alter_quotas({SLOW: {"producer_byte_rate": RATE}})
    began = time.monotonic()
    waits = throttle_times(lowtide.bootstrap, topic, "slow", 230)
    assert waits, "the broker has asked the client to wait"
    assert time.monotonic() - began >= 1, "230 KB at 20 KB a second, of which 200 KB come at once"
    assert throttle_times(lowtide.bootstrap, topic, "fast", 230) == []
    admin.alter_quotas({SLOW: {"producer_byte_rate": None}})
    assert throttle_times(lowtide.bootstrap, topic, "slow", 230) == []


@pytest.mark.slow
def test_a_quota_of_clients_holds_where_one_of_an_address_was_set_before(
    lowtide: SimpleNamespace, admin: BlockingAdminClient, topic: str
) -> None:
    admin.alter_quotas({QuotaEntity(ip="10.0.0.1"): {"connection_creation_rate": 100}})
    assert throttle_times(lowtide.bootstrap, topic, "slow", 10) == []
    admin.alter_quotas({SLOW: {"producer_byte_rate": RATE}})
    assert throttle_times(lowtide.bootstrap, topic, "slow", 230)


def test_creations_above_the_rate_are_refused(
    lowtide: SimpleNamespace, admin: BlockingAdminClient, lowtide_topic: str
) -> None:
    """One creation may use more than is left; the next is refused.

    Clients try such an answer again, so this one asks by itself.
    """
    admin.alter_quotas({QuotaEntity(user="ANONYMOUS"): {"controller_mutation_rate": 0.01}})

    async def create(name: str) -> CreateTopicsResponse:
        client = await WireClient.connect(lowtide.host, lowtide.port)
        try:
            row = CreatableTopic(name=name, num_partitions=3, replication_factor=1, assignments=[], configs=[])
            answer: CreateTopicsResponse = await client.request(
                CreateTopicsRequest(topics=[row], timeout_ms=30_000, validate_only=False), 7
            )
            return answer
        finally:
            client.close()

    assert asyncio.run(create(lowtide_topic)).topics[0].error_code == ErrorCode.NONE
    refused = asyncio.run(create(f"{lowtide_topic}-2"))
    assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert refused.throttle_time_ms > 0


def test_topics_created_by_asking_for_them_count(
    lowtide: SimpleNamespace, admin: BlockingAdminClient, lowtide_topic: str
) -> None:
    """As in Kafka, the first topic may exceed the quota; the others are not created, and the client asks again."""
    admin.alter_quotas({QuotaEntity(client_id="test"): {"controller_mutation_rate": 0.01}})
    names = [f"{lowtide_topic}-{number}" for number in range(3)]

    async def asked() -> MetadataResponse:
        client = await WireClient.connect(lowtide.host, lowtide.port)
        try:
            wanted = [MetadataRequestTopic(name=name) for name in names]
            answer: MetadataResponse = await client.request(MetadataRequest(topics=wanted), 12)
            return answer
        finally:
            client.close()

    def made() -> set[str]:
        return set(names) & set(admin.list_topics())

    asyncio.run(asked())
    while not (found := made()):
        time.sleep(0.05)
    assert {row.error_code for row in asyncio.run(asked()).topics} == {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert made() == found
    assert len(found) == 1


def test_the_command_line_sets_lists_and_removes(lowtide: SimpleNamespace, admin: BlockingAdminClient) -> None:
    def run(*words: str) -> str:
        return command_lines.run("quotas", *words, bootstrap=lowtide.bootstrap).stdout

    run("set", "producer_byte_rate=2048", "--user", "alice", "--default", "client-id")
    assert "client-id=<default>" in run("list")
    (row,) = json.loads(run("list", "--output", "json"))["quotas"]
    assert row == {"entity": {"user": "alice", "client-id": None}, "limits": {"producer_byte_rate": 2048.0}}
    run("remove", "--user", "alice", "--default", "client-id")
    assert admin.describe_quotas() == {}
