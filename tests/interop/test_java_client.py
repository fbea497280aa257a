"""Kafka's Java client against Lowtide: the program in `java/` prints results, and the tests check them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from . import load
from .lowtide_process import LowtideProcess
from .tools import EACH_VERSION, JavaClient

pytestmark = [pytest.mark.interop, EACH_VERSION]

SCENARIOS = ("records", "append-time", "offsets", "delete", "cluster", "topics", "configs", "directories", "producers")
PER_PRODUCER = 150
COUNT = 100
"""Records for the tests of offsets, one a second, except `LATEST_IN_TIME` at second `10 * COUNT`."""

LATEST_IN_TIME = 40


class ScenarioOutput:
    """The lines of one complete scenario."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self._lines = lines
        if lacking := self.all("not in this client"):
            pytest.skip(f"not in this version of the client: {lacking[0]['error']}")
        assert self.all("failed") == []

    def all(self, what: str) -> list[dict[str, Any]]:
        """Returns the results of this name, in order."""
        return [
            {name: value for name, value in line.items() if name != "what"}
            for line in self._lines
            if line["what"] == what
        ]

    def one(self, what: str) -> dict[str, Any]:
        """Returns the only result of this name."""
        [found] = self.all(what)
        return found

    def errors(self, what: str) -> list[str]:
        """Returns the exceptions of these calls."""
        return [line["error"] for line in self.all(what)]


@pytest.fixture(scope="module")
def seen(java_client: JavaClient) -> Callable[[str], ScenarioOutput]:
    """The results of a scenario; all of them run in one JVM."""
    lines = java_client.see(*SCENARIOS)
    return lambda scenario: ScenarioOutput(lines[scenario])


def at(number: int) -> int:
    return load.BASE_TIME_MS + number * 1000


def written_record(partition: int, number: int) -> dict[str, Any]:
    """Returns a record of the scenario about codecs, as it must be read back."""
    return {
        "partition": partition,
        "offset": number,
        "timestamp": at(number),
        "type": "CreateTime",
        "key": None if number % 7 == 0 else f"key-{number}",
        "value": None if number % 5 == 0 else f"{load.CODECS[partition]}-{number} " * 20,
        "headers": [["number", str(number)], ["number", None], ["", ""]],
    }


@pytest.mark.parametrize("partition", range(len(load.CODECS)), ids=load.CODECS)
def test_records_are_read_back_whole_and_in_order(seen: Callable[[str], ScenarioOutput], partition: int) -> None:
    """With headers, nulls and times; half of each codec by an idempotent producer."""
    records = seen("records")
    written = [
        offset for line in records.all("written") if line["partition"] == partition for offset in line["offsets"]
    ]
    assert written == list(range(2 * PER_PRODUCER))
    read = [record for record in records.all("read") if record["partition"] == partition]
    assert read == [written_record(partition, number) for number in range(2 * PER_PRODUCER)]


def test_the_brokers_time_replaces_the_producers(seen: Callable[[str], ScenarioOutput]) -> None:
    written, read = seen("append-time").one("written"), seen("append-time").one("read")
    assert written["before"] <= written["timestamp"] <= written["after"]
    assert (read["timestamp"], read["type"]) == (written["timestamp"], "LogAppendTime")


def test_offsets_of_every_kind(seen: Callable[[str], ScenarioOutput]) -> None:
    """Kafka's consumer and its administrator agree."""
    offsets = seen("offsets")
    assert {
        what: offsets.one(what)
        for what in ("earliest", "latest", "max timestamp", "at 30", "after 30", "after the end")
    } == {
        "earliest": {"offset": 0, "timestamp": -1, "epoch": 0},
        "latest": {"offset": COUNT, "timestamp": -1, "epoch": 0},
        "max timestamp": {"offset": LATEST_IN_TIME, "timestamp": at(10 * COUNT), "epoch": 0},
        "at 30": {"offset": 30, "timestamp": at(30), "epoch": 0},
        "after 30": {"offset": 31, "timestamp": at(31), "epoch": 0},
        "after the end": {"offset": -1, "timestamp": -1, "epoch": None},
    }
    assert (offsets.one("beginning"), offsets.one("end")) == ({"offset": 0}, {"offset": COUNT})


def test_a_consumer_begins_at_a_time(seen: Callable[[str], ScenarioOutput]) -> None:
    """The first record that is not older: for the last second the one with a much later timestamp."""
    assert seen("offsets").all("seek") == [
        {"number": 0, "offset": 0, "timestamp": at(0), "value": "value-0"},
        {"number": 20, "offset": 20, "timestamp": at(20), "value": "value-20"},
        {
            "number": COUNT - 1,
            "offset": LATEST_IN_TIME,
            "timestamp": at(10 * COUNT),
            "value": f"value-{LATEST_IN_TIME}",
        },
    ]


def test_records_are_deleted(seen: Callable[[str], ScenarioOutput]) -> None:
    delete = seen("delete")
    assert delete.all("deleted") == [
        {"before": 30, "error": "none", "low": 30},
        {"before": 10, "error": "none", "low": 30},
        {"before": COUNT + 1, "error": "OffsetOutOfRangeException", "low": None},
    ]
    assert delete.one("beginning") == {"offset": 30}
    assert delete.one("emptied") == {"offset": COUNT}


def test_a_consumer_below_the_start_resets_by_its_policy(seen: Callable[[str], ScenarioOutput]) -> None:
    """`auto.offset.reset`: it reads one record from the start, or none from the end, or gets an error."""
    assert seen("delete").all("reset") == [{"to": "earliest", "position": 31}, {"to": "latest", "position": COUNT}]
    assert seen("delete").one("out of range") == {"to": "none", "offsets": {"java-delete-0": 0}}


def test_log_directories_have_their_partitions(seen: Callable[[str], ScenarioOutput], broker: LowtideProcess) -> None:
    """The size of a partition is that of its segments on disk, and the disk's size is returned."""
    directory = seen("directories").one("directory")
    assert (directory["path"], directory["error"]) == (str(broker.directory), None)
    for partition in range(2):
        segments = broker.directory.glob(f"java-directories-{partition}/*.log")
        assert directory["sizes"][f"java-directories-{partition}"] == sum(
            segment.stat().st_size for segment in segments
        )
    assert directory["sizes"]["java-directories-1"] > directory["sizes"]["java-directories-0"] == 0
    assert 0 < directory["usable"] < directory["total"]
    assert seen("directories").one("replica") == {"path": str(broker.directory), "lag": 0}


def test_producers_are_known_by_what_they_wrote(seen: Callable[[str], ScenarioOutput]) -> None:
    producer = seen("producers").one("producer")
    assert producer.pop("id") >= 0
    assert producer == {"epoch": 0, "sequence": 2, "timestamp": load.BASE_TIME_MS + 2, "transaction": False}


def test_the_cluster_describes_itself(seen: Callable[[str], ScenarioOutput], broker: LowtideProcess) -> None:
    """Without an authorizer every client may do every operation on a cluster."""
    cluster = seen("cluster").one("cluster")
    assert f"cluster.id={cluster.pop('id')}\n" in (broker.directory / "meta.properties").read_text()
    operations = [
        "ALTER",
        "ALTER_CONFIGS",
        "CLUSTER_ACTION",
        "CREATE",
        "DESCRIBE",
        "DESCRIBE_CONFIGS",
        "IDEMPOTENT_WRITE",
    ]
    assert cluster == {"controller": 0, "nodes": [f"0@{broker.bootstrap}"], "operations": operations}


def test_a_topic_is_created_grown_and_deleted(seen: Callable[[str], ScenarioOutput]) -> None:
    """Described by its name, in answers of two partitions each, and by its id."""
    topics = seen("topics")
    topic_id = topics.one("created").pop("id")
    assert topics.one("created") == {"id": topic_id, "partitions": 2, "replicas": 1, "retention": "86400000"}
    assert topics.errors("again") == ["TopicExistsException"]
    assert topics.errors("tried") == ["none"]
    assert topics.errors("partitions") == ["none", "InvalidPartitionsException", "InvalidPartitionsException"]
    described = {"name": "java-topics", "id": topic_id, "partitions": [[partition, 0, 1, 1] for partition in range(5)]}
    assert topics.all("described") == [described, described]
    assert topics.errors("unknown") == ["UnknownTopicOrPartitionException"]
    assert (topics.one("listed"), topics.errors("deleted"), topics.one("gone")) == (
        {"there": True},
        ["none"],
        {"there": False},
    )
    assert topics.errors("deleted again") == ["UnknownTopicOrPartitionException"]


def test_a_topics_configuration_changes_as_requested(seen: Callable[[str], ScenarioOutput]) -> None:
    """Set, appended, deleted, subtracted; no change when it was only validated, or refused."""
    configs = seen("configs")
    assert [
        (line["name"], line["value"], line["source"])
        for line in configs.all("config")
        if not line["name"].startswith("l")
    ] == [
        ("retention.ms", "1000", "DYNAMIC_TOPIC_CONFIG"),
        ("cleanup.policy", "delete", "DEFAULT_CONFIG"),
        ("segment.bytes", "1073741824", "DEFAULT_CONFIG"),
        ("retention.ms", "1000", "DYNAMIC_TOPIC_CONFIG"),
        ("retention.ms", "2000", "DYNAMIC_TOPIC_CONFIG"),
        ("cleanup.policy", "delete,compact", "DYNAMIC_TOPIC_CONFIG"),
        ("retention.ms", "604800000", "DEFAULT_CONFIG"),
        ("cleanup.policy", "compact", "DYNAMIC_TOPIC_CONFIG"),
    ]
    refused = ["InvalidConfigurationException", "InvalidConfigurationException", "UnknownTopicOrPartitionException"]
    assert (configs.errors("tried"), configs.errors("altered")) == (["none"], ["none", "none", *refused])
    assert configs.one("resources") == {"there": True}


def test_a_configuration_has_types_and_sources(seen: Callable[[str], ScenarioOutput], broker: LowtideProcess) -> None:
    found = {line["name"]: line for line in seen("configs").all("config")}
    assert all(line["documented"] for line in found.values())
    assert (found["retention.ms"]["type"], found["retention.ms"]["read only"]) == ("LONG", False)
    assert found["cleanup.policy"]["synonyms"] == [
        "cleanup.policy=compact DYNAMIC_TOPIC_CONFIG",
        "log.cleanup.policy=delete DEFAULT_CONFIG",
    ]
    assert (found["log.retention.ms"]["value"], found["log.segment.bytes"]["value"]) == (None, "1073741824")
    assert (found["listeners"]["type"], found["listeners"]["source"]) == ("LIST", "STATIC_BROKER_CONFIG")
