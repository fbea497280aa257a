"""Producers and applications of Kafka Streams continue while records that they write and read are erased."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from lowtide import BlockingAdminClient, TopicPartition
from lowtide.admin import NewTopic, PartitionErasure

from . import load
from .erased_topics import GONE, STAYS
from .lowtide_process import LowtideProcess
from .members import QUICK, Member, outputs_of, until
from .streaming import EACH_PROTOCOL, QUICK_STREAMS, WORDS, WordCount
from .tools import EACH_VERSION, JavaClient
from .topics import PARTITIONS, Topics

pytestmark = pytest.mark.interop

ERASURES, LINES, GONE_LINES = 3, 20, 5


@pytest.fixture(scope="module")
def busy_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LowtideProcess]:
    """A broker that quickly detects joins and failures."""
    folder = tmp_path_factory.mktemp("lowtide") / "data"
    with LowtideProcess(folder, http_listeners="", **QUICK, **QUICK_STREAMS) as process:
        yield process


@pytest.fixture
def admin(busy_broker: LowtideProcess) -> Iterator[BlockingAdminClient]:
    with BlockingAdminClient(busy_broker.bootstrap) as made:
        yield made


def erase(admin: BlockingAdminClient, topic: str, key: bytes, partitions: int = 1) -> int:
    """Returns the number of records that were erased."""
    places = [TopicPartition(topic, number) for number in range(partitions)]
    found = admin.erase_records(places, keys=[key], timeout=load.DEADLINE_S)
    assert all(isinstance(each, PartitionErasure) and not each.not_erased_by for each in found.values()), found
    return sum(each.count for each in found.values() if isinstance(each, PartitionErasure))


@EACH_VERSION
def test_java_producers_continue_while_their_last_batches_are_erased(
    busy_broker: LowtideProcess, admin: BlockingAdminClient, jars: Path, kafka_version: str, tmp_path: Path
) -> None:
    """Each batch has one record, so erasures leave batches of an idempotent and a transactional producer empty."""
    names = [f"plain-{kafka_version}", f"transactions-{kafka_version}"]
    admin.create_topics([NewTopic(name=name, partitions=1) for name in names])
    java = JavaClient(jars, busy_broker.bootstrap, tmp_path)
    with Member(java.command("keep-on", topic=names[0], out=names[1])) as member:
        outputs = partial(outputs_of, member)
        for number in range(ERASURES):
            until(lambda number=number: len(member.said("written")) > 10 * (number + 1), outputs)
            assert all(erase(admin, name, GONE) for name in names)
        done = len(member.said("written"))
        until(lambda: len(member.said("written")) > done + 5, outputs)
        member.leave()
        written = member.said("written")[-1]["count"]
    for name in names:
        assert erase(admin, name, GONE)
        read = load.read(busy_broker.bootstrap, name, 0, (written + 1) // 2)
        assert [(entry.key, int(entry.value)) for entry in read] == [(STAYS, n) for n in range(0, written, 2)]


@EACH_PROTOCOL
def test_a_word_count_goes_on(
    busy_broker: LowtideProcess, admin: BlockingAdminClient, jars: Path, tmp_path: Path, protocol: str
) -> None:
    """With exactly-once processing. It counts the lines that aren't erased, and none of those that are."""
    topics = Topics(busy_broker.bootstrap)
    words = WordCount(topics, JavaClient(jars, busy_broker.bootstrap, tmp_path), tmp_path, f"erased-{protocol}")
    words.make("lines", "counts")
    never = {"purge": "3600000"}
    with words.start(protocol, **never) as member:
        words.write(LINES)
        until(words.is_complete, partial(outputs_of, member))
        # What it has consumed, while it runs.
        assert erase(admin, words.topic("words-repartition"), WORDS[0].encode(), PARTITIONS)
        words.write(LINES)
        until(words.is_complete, partial(outputs_of, member))
        member.leave()
    write_lines(busy_broker.bootstrap, words)
    assert erase(admin, words.topic("lines"), GONE, PARTITIONS) == GONE_LINES * PARTITIONS
    with words.start(protocol, **never) as member:
        until(words.is_complete, partial(outputs_of, member))
        words.check()
        member.leave()


def write_lines(bootstrap: str, words: WordCount) -> None:
    """Writes lines to each partition, some of them with the key `GONE`."""
    producer = Producer(load.settings(bootstrap, **{"compression.type": "zstd", "linger.ms": 50}))
    for partition in range(PARTITIONS):
        for number in range(LINES):
            key = GONE if number < GONE_LINES else STAYS
            producer.produce(words.topic("lines"), " ".join(WORDS), key, partition=partition)
    assert producer.flush(load.DEADLINE_S) == 0
    words.written += LINES - GONE_LINES
