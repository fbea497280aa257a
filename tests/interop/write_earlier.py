"""`python -m tests.interop.write_earlier 4.0.0 killed FOLDER`: have Kafka write a directory for
`test_earlier_directories.py`.

The archive is `kafka-<version>-<how it ended>.tar.gz`; its content is what that module of tests/chaos describes, in one
directory. The compacted topic was compacted once. Needs a JDK 17 and Maven. `stopped` or `killed` says how Kafka ended.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from tests.free_ports import free_ports

from .kafka import Kafka, fetch_jars

SETTINGS = (
    "node.id=7",
    "offsets.topic.num.partitions=1",
    "transaction.state.log.num.partitions=1",
    "log.cleaner.enable=true",
    "log.cleaner.backoff.ms=200",
    "log.flush.start.offset.checkpoint.interval.ms=200",
    "log.flush.offset.checkpoint.interval.ms=200",
    "log.segment.bytes=1048576",
    "log.index.size.max.bytes=65536",
)
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.01"}
CODECS = ("none", "gzip", "lz4", "zstd", "snappy")
LOG_START, READERS = 35, {0: 42, 1: 60}
LIMIT_S = 60.0


def until(what: str, condition: Callable[..., bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {LIMIT_S} s"
        time.sleep(0.2)


def checkpoint(folder: Path, name: str) -> dict[str, int]:
    """Reads a file with lines of topic, partition and offset."""
    path = folder / name
    rows = [line.split(" ") for line in path.read_text().splitlines()[2:]] if path.exists() else []
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in rows}


def produce(bootstrap: str) -> None:
    """Each codec in turn.

    The compacted topic rolls a segment between them, for the segment that is written is not compacted.
    """
    for codec in CODECS:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": codec}
        )
        for number in range(20):
            value = f"{codec} {number}".encode()
            for partition in (0, 1):
                producer.produce("plain", value, partition=partition)
            producer.produce("compacted", value, key=f"k{number % 4}".encode())
        assert producer.flush(LIMIT_S) == 0
        time.sleep(0.6)  # longer than segment.ms: the next codec begins a segment


def move(bootstrap: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "mover"})
    producer.init_transactions(LIMIT_S)
    for which in (0, 1):
        producer.begin_transaction()
        for number in range(3):
            producer.produce("plain", f"transaction {which} {number}".encode(), partition=1)
        if which == 0:
            producer.commit_transaction(LIMIT_S)
        else:
            producer.flush(LIMIT_S)
            producer.abort_transaction(LIMIT_S)


def write(kafka: Kafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    topics = [NewTopic("plain", 2, 1), NewTopic("compacted", 1, 1, config=COMPACTED), NewTopic("gone", 1, 1)]
    for created in admin.create_topics(topics).values():
        created.result(LIMIT_S)
    produce(kafka.bootstrap)
    move(kafka.bootstrap)
    places = [confluent_kafka.TopicPartition("plain", number, offset) for number, offset in READERS.items()]
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "readers"})
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    for deleted in admin.delete_records([confluent_kafka.TopicPartition("plain", 0, LOG_START)]).values():
        deleted.result(LIMIT_S)
    for gone in admin.delete_topics(["gone"]).values():
        gone.result(LIMIT_S)
    until(
        "the topic is compacted",
        lambda: checkpoint(kafka.directory, "cleaner-offset-checkpoint").get("compacted-0", 0) >= 60,
    )
    until(
        "the log start is written",
        lambda: checkpoint(kafka.directory, "log-start-offset-checkpoint").get("plain-0", 0) == LOG_START,
    )


def main(version: str, how: str, target: str) -> None:
    """The command."""
    with tempfile.TemporaryDirectory() as name:
        kafka = Kafka(fetch_jars(version), Path(name), free_ports(2), settings=SETTINGS)
        kafka.start()
        try:
            write(kafka)
        finally:
            if how == "killed":
                kafka.kill()
            else:
                kafka.stop()
        with tarfile.open(Path(target) / f"kafka-{version}-{how}.tar.gz", "w:gz") as archive:
            archive.add(
                kafka.directory, "1", filter=lambda member: member.replace(deep=False, uid=0, gid=0, uname="", gname="")
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
