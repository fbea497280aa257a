"""`LowtideCluster(secure=True)`: each client library with the settings it gives, and nothing without them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from lowtide import LowtideCluster
from lowtide.admin import BlockingAdminClient
from lowtide.admin.errors import AdminError
from lowtide.admin.users import ScramUpsertion
from lowtide.protocol.scram import ScramMechanism

TIMEOUT_S = 60
KAFKA_PYTHON = """
import ast, sys
from kafka import KafkaConsumer, KafkaProducer
settings, topic = ast.literal_eval(sys.argv[1]), sys.argv[2]
producer = KafkaProducer(**settings)
producer.send(topic, b"kafka-python").get(timeout=60)
producer.close()
consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=60000, **settings)
print(next(consumer).value.decode())
consumer.close()
"""


def test_confluent_kafka(lowtide_secure: LowtideCluster, lowtide_topic: str) -> None:
    producer = Producer(lowtide_secure.for_confluent_kafka)
    producer.produce(lowtide_topic, b"hello")
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer(
        {**lowtide_secure.for_confluent_kafka, "group.id": lowtide_topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([lowtide_topic])
    (message,) = consumer.consume(1, TIMEOUT_S)
    consumer.close()
    assert message.value() == b"hello"


def test_kafka_python(lowtide_secure: LowtideCluster, lowtide_topic: str) -> None:
    """Runs in a separate process, because the client leaves sockets open."""
    command = [sys.executable, "-c", KAFKA_PYTHON, repr(lowtide_secure.for_kafka_python), lowtide_topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "kafka-python", done.stderr


async def test_aiokafka(lowtide_secure: LowtideCluster, lowtide_topic: str) -> None:
    async with aiokafka.AIOKafkaProducer(**lowtide_secure.for_aiokafka) as producer:
        await producer.send_and_wait(lowtide_topic, b"hello")
    async with aiokafka.AIOKafkaConsumer(
        lowtide_topic, auto_offset_reset="earliest", **lowtide_secure.for_aiokafka
    ) as consumer:
        assert (await asyncio.wait_for(anext(consumer), TIMEOUT_S)).value == b"hello"


def test_nothing_without_a_login_or_a_rule(lowtide_secure: LowtideCluster, lowtide_topic: str) -> None:
    """A client in plain text, one with another password, and a user without rules."""
    quiet = {"error_cb": lambda _error: None, "log_level": 0}
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": lowtide_secure.bootstrap, **quiet}).list_topics(timeout=2)
    with pytest.raises(KafkaException):
        AdminClient({**lowtide_secure.for_confluent_kafka, "sasl.password": "other", **quiet}).list_topics(timeout=2)
    with BlockingAdminClient(lowtide_secure.for_confluent_kafka) as admin:
        change = ScramUpsertion(mechanism=ScramMechanism.SHA_512, password="pencil", salt=b"salt")
        assert admin.alter_scram_users({"alice": change}) == {"alice": None}
    alice = Producer(
        {**lowtide_secure.for_confluent_kafka, "sasl.username": "alice", "sasl.password": "pencil", **quiet}
    )
    refused: list[object] = []
    alice.produce(lowtide_topic, b"hello", on_delivery=lambda error, _message: refused.append(error.name()))
    alice.flush(TIMEOUT_S)
    assert refused == ["TOPIC_AUTHORIZATION_FAILED"]


@pytest.mark.parametrize("brokers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_login_is_kept_over_restarts_of_a_directory(tmp_path: Path, brokers: int) -> None:
    settings = []
    for _ in range(2):
        with LowtideCluster(brokers=brokers, data_directory=tmp_path, secure=True) as cluster:
            settings.append(cluster.for_confluent_kafka)
            with BlockingAdminClient(settings[0] | {"bootstrap.servers": cluster.bootstrap}) as admin:
                assert len(admin.describe_cluster().brokers) == brokers
            cluster.restart()
            with BlockingAdminClient(cluster.for_confluent_kafka) as admin:
                assert len(admin.describe_cluster().brokers) == brokers
    assert settings[0]["sasl.password"] == settings[1]["sasl.password"]


def test_an_open_cluster_has_settings_too(lowtide: LowtideCluster) -> None:
    """So that a test can be run against either."""
    assert lowtide.for_confluent_kafka == {"bootstrap.servers": lowtide.bootstrap}
    assert lowtide.for_kafka_python == lowtide.for_aiokafka == {"bootstrap_servers": [lowtide.bootstrap]}
    with BlockingAdminClient(lowtide.for_confluent_kafka) as admin:
        assert admin.describe_cluster().brokers
    with (
        pytest.raises(AdminError),
        BlockingAdminClient({**lowtide.for_confluent_kafka, "security.protocol": "SSL"}) as admin,
    ):
        admin.describe_cluster(timeout=2)
