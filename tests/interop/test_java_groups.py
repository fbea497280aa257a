"""Consumer groups of Kafka's Java client, and kafka-consumer-groups, against a running Lowtide."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from . import load
from .lowtide_process import LowtideProcess
from .tools import EACH_VERSION, JavaClient, Tools

pytestmark = [pytest.mark.interop, EACH_VERSION]

ASSIGNORS = {"RangeAssignor": "range", "RoundRobinAssignor": "roundrobin", "StickyAssignor": "sticky"}
ASSIGNORS["CooperativeStickyAssignor"] = "cooperative-sticky"
PARTITIONS, PER_PARTITION = 4, 10


@pytest.fixture(scope="module")
def lines(java_client: JavaClient) -> list[dict[str, Any]]:
    """The results of the scenario, with all assignors."""
    found = java_client.see("groups")["groups"]
    assert [line for line in found if line["what"] == "failed"] == []
    return found


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_members_share_a_topic_and_one_takes_over_from_the_other(
    lines: list[dict[str, Any]], assignor: str, kafka_version: str
) -> None:
    """Each record is read once by the group, from the committed offset on.

    A client before 4.0 describes an unknown group as dead, without an error.
    """
    said: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line["assignor"] == assignor:
            said.setdefault(line["what"], []).append(line)
    everything = {str(partition): list(range(PER_PARTITION)) for partition in range(PARTITIONS)}
    more = {partition: [offset + PER_PARTITION for offset in offsets] for partition, offsets in everything.items()}
    assert (said["alone"][0]["read"], said["alone"][0]["partitions"]) == (everything, list(range(PARTITIONS)))
    together = said["together"][0]
    assert sorted(together["first"] + together["second"]) == list(range(PARTITIONS))
    assert said["shared"][0]["read"] == more
    assert said["alone again"][0]["partitions"] == list(range(PARTITIONS))
    described = said["described"][0]
    assert (described["state"], described["by"], described["type"]) == ("Stable", ASSIGNORS[assignor], "Classic")
    assert described["members"] == {"first": together["first"], "second": together["second"]}
    assert said["listed"][0]["is"] is True
    assert [line["error"] for line in said["deleted"]] == ["GroupNotEmptyException", "none"]
    assert said["offsets"][0]["offsets"] == {"1": "7by hand", "2": "20", "3": "20"}
    gone = "none" if kafka_version.startswith("3.") else "GroupIdNotFoundException"
    assert said["gone"][0]["error"] == gone


def rows(text: str) -> list[dict[str, str]]:
    """Returns the table that the tool prints: its columns by their names."""
    found = [re.split(r"\s+", line.strip()) for line in text.splitlines() if line.strip()]
    return [dict(zip(found[0], row, strict=False)) for row in found[1:]]


@contextmanager
def member(broker: LowtideProcess, group: str, topic: str) -> Iterator[Consumer]:
    """A consumer of the group that has its partitions."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    try:
        message = consumer.poll(load.DEADLINE_S)
        assert message is not None
        assert message.error() is None
        yield consumer
    finally:
        consumer.close()


def test_groups_are_listed_described_reset_and_deleted(tools: Tools, broker: LowtideProcess) -> None:
    tools.run("kafka-topics", "--create", "--topic", "grouped", "--partitions", "2", "--config", "retention.ms=-1")
    load.produce(tools.bootstrap, "grouped", codecs=["none"])
    group = ("--group", "readers")
    with member(broker, "readers", "grouped") as consumer:
        consumer.commit(offsets=[TopicPartition("grouped", 0, 5)], asynchronous=False)
        assert "readers" in tools.run("kafka-consumer-groups", "--list").lines
        [state] = rows(tools.run("kafka-consumer-groups", "--list", "--state", "--type", "classic").out)
        assert (state["GROUP"], state["TYPE"].lower(), state["STATE"]) == ("readers", "classic", "Stable")
        described = {
            row["PARTITION"]: row for row in rows(tools.run("kafka-consumer-groups", "--describe", *group).out)
        }
        place = described["0"]
        assert (place["CURRENT-OFFSET"], place["LOG-END-OFFSET"], place["LAG"]) == (
            "5",
            str(load.PER_CODEC),
            str(load.PER_CODEC - 5),
        )
        assert {row["CLIENT-ID"] for row in described.values()} == {"rdkafka"}
        assert described["1"]["CURRENT-OFFSET"] == "-"
        [one] = rows(tools.run("kafka-consumer-groups", "--describe", "--members", "--verbose", *group).out)
        assert (one["#PARTITIONS"], one["HOST"]) == ("2", "/127.0.0.1")
        refused = tools.call(
            "kafka-consumer-groups", "--reset-offsets", "--to-earliest", "--topic", "grouped", "--execute", *group
        )
        assert "inactive" in refused.out + refused.err
        refused = tools.call("kafka-consumer-groups", "--delete", *group)
        assert "GroupNotEmptyException" in refused.out
    for how, expected in {
        ("--to-offset", "17"): "17",
        ("--shift-by", "3"): "20",
        ("--to-latest",): str(load.PER_CODEC),
    }.items():
        ran = tools.run("kafka-consumer-groups", "--reset-offsets", *how, "--topic", "grouped:0", "--execute", *group)
        assert ran.out.split()[3:4] + ran.out.split()[-1:] == ["NEW-OFFSET", expected], ran
    described = {row["PARTITION"]: row for row in rows(tools.call("kafka-consumer-groups", "--describe", *group).out)}
    assert (described["0"]["CURRENT-OFFSET"], described["0"]["LAG"]) == (str(load.PER_CODEC), "0")
    tools.run("kafka-consumer-groups", "--delete-offsets", "--topic", "grouped:0", *group)
    tools.run("kafka-consumer-groups", "--delete", *group)
    assert "readers" not in tools.run("kafka-consumer-groups", "--list").lines
