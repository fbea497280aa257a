"""Has Kafka, or an installed Lowtide, write the directories of `test_earlier_directories.py` (tests/chaos).

    python -m tests.interop.write_earlier 4.0.0 killed FOLDER
    python -m tests.interop.write_earlier 0.1.0=ENVIRONMENT/bin/python killed FOLDER

The archive is `kafka-<version>-<how it ended>.tar.gz`, or `lowtide-<version>-...`. Its content is what that module
describes. Kafka has one directory, in which the compacted topic was compacted once, and needs a JDK 17 and Maven.
Lowtide has two. `stopped` or `killed` says how the broker ended.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.serving import ServeProcess
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
LOWTIDE_SETTINGS = SETTINGS[:3]
LETTERS = (("ann", "one"), ("bob", "two"), ("ann", "three"))
ERASED_KEY = "ann"
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


def write(bootstrap: str) -> None:
    """Does what `test_earlier_directories.py` describes."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic("plain", 2, 1), NewTopic("compacted", 1, 1, config=COMPACTED), NewTopic("gone", 1, 1)]
    for created in admin.create_topics(topics).values():
        created.result(LIMIT_S)
    produce(bootstrap)
    move(bootstrap)
    places = [confluent_kafka.TopicPartition("plain", number, offset) for number, offset in READERS.items()]
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    for deleted in admin.delete_records([confluent_kafka.TopicPartition("plain", 0, LOG_START)]).values():
        deleted.result(LIMIT_S)
    for gone in admin.delete_topics(["gone"]).values():
        gone.result(LIMIT_S)


def wait_for_files(kafka: Kafka) -> None:
    until(
        "the topic is compacted",
        lambda: checkpoint(kafka.directory, "cleaner-offset-checkpoint").get("compacted-0", 0) >= 60,
    )
    until(
        "the log start is written",
        lambda: checkpoint(kafka.directory, "log-start-offset-checkpoint").get("plain-0", 0) == LOG_START,
    )


def erase(bootstrap: str, python: str) -> None:
    """Writes the topic `letters`, and erases the records of one key with the command of that environment."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for key, value in LETTERS:
        producer.produce("letters", value, key)
    assert producer.flush(LIMIT_S) == 0
    command = [python, "-m", "lowtide.cli.main", "records", "erase", "letters", "--key", ERASED_KEY, "--yes"]
    subprocess.run([*command, "--bootstrap-server", bootstrap], check=True, timeout=LIMIT_S, capture_output=True)


async def write_with_lowtide(python: str, directories: Path, how: str) -> None:
    """Starts the Lowtide of that environment over empty directories, and ends it."""
    async with ServeProcess(directories, *LOWTIDE_SETTINGS, python=python) as broker:
        bootstrap = f"127.0.0.1:{broker.port}"
        await asyncio.to_thread(write, bootstrap)
        await asyncio.to_thread(erase, bootstrap, python)
        if how == "killed":
            await broker.kill()
        else:
            assert await broker.terminate() == 0
        assert broker.faults == []


def pack(folder: Path, archive: Path) -> None:
    """Packs a folder of directories, without owners."""
    with tarfile.open(archive, "w:gz") as files:
        for directory in sorted(folder.iterdir()):
            files.add(
                directory,
                directory.name,
                filter=lambda member: member.replace(deep=False, uid=0, gid=0, uname="", gname=""),
            )


def main(version: str, how: str, target: str) -> None:
    """The command."""
    if "=" in version:
        version, python = version.split("=", 1)
        with tempfile.TemporaryDirectory() as name:
            directories = [Path(name, number) for number in "12"]
            asyncio.run(write_with_lowtide(python, Path(",".join(map(str, directories))), how))
            pack(Path(name), Path(target) / f"lowtide-{version}-{how}.tar.gz")
        return
    with tempfile.TemporaryDirectory() as name:
        kafka = Kafka(fetch_jars(version), Path(name), free_ports(2), settings=SETTINGS)
        kafka.start()
        try:
            write(kafka.bootstrap)
            wait_for_files(kafka)
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
