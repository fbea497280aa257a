"""Kafka's other tools work against three brokers of Lowtide, or report what is not served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from lowtide import LowtideCluster

from .tools import Tools

pytestmark = pytest.mark.interop

COUNT = 25


@pytest.fixture(scope="module")
def three() -> Iterator[LowtideCluster]:
    with LowtideCluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tools(jars: Any, three: LowtideCluster, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return Tools(jars, three.address(1), tmp_path_factory.mktemp("jvm"))


def create(tools: Tools, topic: str, *more: str) -> None:
    tools.run("kafka-topics", "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "3", *more)


def events(lines: list[str], name: str) -> list[dict[str, Any]]:
    """Returns the lines of a verifiable client with that name."""
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [event for event in found if event["name"] == name]


def test_verifiable_clients_and_the_groups_that_they_leave(tools: Tools) -> None:
    create(tools, "verified")
    sent = tools.run("kafka-verifiable-producer", "--topic", "verified", "--max-messages", str(COUNT), "--acks", "-1")
    assert len(events(sent.lines, "producer_send_success")) == COUNT
    where = ("--topic", "verified", "--max-messages", str(COUNT), "--reset-policy", "earliest")
    for group, protocol in (("classic-group", "classic"), ("consumer-group", "consumer")):
        read = tools.call("kafka-verifiable-consumer", *where, "--group-id", group, "--group-protocol", protocol)
        assert read.exit_code == 0, read
        assert sum(event["count"] for event in events(read.lines, "records_consumed")) == COUNT
        assert all(event["success"] for event in events(read.lines, "offsets_committed"))
    rows = {line.split()[0]: line.split()[1] for line in tools.run("kafka-groups", "--list").lines[1:]}
    assert (rows["classic-group"], rows["consumer-group"]) == ("Classic", "Consumer")
    only = tools.run("kafka-groups", "--list", "--group-type", "consumer").lines[1:]
    assert [line.split()[0] for line in only] == ["consumer-group"]


def test_latency_from_end_to_end(tools: Tools) -> None:
    create(tools, "latency")
    arguments = ("--topic", "latency", "--num-records", "20", "--producer-acks", "all", "--record-size", "100")
    said = tools.call("kafka-e2e-latency", *arguments)
    assert (said.exit_code, "Avg latency: " in said.out) == (0, True), said


def test_replicas_are_compared(tools: Tools, three: LowtideCluster) -> None:
    create(tools, "compared")
    producer = Producer({"bootstrap.servers": three.bootstrap, "acks": "all"})
    for number in range(COUNT):
        producer.produce("compared", b"%d" % number, partition=0)
    assert producer.flush(30) == 0
    arguments = (
        "--broker-list",
        tools.bootstrap,
        "--topics-include",
        "compared",
        "--time",
        "-2",
        "--report-interval-ms",
        "1000",
    )
    lines = tools.watch("kafka-replica-verification", *arguments, until="max lag is 0")
    assert "among 2 partitions" in lines[-1]


def test_transactions_are_listed_and_hanging_ones_are_sought(tools: Tools, three: LowtideCluster) -> None:
    create(tools, "transactional")
    producer = Producer({"bootstrap.servers": three.bootstrap, "transactional.id": "tool"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("transactional", b"open", partition=0)
    assert producer.flush(30) == 0
    listed = [line.split() for line in tools.run("kafka-transactions", "list").lines[1:]]
    assert [(row[0], row[3]) for row in listed] == [("tool", "Ongoing")]
    described = tools.run("kafka-transactions", "describe", "--transactional-id", "tool").lines[1].split()
    assert ("Ongoing" in described, "transactional-0" in described) == (True, True)
    producers = tools.run(
        "kafka-transactions", "describe-producers", "--topic", "transactional", "--partition", "0"
    ).lines[1:]
    assert [row.split()[-1] for row in producers] == ["0"], "the open transaction begins at offset 0"
    for broker_id in ("1", "2", "3"):
        assert tools.run("kafka-transactions", "find-hanging", "--broker-id", broker_id).lines[1:] == []
    producer.abort_transaction(30)


def test_offsets_of_an_application_of_streams_are_reset(tools: Tools) -> None:
    create(tools, "streamed")
    said = tools.run("kafka-streams-application-reset", "--application-id", "application", "--input-topics", "streamed")
    assert ("Topic: streamed Partition: 1 Offset: 0" in said.out, said.lines[-1]) == (True, "Done.")


def test_share_groups_are_listed(tools: Tools) -> None:
    assert [line for line in tools.run("kafka-share-groups", "--list").lines if line] == []


def test_voters_are_not_changed(tools: Tools) -> None:
    """There is no quorum of controllers; the brokers are no controllers' endpoints either."""
    directory = "AAAAAAAAAAAAAAAAAAAAAQ"
    removed = tools.call("kafka-metadata-quorum", "remove-controller", "-i", "1", "-d", directory)
    assert (removed.exit_code, "The node does not support REMOVE_RAFT_VOTER" in removed.err) == (1, True), removed
