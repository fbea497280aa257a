"""One client, a hundred partitions: written by one producer, read by one consumer, each partition in its order."""

from __future__ import annotations

import json
import uuid
from types import SimpleNamespace

import pytest

from .driver import Driver, OutgoingRecord, until
from .driver_confluent import Confluent
from .driver_kcat import Kcat, run_kcat
from .open_clients import OPEN_CONSUMERS, OPEN_PRODUCERS

PARTITIONS = range(100)
ROUNDS = 3


def expected(partition: int) -> list[bytes]:
    return [b"%d of %d" % (round_number, partition) for round_number in range(ROUNDS)]


def fill(bootstrap: str, topic: str, name: str) -> None:
    """Creates the topic and writes into its partitions in turn, `ROUNDS` times."""
    other = Confluent(bootstrap)
    other.create_topic(topic, len(PARTITIONS), {})
    until(lambda: other.partition_count(topic) == len(PARTITIONS))
    with OPEN_PRODUCERS[name](bootstrap, topic, idempotent=True) as producer:
        for round_number in range(ROUNDS):
            for partition in PARTITIONS:
                producer.send(OutgoingRecord(b"k", expected(partition)[round_number]), partition)
        assert producer.flush() == [round_number for round_number in range(ROUNDS) for _ in PARTITIONS]


@pytest.fixture(scope="module")
def filled(lowtide: SimpleNamespace) -> str:
    """A topic that tests only read."""
    topic = f"filled-{uuid.uuid4().hex[:8]}"
    fill(lowtide.bootstrap, topic, Confluent.name)
    return topic


@pytest.mark.parametrize("name", OPEN_CONSUMERS)
def test_all_are_written_and_read_by_one_client(lowtide: SimpleNamespace, lowtide_topic: str, name: str) -> None:
    fill(lowtide.bootstrap, lowtide_topic, name)
    with OPEN_CONSUMERS[name](lowtide.bootstrap, lowtide_topic, dict.fromkeys(PARTITIONS, 0)) as consumer:
        records = consumer.read(ROUNDS * len(PARTITIONS))
        assert {p: [record.value for record in rows] for p, rows in records.items()} == {
            p: expected(p) for p in PARTITIONS
        }
        consumer.seek(77, 1)
        assert [(p, [record.value for record in rows]) for p, rows in consumer.read(2).items()] == [
            (77, expected(77)[1:])
        ]


def test_kcat_reads_all_of_them_at_once(lowtide: SimpleNamespace, filled: str) -> None:
    lines = run_kcat(lowtide.bootstrap, "-C", "-J", "-q", "-e", "-t", filled, "-o", "beginning").splitlines()
    found: dict[int, list[bytes]] = {}
    for line in map(json.loads, lines):
        found.setdefault(line["partition"], []).append(line["payload"].encode())
    assert found == {p: expected(p) for p in PARTITIONS}


def test_every_client_receives_the_offsets_of_all(client: Driver, filled: str) -> None:
    """kcat requests give one partition only, so the test does not use it for all of them."""
    partitions = [0, 49, 99] if client.name == Kcat.name else PARTITIONS
    assert client.offsets(filled, partitions) == dict.fromkeys(partitions, (0, ROUNDS))
    assert client.partition_count(filled) == len(PARTITIONS)
