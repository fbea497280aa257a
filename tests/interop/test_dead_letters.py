"""Dead letters of a share group (KIP-1191): members of Kafka's Java client give records up, and its tools set it up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from . import load
from .lowtide_process import LowtideProcess
from .members import Member, outputs_of, until
from .test_share_groups import QUICK, make_topic
from .tools import JavaClient, Tools

pytestmark = pytest.mark.interop

RECORDS = 4
TOPIC, COPIES = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.copy.record.enable"
ENABLES = "errors.deadletterqueue.group.enable"
PREFIX, CREATES = "errors.deadletterqueue.topic.name.prefix", "errors.deadletterqueue.auto.create.topics.enable"

_numbers = count()


@pytest.fixture(scope="module")
def letters_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LowtideProcess]:
    """A broker that quickly detects failed members."""
    with LowtideProcess(tmp_path_factory.mktemp("lowtide") / "data", **QUICK) as process:
        yield process


@pytest.fixture(scope="module")
def letters_tools(jars: Path, letters_broker: LowtideProcess, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return Tools(jars, letters_broker.bootstrap, tmp_path_factory.mktemp("jvm"))


@pytest.fixture(scope="module")
def java(jars: Path, letters_broker: LowtideProcess, tmp_path_factory: pytest.TempPathFactory) -> JavaClient:
    return JavaClient(jars, letters_broker.bootstrap, tmp_path_factory.mktemp("share"))


def configure(tools: Tools, kind: str, name: str, **values: str) -> str:
    """Sets keys with kafka-configs; returns its output."""
    entity = ("--entity-default",) if not name else ("--entity-name", name)
    changes = ",".join(f"{key.replace('_', '.')}={value}" for key, value in values.items())
    ran = tools.call("kafka-configs", "--alter", "--entity-type", kind, *entity, "--add-config", changes)
    return ran.out + ran.err


def make_group(tools: Tools, **values: str) -> str:
    """Creates a topic, a group of the same name that begins with its first record, and records; returns the name."""
    name = make_topic(tools.bootstrap, f"letters-{next(_numbers)}", 1)
    values = {"share_auto_offset_reset": "earliest", "share_delivery_count_limit": "2"} | values
    assert "Completed" in configure(tools, "groups", name, **values)
    producer = Producer({"bootstrap.servers": tools.bootstrap, "linger.ms": 50, "compression.type": "zstd"})
    for number in range(RECORDS):
        producer.produce(name, b"v%d" % number, key=b"k%d" % number, headers=[("own", b"x")])
    assert producer.flush(load.DEADLINE_S) == 0
    return name


def read(bootstrap: str, topic: str, wanted: int) -> list[Message]:
    """Returns all records of a topic, when there are at least as many as wanted."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    found: list[Message] = []
    try:
        partitions: dict[int, object] = {}
        deadline = time.monotonic() + load.DEADLINE_S
        while not partitions:
            known = consumer.list_topics(timeout=load.DEADLINE_S).topics.get(topic)
            partitions = {} if known is None else known.partitions
            assert time.monotonic() < deadline, "the topic does not exist"
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        while len(found) < wanted:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append(message)
            assert time.monotonic() < deadline, f"{len(found)} of {wanted} dead letters"
        while (message := consumer.poll(1)) is not None:
            found.append(message)
    finally:
        consumer.close()
    return found


def give_up(java: JavaClient, name: str, how: str, times: int = 1) -> None:
    """Has a member give up all records."""
    with Member(java.command("sharer", group=name, topic=name, how=how)) as member:
        until(lambda: len(member.read) >= times * RECORDS, partial(outputs_of, member))
        member.leave()


def expected_headers(name: str, offset: int, deliveries: int, reason: bytes) -> list[tuple[str, bytes]]:
    return [
        ("__dlq.errors.topic", name.encode()),
        ("__dlq.errors.partition", b"0"),
        ("__dlq.errors.offset", b"%d" % offset),
        ("__dlq.errors.group", name.encode()),
        ("__dlq.errors.delivery.count", b"%d" % deliveries),
        ("__dlq.errors.message", reason),
    ]


@pytest.mark.parametrize(
    ("how", "deliveries", "reason"),
    [
        ("reject", 1, b"Offset rejected by client."),
        ("release", 2, b"Offset delivery count exceeded the threshold."),
    ],
)
@pytest.mark.parametrize("copies", [False, True])
def test_dead_letters_are_those_of_kafka(
    java: JavaClient, letters_tools: Tools, how: str, deliveries: int, reason: bytes, copies: bool
) -> None:
    letters = f"dlq.{how}-{copies}"
    make_topic(letters_tools.bootstrap, letters, 2)
    assert "Completed" in configure(letters_tools, "topics", letters, **{ENABLES: "true"})
    name = make_group(letters_tools, **{TOPIC: letters, COPIES: str(copies).lower()})
    give_up(java, name, how, deliveries)
    found = read(letters_tools.bootstrap, letters, RECORDS)
    assert [each.headers() for each in found] == [
        expected_headers(name, offset, deliveries, reason) for offset in range(RECORDS)
    ]
    contents = [(b"k%d" % number, b"v%d" % number) if copies else (None, None) for number in range(RECORDS)]
    assert [(each.key(), each.value()) for each in found] == contents
    assert {each.partition() for each in found} == {0}, "as the origin"


def test_brokers_create_the_topic_if_they_are_told_to(java: JavaClient, letters_tools: Tools) -> None:
    """Both keys of brokers take effect while these run."""
    try:
        assert "Completed" in configure(letters_tools, "brokers", "", **{CREATES: "true", PREFIX: "given-up-"})
        name = make_group(letters_tools, **{TOPIC: "given-up-1"})
        give_up(java, name, "reject")
        assert len(read(letters_tools.bootstrap, "given-up-1", RECORDS)) == RECORDS
        described = letters_tools.call("kafka-configs", "--describe", "--topic", "given-up-1").out
        assert f"{ENABLES}=true" in described
    finally:
        configure(letters_tools, "brokers", "", **{CREATES: "false", PREFIX: "dlq."})


def test_refused_names_and_a_switched_off_feature(java: JavaClient, letters_tools: Tools) -> None:
    answer = configure(letters_tools, "groups", "refused", **{TOPIC: "__letters"})
    assert "DLQ topic name must not start with '__'" in answer
    letters = make_topic(letters_tools.bootstrap, "dlq.off", 1)
    configure(letters_tools, "topics", letters, **{ENABLES: "true"})
    downgraded = letters_tools.call("kafka-features", "downgrade", "--feature", "share.version=1")
    assert downgraded.exit_code == 0, downgraded
    name = make_group(letters_tools, **{TOPIC: letters})
    give_up(java, name, "reject")
    upgraded = letters_tools.call("kafka-features", "upgrade", "--feature", "share.version=2")
    assert upgraded.exit_code == 0, upgraded
    producer = Producer({"bootstrap.servers": letters_tools.bootstrap})
    for number in range(RECORDS):
        producer.produce(name, b"%d" % number)
    assert producer.flush(load.DEADLINE_S) == 0
    give_up(java, name, "reject")
    found = read(letters_tools.bootstrap, letters, RECORDS)
    assert [dict(each.headers() or [])["__dlq.errors.offset"] for each in found] == [
        b"%d" % (RECORDS + number) for number in range(RECORDS)
    ]
