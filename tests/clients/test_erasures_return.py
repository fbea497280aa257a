"""A replica whose files are older than an erasure: the ledger has it, and it is repeated before consumers read."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from lowtide.admin import BlockingAdminClient, NewTopic, PartitionErasure
from lowtide.admin import TopicPartition as Place
from lowtide.testing.cluster import LowtideCluster

from .replica_files import files_with

PERSON = b"person-4711"
COUNT = 300
LIMIT_S = 30.0


def keys_of(bootstrap: str) -> list[bytes]:
    """Returns the keys of all records, in order; waits until the last one arrives."""
    settings = {"group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.assign([TopicPartition("letters", 0, OFFSET_BEGINNING)])
    keys: list[bytes] = []
    deadline = time.monotonic() + LIMIT_S
    while not keys or keys[-1] != b"last":
        assert time.monotonic() < deadline, f"{len(keys)} records"
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            keys.append(message.key() or b"")
    consumer.close()
    return keys


def test_an_old_folder_put_back_has_no_erased_record() -> None:
    """Protects erasures against a restored disk, where replication has nobody to get them from."""
    with LowtideCluster(brokers=1) as cluster:
        [broker_id] = cluster.broker_ids
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": "zstd", "linger.ms": 20})
        with BlockingAdminClient(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(name="letters", partitions=1, replication_factor=1)])
            for number in range(COUNT):
                producer.produce("letters", b"v" * 50, PERSON if number % 7 == 3 else b"other", partition=0)
            producer.produce("letters", b"v", b"last", partition=0)
            assert producer.flush(30) == 0
            expected = [key for key in keys_of(cluster.bootstrap) if key != PERSON]
            assert len(expected) < COUNT
            cluster.stop_broker(broker_id)
            [folder] = Path(cluster.data_directory).rglob("letters-0")
            copy = folder.parent.parent / "copy"
            shutil.copytree(folder, copy)
            cluster.start_broker(broker_id)
            erased = admin.erase_records([Place("letters", 0)], keys=[PERSON])[Place("letters", 0)]
            assert isinstance(erased, PartitionErasure)
            assert (erased.erased_by, dict(erased.not_erased_by)) == ((broker_id,), {})
            assert keys_of(cluster.bootstrap) == expected
        cluster.stop_broker(broker_id)
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
        shutil.rmtree(copy)
        since = cluster.log_size
        cluster.start_broker(broker_id)
        assert keys_of(cluster.bootstrap) == expected
        deadline = time.monotonic() + LIMIT_S
        while files_with(cluster, PERSON):
            assert time.monotonic() < deadline, files_with(cluster, PERSON)
            time.sleep(0.1)
        assert "erasures were repeated because the log lacks them" in cluster.log(since)
