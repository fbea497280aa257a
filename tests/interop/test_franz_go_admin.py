"""franz-go's administrative client: topics, partitions, configurations, log directories, producers.

Kafka 4.3 met each expectation too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from .franz_go import BASE_TIME_MS, FranzGo, Record, numbered, record
from .lowtide_process import LowtideProcess

pytestmark = pytest.mark.interop

NODE_ID = 0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LowtideProcess]:
    """One broker for all tests, with two log directories; it must report no fault."""
    folder = tmp_path_factory.mktemp("lowtide")
    with LowtideProcess(folder / "one", log_dirs=f"{folder / 'one'},{folder / 'two'}") as process:
        yield process


@pytest.fixture
def topic(go: FranzGo) -> str:
    """A topic of three empty partitions."""
    name = f"franz-go-{uuid.uuid4().hex[:8]}"
    assert go.one("create-topic", topic=name, count=3)["error"] == ""
    return name


def test_topics_are_created_described_and_deleted(go: FranzGo) -> None:
    topic = f"made-{uuid.uuid4().hex[:8]}"
    settings = {"config": ["retention.ms=3600000", "segment.bytes=2097152"], "count": 5, "topic": topic}
    assert go.one("create-topic", dry=True, **settings)["error"] == ""
    assert go.run("metadata", topic=topic)[-1]["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
    made = go.one("create-topic", **settings)
    assert (made["error"], made["partitions"], made["replicas"], made["configs"]["segment.bytes"]) == (
        "",
        5,
        1,
        "2097152",
    )
    assert go.one("create-topic", **settings)["error"] == "TOPIC_ALREADY_EXISTS"
    described = [line for line in go.run("metadata", topic=topic) if line.get("topic")]
    assert (described[0]["id"], described[0]["internal"]) == (made["id"], False)
    assert [(line["partition"], line["leader"], line["replicas"], line["isr"]) for line in described[1:]] == [
        (partition, NODE_ID, [NODE_ID], [NODE_ID]) for partition in range(5)
    ]
    assert go.one("delete-topic", topic=topic)["error"] == ""
    assert go.one("delete-topic", topic=topic)["error"] == "UNKNOWN_TOPIC_OR_PARTITION"


@pytest.mark.parametrize(
    ("topic", "flags", "error"),
    [
        ("not/a/topic", {}, "INVALID_TOPIC_EXCEPTION"),
        ("a" * 250, {}, "INVALID_TOPIC_EXCEPTION"),
        ("no-partitions", {"count": 0}, "INVALID_PARTITIONS"),
        ("bad-config", {"config": ["segment.bytes=few"]}, "INVALID_CONFIG"),
        ("no-such-config", {"config": ["segment.bites=1"]}, "INVALID_CONFIG"),
    ],
)
def test_an_impossible_topic_is_refused_with_a_reason(
    go: FranzGo, topic: str, flags: dict[str, object], error: str
) -> None:
    refused = go.one("create-topic", topic=topic, **flags)
    assert refused["error"] == error
    assert refused["message"]


def test_the_cluster_has_its_broker_and_controller(go: FranzGo, broker: LowtideProcess, topic: str) -> None:
    cluster, told = go.run("metadata", topic=topic)[:2]
    assert cluster["controller"] == NODE_ID
    assert len(cluster["cluster"]) == 22
    assert told == {"broker": NODE_ID, "host": "127.0.0.1", "port": int(broker.bootstrap.partition(":")[2])}


def test_every_version_that_franz_go_may_use_is_listed(go: FranzGo) -> None:
    told = go.one("api-versions")["versions"]
    expected = {
        "Produce": [0, 13],
        "Fetch": [4, 18],
        "ListOffsets": [1, 11],
        "Metadata": [0, 13],
        "ApiVersions": [0, 5],
        "InitProducerID": [0, 5],
    }
    assert {name: told[name] for name in expected} == expected


def test_partitions_are_added_and_used(go: FranzGo, topic: str) -> None:
    go.produce(topic, numbered(3, partition=2))
    assert go.one("create-partitions", topic=topic, count=9, dry=True)["error"] == ""
    assert len(go.offsets(topic)) == 3
    assert go.one("create-partitions", topic=topic, count=5)["error"] == ""
    assert go.one("create-partitions", topic=topic, count=1, add=True)["error"] == ""
    sent = numbered(4, partition=5)
    go.produce(topic, sent)
    assert [record(line) for line in go.consume(topic, 4, partitions="5")] == sent
    assert go.offsets(topic) == {0: 0, 1: 0, 2: 3, 3: 0, 4: 0, 5: 4}


@pytest.mark.parametrize(
    ("count", "error"), [(2, "INVALID_PARTITIONS"), (3, "INVALID_PARTITIONS"), (0, "INVALID_PARTITIONS")]
)
def test_partitions_are_never_removed(go: FranzGo, topic: str, count: int, error: str) -> None:
    refused = go.one("create-partitions", topic=topic, count=count)
    assert refused["error"] == error
    assert refused["message"]
    assert len(go.offsets(topic)) == 3


def test_partitions_are_described_a_few_at_a_time(go: FranzGo) -> None:
    """DescribeTopicPartitions with a limit returns a cursor, where the next request continues."""
    topic = f"described-{uuid.uuid4().hex[:8]}"
    made = go.one("create-topic", topic=topic, count=7)
    told = go.run("describe-partitions", topic=topic, count=3)
    assert [[row["partition"] for row in line["partitions"]] for line in told] == [[0, 1, 2], [3, 4, 5], [6]]
    assert {(line["topic"], line["id"], line["error"]) for line in told} == {(topic, made["id"], "")}
    rows = [row for line in told for row in line["partitions"]]
    assert all(
        (row["leader"], row["replicas"], row["isr"], row["error"]) == (NODE_ID, [NODE_ID], [NODE_ID], "")
        for row in rows
    )
    [unknown] = go.run("describe-partitions", topic="no-such-topic")
    assert unknown["error"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_the_cluster_is_described(go: FranzGo, broker: LowtideProcess) -> None:
    told, known = go.one("describe-cluster"), go.run("metadata")[0]
    host, _, port = broker.bootstrap.partition(":")
    assert (told["cluster"], told["controller"], told["error"]) == (known["cluster"], NODE_ID, "")
    assert told["brokers"] == [{"broker": NODE_ID, "host": host, "port": int(port), "rack": None}]


def configs(go: FranzGo, **flags: object) -> dict[str, dict[str, object]]:
    return {line["name"]: line for line in go.run("describe-configs", **flags)}


def test_a_topic_s_configuration_is_described_with_its_sources(go: FranzGo) -> None:
    topic = f"configured-{uuid.uuid4().hex[:8]}"
    made = go.one("create-topic", topic=topic, config=["segment.bytes=2097152"])
    told = configs(go, topic=topic)
    assert {name: line["value"] for name, line in told.items()} == made["configs"]
    assert told["segment.bytes"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert told["segment.bytes"]["synonyms"] == [
        {"name": "segment.bytes", "value": "2097152", "source": "DYNAMIC_TOPIC_CONFIG"},
        {"name": "log.segment.bytes", "value": "1073741824", "source": "DEFAULT_CONFIG"},
    ]
    assert told["max.message.bytes"]["source"] == "DEFAULT_CONFIG"
    [unknown] = go.run("describe-configs", topic="no-such-topic")
    assert unknown["error"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_topic_s_configuration_is_altered_key_by_key(go: FranzGo, topic: str) -> None:
    """Set, append, subtract and delete, by IncrementalAlterConfigs; a validation alone changes nothing."""

    def alter(*changes: str, dry: bool = False) -> str:
        return go.one("alter-configs", topic=topic, config=list(changes), dry=dry)["error"]

    assert alter("segment.bytes=3000000", dry=True) == ""
    assert configs(go, topic=topic)["segment.bytes"]["value"] == "1073741824"
    assert alter("segment.bytes=3000000", "+cleanup.policy=compact") == ""
    told = configs(go, topic=topic)
    assert (told["segment.bytes"]["value"], told["cleanup.policy"]["value"]) == ("3000000", "delete,compact")
    assert alter("-cleanup.policy=delete", "!segment.bytes") == ""
    told = configs(go, topic=topic)
    assert (told["segment.bytes"]["source"], told["cleanup.policy"]["value"]) == ("DEFAULT_CONFIG", "compact")


def test_a_topic_s_configuration_is_replaced_by_the_older_request(go: FranzGo, topic: str) -> None:
    """AlterConfigs: keys that are not named return to their defaults."""
    assert go.one("alter-configs", topic=topic, config=["segment.bytes=3000000", "retention.ms=1000000"])["error"] == ""
    assert go.one("alter-configs", topic=topic, legacy=True, dry=True, config=["retention.bytes=5"])["error"] == ""
    assert configs(go, topic=topic)["segment.bytes"]["value"] == "3000000"
    assert go.one("alter-configs", topic=topic, legacy=True, config=["retention.ms=2000000"])["error"] == ""
    told = configs(go, topic=topic)
    assert (told["segment.bytes"]["source"], told["retention.ms"]["value"]) == ("DEFAULT_CONFIG", "2000000")


def test_an_altered_limit_applies_at_once(go: FranzGo, topic: str) -> None:
    text = Record(b"x" * 5000).line()
    assert go.one("produce", topic=topic, text=text)["error"] == ""
    assert go.one("alter-configs", topic=topic, config=["max.message.bytes=1000"])["error"] == ""
    assert go.one("produce", topic=topic, text=text)["error"] == "MESSAGE_TOO_LARGE"
    assert go.one("alter-configs", topic=topic, config=["!max.message.bytes"])["error"] == ""
    assert go.one("produce", topic=topic, text=text)["error"] == ""


@pytest.mark.parametrize("legacy", [False, True], ids=["incremental", "legacy"])
@pytest.mark.parametrize(
    ("change", "error"), [("segment.bytes=few", "INVALID_CONFIG"), ("segment.bites=1", "INVALID_CONFIG")]
)
def test_a_configuration_that_is_invalid_is_refused_with_a_reason(
    go: FranzGo, topic: str, change: str, error: str, legacy: bool
) -> None:
    refused = go.one("alter-configs", topic=topic, config=[change], legacy=legacy)
    assert refused["error"] == error
    assert refused["message"]


def test_a_broker_s_configuration_is_described_and_altered(go: FranzGo, broker: LowtideProcess) -> None:
    """Values from the start are static; altered ones are dynamic; some keys cannot be altered."""
    told = configs(go, resource=NODE_ID)
    assert told["log.dirs"]["source"] == "STATIC_BROKER_CONFIG"
    assert told["message.max.bytes"]["source"] == "DEFAULT_CONFIG"
    assert go.one("alter-configs", resource=NODE_ID, config=["log.retention.ms=700000000"])["error"] == ""
    told = configs(go, resource=NODE_ID)
    assert (told["log.retention.ms"]["value"], told["log.retention.ms"]["source"]) == (
        "700000000",
        "DYNAMIC_BROKER_CONFIG",
    )
    assert go.one("alter-configs", resource=NODE_ID, config=["!log.retention.ms"])["error"] == ""
    assert configs(go, resource=NODE_ID)["log.retention.ms"]["source"] == "DEFAULT_CONFIG"
    refused = go.one("alter-configs", resource=NODE_ID, config=["log.dirs=elsewhere"])
    assert refused["error"] == "INVALID_REQUEST"
    assert refused["message"]


def test_resources_with_a_configuration_are_listed(go: FranzGo, topic: str) -> None:
    listed = {(line["type"], line["name"]) for line in go.run("list-configs")}
    assert {("TOPIC", topic), ("BROKER", str(NODE_ID))} <= listed


def test_log_directories_are_described_with_their_partitions(go: FranzGo, broker: LowtideProcess, topic: str) -> None:
    """Two directories: each partition is in one, with its bytes; without a topic all are described."""
    go.produce(topic, numbered(10))
    told = go.run("log-dirs", topic=topic, partitions="0-2")
    directories = [broker.directory, broker.directory.with_name("two")]
    assert [(line["broker"], line["directory"], line["error"], line["cordoned"]) for line in told] == [
        (NODE_ID, str(directory), "", False) for directory in directories
    ]
    assert all(0 < line["usable_bytes"] <= line["total_bytes"] for line in told)
    found = {row["partition"]: (Path(line["directory"]), row) for line in told for row in line["partitions"]}
    assert sorted(found) == [0, 1, 2]
    for partition, (directory, row) in found.items():
        size = sum(path.stat().st_size for path in (directory / f"{topic}-{partition}").glob("*.log"))
        assert (row["bytes"], row["lag"], row["future"]) == (size, 0, False)
    assert found[0][1]["bytes"] > 0
    everything = [row["topic"] for line in go.run("log-dirs") for row in line["partitions"]]
    assert everything.count(topic) == 3


def test_the_producers_of_a_partition_are_described(go: FranzGo, topic: str) -> None:
    go.produce(topic, numbered(5))
    [written] = {line["producer_id"] for line in go.consume(topic, 5)}
    told, empty = go.run("producers", topic=topic, partitions="0-1")
    assert told["producers"] == [
        {
            "id": written,
            "epoch": 0,
            "last_sequence": 4,
            "last_timestamp_ms": BASE_TIME_MS + 4000,
            "coordinator_epoch": -1,
            "transaction_start": -1,
        }
    ]
    assert (empty["producers"], empty["error"]) == ([], "")
