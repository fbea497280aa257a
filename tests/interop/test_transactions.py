"""Consume, transform and produce in transactions, by Kafka's Java client, Kafka Streams and franz-go: they are killed
during their work, and each record still counts once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from . import load
from .franz_go import FranzGo
from .lowtide_process import LowtideProcess
from .members import DEADLINE_S, QUICK, Client, Member, outputs_of, until
from .tools import JavaClient

pytestmark = pytest.mark.interop

PARTITIONS, PER_PARTITION = 3, 100
LINES = 1000
"""Enough that Kafka Streams still works on them when it is killed."""
READ_COMMITTED, READ_UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


class Topics:
    """The contents of a broker's topics, and the committed offsets of groups."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = {"bootstrap.servers": bootstrap}
        self._admin = AdminClient(self._bootstrap)

    def make(self, *names: str) -> None:
        """Creates topics."""
        for made in self._admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
            made.result(load.DEADLINE_S)

    def write(self, topic: str, values: dict[int, list[str]]) -> None:
        """Writes values to partitions."""
        producer = Producer(self._bootstrap)
        for partition, texts in values.items():
            for text in texts:
                producer.produce(topic, text, partition=partition)
        assert producer.flush(load.DEADLINE_S) == 0

    def read_committed(self, topic: str) -> list[tuple[str, str]]:
        """Key and value of all committed records, when no transaction is open any more; each partition in order."""
        until(
            lambda: self._ends(topic, READ_COMMITTED) == self._ends(topic, READ_UNCOMMITTED),
            lambda: "a transaction stays open",
        )
        consumer = Consumer(
            self._bootstrap | {"group.id": "none", "enable.partition.eof": True, "isolation.level": "read_committed"}
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        read: list[tuple[str, str]] = []
        at_end: set[int] = set()
        deadline = time.monotonic() + DEADLINE_S
        while len(at_end) < PARTITIONS:
            assert time.monotonic() < deadline, read
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is None:
                read.append(((message.key() or b"").decode(), message.value().decode()))
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                at_end.add(message.partition())
        consumer.close()
        return read

    def _ends(self, topic: str, isolation: IsolationLevel) -> list[int]:
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(PARTITIONS)}
        answers = self._admin.list_offsets(asked, isolation_level=isolation)
        return [answer.result(load.DEADLINE_S).offset for answer in answers.values()]

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Returns the offsets of a group."""
        found = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(
            load.DEADLINE_S
        )
        return {(place.topic, place.partition): place.offset for place in found.topic_partitions}


@pytest.fixture(scope="module")
def quick_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LowtideProcess]:
    """A broker whose groups start at once."""
    with LowtideProcess(tmp_path_factory.mktemp("lowtide") / "data", **QUICK) as process:
        yield process


@pytest.fixture(scope="module")
def java(jars: Path, quick_broker: LowtideProcess, tmp_path_factory: pytest.TempPathFactory) -> JavaClient:
    """The program with Kafka's Java client, compiled once."""
    return JavaClient(jars, quick_broker.bootstrap, tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="module", params=["java", "franz-go"])
def client(request: pytest.FixtureRequest, quick_broker: LowtideProcess) -> Client:
    """Either of the clients."""
    if request.param == "java":
        java: JavaClient = request.getfixturevalue("java")
        return java.command
    program: Path = request.getfixturevalue("franz_go_program")
    return lambda name, **given: FranzGo(program, quick_broker.bootstrap).command(name, timeout="5m", **given)


@pytest.fixture(scope="module")
def topics(quick_broker: LowtideProcess) -> Topics:
    """The topics of the broker."""
    return Topics(quick_broker.bootstrap)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_each_record_is_transformed_once_though_a_member_is_killed(
    client: Client, topics: Topics, protocol: str, request: pytest.FixtureRequest
) -> None:
    """Two members copy a topic; they abort every fourth transaction.

    One is killed during its work, another replaces it.
    """
    name = f"copied-{request.node.callspec.id}"
    topics.make(name, f"{name}-out")
    values = {number: [f"{number}/{count}" for count in range(PER_PARTITION)] for number in range(PARTITIONS)}

    def join(number: int) -> Member:
        return Member(
            client("transform", group=name, topic=name, protocol=protocol, id=f"{name}-{number}", out=f"{name}-out")
        )

    with ExitStack() as stack:
        first, second = stack.enter_context(join(1)), stack.enter_context(join(2))
        members = [first, second]
        outputs = partial(outputs_of, *members)
        until(lambda: bool(first.held and second.held), outputs)
        topics.write(name, {number: texts[:50] for number, texts in values.items()})
        until(lambda: bool(first.said("ended")), outputs)
        first.kill()
        members.append(stack.enter_context(join(1)))
        topics.write(name, {number: texts[50:] for number, texts in values.items()})
        everything = {(name, number): PER_PARTITION for number in values}
        until(lambda: topics.committed(name) == everything, lambda: (topics.committed(name), outputs_of(*members)))
        read = topics.read_committed(f"{name}-out")
        assert Counter(value for _, value in read) == Counter(text for texts in values.values() for text in texts)
        ended = [line for member in members for line in member.said("ended")]
        assert any(line["committed"] for line in ended)
        assert not all(line["committed"] for line in ended)
        for member in members[1:]:
            member.leave()


def test_kafka_streams_counts_each_word_once_though_it_is_killed(
    java: JavaClient, topics: Topics, tmp_path: Path
) -> None:
    """The counts rise by one for each word, over both runs of the application: no word is lost or counted twice."""
    topics.make("lines", "counts")
    words = ["ebb", "flood", "tide"]

    def start() -> Member:
        return Member(
            java.command("word-count", group="word-count", topic="lines", out="counts", directory=str(tmp_path))
        )

    def counted() -> int:
        return sum(topics.committed("word-count").get(("lines", number), 0) for number in range(PARTITIONS))

    with ExitStack() as stack:
        first = stack.enter_context(start())
        lines = {number: [" ".join(words)] * LINES for number in range(PARTITIONS)}
        topics.write("lines", lines)
        until(lambda: counted() > 0, partial(outputs_of, first))
        first.kill()
        topics.write("lines", lines)
        second = stack.enter_context(start())
        total = 2 * PARTITIONS * LINES
        until(lambda: counted() == total, partial(outputs_of, first, second))
        until(lambda: len(topics.read_committed("counts")) >= total * len(words), partial(outputs_of, first, second))
        read = topics.read_committed("counts")
        assert {word: [int(count) for key, count in read if key == word] for word in words} == {
            word: list(range(1, total + 1)) for word in words
        }
        second.leave()
