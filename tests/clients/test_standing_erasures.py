"""A person who comes back is erased again by whichever broker leads, until the standing erasure ends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from lowtide.admin import BlockingAdminClient, NewTopic
from lowtide.testing.cluster import LowtideCluster

from .command_lines import run
from .replica_files import files_with

PERSON, OTHER = b"person-4711", b"other"
INTERVAL_S = 1.0
LIMIT_S = 60.0
ROUNDS = int(os.environ.get("ROUNDS", "3"))


def until_true(what: object, check: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def write(bootstrap: str, topic: str, *keys: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "compression.type": "zstd", "linger.ms": 5})
    for key in keys:
        producer.produce(topic, b"letter of " + key, key, partition=0)
    assert producer.flush(LIMIT_S) == 0


def keys_of(bootstrap: str, topic: str) -> list[bytes]:
    """Returns the keys that a consumer gets, up to the present end; none while no leader answers."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    place = TopicPartition(topic, 0, OFFSET_BEGINNING)
    consumer.assign([place])
    keys: list[bytes] = []
    try:
        end = consumer.get_watermark_offsets(place, timeout=LIMIT_S)[1]
    except KafkaException:
        return []
    deadline = time.monotonic() + LIMIT_S
    while consumer.position([place])[0].offset < end:
        assert time.monotonic() < deadline, (keys, end)
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            keys.append(message.key() or b"")
        elif message is None and keys:
            break  # Behind an erasure the position stays before the end.
    consumer.close()
    return keys


@pytest.mark.slow
def test_a_person_who_returns_is_erased_again_across_kills_of_the_leader() -> None:
    """Protects what --standing promises: in old and new topics, whoever leads, and nobody else is touched."""
    config = {
        "lowtide.erasure.standing.interval.ms": str(int(INTERVAL_S * 1000)),
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
    }
    with LowtideCluster(brokers=3, config=config) as cluster, BlockingAdminClient(cluster.bootstrap) as admin:
        bootstrap = cluster.bootstrap
        admin.create_topics([NewTopic(name="letters", partitions=1, replication_factor=3)])
        write(bootstrap, "letters", PERSON, OTHER)
        words = ("--topics-matching", "l*", "--key", PERSON.decode(), "--standing", "1h", "--yes", "--output", "json")
        began = run("records", "erase", *words, bootstrap=bootstrap)
        document = json.loads(began.stdout)
        assert document["standing_until"] is not None
        expected = [OTHER]
        for number in range(ROUNDS):
            write(bootstrap, "letters", OTHER, PERSON, OTHER)
            expected += [OTHER, OTHER]
            leader = admin.describe_topics(["letters"])["letters"].partitions[0].leader
            assert leader is not None
            if number % 3 == 1:
                cluster.kill_broker(leader)
            until_true("it is erased", lambda: keys_of(bootstrap, "letters") == expected)
            if number % 3 == 1:
                cluster.start_broker(leader)
        admin.create_topics([NewTopic(name="later", partitions=1, replication_factor=3)])
        write(bootstrap, "later", PERSON, OTHER)
        until_true("a new topic is covered", lambda: keys_of(bootstrap, "later") == [OTHER])
        until_true("no file has the person", lambda: files_with(cluster, PERSON) == [])
        erasure_id = document["erasure_id"]

        def confirmed() -> bool:
            shown = run("erasures", "list", "--output", "json", bootstrap=bootstrap)
            [row] = json.loads(shown.stdout)["erasures"]
            assert row["records"] == ROUNDS + 2
            return not row["not_confirmed_by"]

        until_true("the ledger has the confirmations of all", confirmed)
        assert PERSON.decode() not in cluster.log()
        run("erasures", "standing", "end", erasure_id, bootstrap=bootstrap)
        assert json.loads(run("erasures", "standing", "list", "--output", "json", bootstrap=bootstrap).stdout) == {
            "standing": []
        }
        write(bootstrap, "later", PERSON)
        time.sleep(3 * INTERVAL_S)  # Nothing happens, which no event tells.
        assert keys_of(bootstrap, "later") == [OTHER, PERSON]
