"""`lowtide records find` and `find_records` with three brokers: records of real producers, in every codec."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from lowtide.admin import BlockingAdminClient, NewTopic, TopicPartition
from lowtide.admin.finding import SearchedPartition
from lowtide.testing.cluster import LowtideCluster

from .command_lines import run

PERSON, RECORDS = b"person-7", 2_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster(
        brokers=3, config={"default.replication.factor": "3", "log.segment.bytes": "1048576"}
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: LowtideCluster) -> Iterator[BlockingAdminClient]:
    with BlockingAdminClient(cluster.bootstrap) as admin:
        yield admin


def produce(cluster: LowtideCluster, topic: str, **settings: object) -> dict[int, list[int]]:
    """Produces records of many people. Returns the offsets of one person's, by partition."""
    found: dict[int, list[int]] = {}

    def on_delivered(error: object, message: object) -> None:
        assert error is None
        if message.key() == PERSON:  # type: ignore[attr-defined]
            found.setdefault(message.partition(), []).append(message.offset())  # type: ignore[attr-defined]

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, **settings})
    transactional = "transactional.id" in settings
    if transactional:
        producer.init_transactions()
        producer.begin_transaction()
    for number in range(RECORDS):
        key = PERSON if number % 97 == 0 else b"person-%d" % (number % 89 + 100)
        producer.produce(
            topic,
            b"value of person-7 %06d " % number + bytes(range(200)) * 3,
            key,
            partition=number % 3,
            headers=[("who", key), ("trace", b"x")],
            on_delivery=on_delivered,
        )
    producer.flush(30)
    if transactional:
        producer.abort_transaction()
    return {partition: sorted(offsets) for partition, offsets in found.items()}


def offsets_of(result: object) -> list[int]:
    assert isinstance(result, SearchedPartition), result
    return [offset for first, last in result.offsets for offset in range(first, last + 1)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_in_each_codec_are_found(cluster: LowtideCluster, admin: BlockingAdminClient, codec: str) -> None:
    """Protects a person whose records were compressed together with others'."""
    topic = f"people-{codec}"
    admin.create_topics([NewTopic(name=topic, partitions=3)])
    expected = produce(cluster, topic, **{"compression.type": codec})
    partitions = [TopicPartition(topic, number) for number in range(3)]
    progress: list[tuple[int, int]] = []
    for _ in range(2):  # The second time with filters of keys.
        found = admin.find_records(partitions, keys=[PERSON], on_progress=lambda *each: progress.append(each))
        assert {key.partition: offsets_of(result) for key, result in found.items()} == expected
    assert progress[-1][0] == progress[-1][1] > 0
    absent = admin.find_records(partitions, keys=[b"person-8", b"nobody"])
    assert [offsets_of(result) for result in absent.values()] == [[], [], []]
    by_header = admin.find_records(partitions, header=("who", PERSON))
    assert {key.partition: offsets_of(result) for key, result in by_header.items()} == expected
    filters = list(Path(cluster.data_directory).rglob(f"{topic}-*/*.keyfilter"))
    segments = list(Path(cluster.data_directory).rglob(f"{topic}-*/*.log"))
    assert bool(filters) is (len(segments) > 9)


def test_records_of_aborted_transactions_are_found(cluster: LowtideCluster, admin: BlockingAdminClient) -> None:
    """Protects against records that no consumer gets and that are on the disk all the same."""
    admin.create_topics([NewTopic(name="aborted", partitions=3)])
    expected = produce(cluster, "aborted", **{"transactional.id": "never", "compression.type": "zstd"})
    found = admin.find_records([TopicPartition("aborted", number) for number in range(3)], keys=[PERSON])
    assert {key.partition: offsets_of(result) for key, result in found.items()} == expected


def test_the_command_finds_and_explains(cluster: LowtideCluster, admin: BlockingAdminClient, tmp_path: Path) -> None:
    """Protects the operator who has to answer a person, and scripts that read the result."""
    admin.create_topics([NewTopic(name="command-one", partitions=3), NewTopic(name="command-two", partitions=3)])
    expected = produce(cluster, "command-one")
    keys = tmp_path / "keys"
    keys.write_text(f"{PERSON.hex()}\n\n{b'nobody'.hex()}\n")
    at = ["-b", cluster.bootstrap]
    code, output, error = run(
        "records", "find", "--topics-matching", "command-*", "--keys-from", str(keys), "--key-format", "hex",
        "--output", "json", *at,
    )  # fmt: skip
    assert (code, error) == (0, ""), error
    rows = json.loads(output)["partitions"]
    assert [(row["topic"], row["partition"]) for row in rows] == [
        (f"command-{name}", number) for name in ("one", "two") for number in range(3)
    ]
    for row in rows[:3]:
        offsets = [offset for first, last in row["offsets"] for offset in range(first, last + 1)]
        assert offsets == expected[row["partition"]]
        assert row["records"] == len(offsets)
    assert [row["records"] for row in rows[3:]] == [0, 0, 0]
    code, output, error = run("records", "find", "command-one:1", "--header", f"who={PERSON.decode()}", *at)
    assert (code, error) == (0, "")
    assert output.splitlines()[0].split("  ")[0] == "topic"
    assert str(len(expected[1])) in output.splitlines()[1]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("command-one",), "give one of --key, --keys-from and --header"),
        (("command-one", "--key", "secret", "--header", "a=secret"), "--key and --header exclude each other"),
        (("command-one", "--key", "secret", "--key-format", "hex"), "the key is not hex"),
        (("command-one", "--key", "secret!", "--key-format", "base64"), "the key is not base64"),
        (("command-one", "--header", "secret"), "NAME=VALUE"),
        (("command-one", "--keys-from", "/nowhere/keys"), "can't be read"),
        (("command-one", "--keys-from", "/dev/null"), "has no key"),
        (("--key", "secret"), "give a topic"),
        (("--topics-matching", "nothing-*", "--key", "secret"), "no topic matches"),
        (("absent", "--key", "secret"), "no topic absent"),
        (("command-one:9", "--key", "secret"), "no partition 9"),
    ],
)
def test_bad_input_is_refused(
    cluster: LowtideCluster, admin: BlockingAdminClient, arguments: tuple[str, ...], reason: str
) -> None:
    """Protects from a search for something else; the key is not repeated on the terminal."""
    admin.create_topics([NewTopic(name="command-one", partitions=3)])
    _, output, error = run("records", "find", *arguments, "-b", cluster.bootstrap, code=2)
    assert output == ""
    assert reason in error
    assert "secret" not in error
