"""Kafka's tools for share groups (KIP-932), unmodified, against one broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .lowtide_process import LowtideProcess
from .tools import Tools

pytestmark = pytest.mark.interop

COUNT = 60
GROUPS = "kafka-share-groups"


@pytest.fixture(scope="module")
def quick_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LowtideProcess]:
    """A broker that lets groups have short times."""
    with LowtideProcess(
        tmp_path_factory.mktemp("lowtide") / "data", group_share_min_heartbeat_interval_ms="300"
    ) as process:
        yield process


@pytest.fixture(scope="module")
def tools(jars: Path, quick_broker: LowtideProcess, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    """The topic `jobs` has one partition with records; the clients join groups that begin with the first."""
    made = Tools(jars, quick_broker.bootstrap, tmp_path_factory.mktemp("jvm"))
    made.run("kafka-topics", "--create", "--topic", "jobs")
    made.run("kafka-console-producer", "--topic", "jobs", stdin="".join(f"job {number}\n" for number in range(COUNT)))
    return made


def begin_early(tools: Tools, group: str) -> None:
    setting = ("--add-config", "share.auto.offset.reset=earliest,share.heartbeat.interval.ms=300")
    tools.run("kafka-configs", "--alter", "--entity-type", "groups", "--entity-name", group, *setting)


def consume(tools: Tools, group: str, count: int, *more: str) -> list[str]:
    """Returns the records that a console consumer prints."""
    words = ("--topic", "jobs", "--group", group, "--max-messages", str(count), "--timeout-ms", "60000", *more)
    ran = tools.call("kafka-console-share-consumer", *words)
    assert (ran.exit_code, f"Processed a total of {count} messages" in ran.err) == (0, True), ran
    return ran.lines


def rows(tools: Tools, *arguments: str) -> list[dict[str, str]]:
    """Returns the table that kafka-share-groups prints."""
    lines = [line.split() for line in tools.run(GROUPS, *arguments).lines if line]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]


def start(tools: Tools, group: str) -> tuple[str, str]:
    """Returns the start offset of a group, and its lag."""
    [row] = rows(tools, "--describe", "--group", group)
    return row["START-OFFSET"], row["LAG"]


def test_a_group_consumes_is_described_reset_and_deleted(tools: Tools) -> None:
    begin_early(tools, "workers")
    assert consume(tools, "workers", COUNT) == [f"job {number}" for number in range(COUNT)]
    assert "workers" in tools.run(GROUPS, "--list").lines
    assert {"GROUP": "workers", "STATE": "Empty"} in rows(tools, "--list", "--state")
    assert start(tools, "workers") == (str(COUNT), "0")
    [verbose] = [row for row in rows(tools, "--describe", "--all-groups", "--verbose") if row["GROUP"] == "workers"]
    assert (verbose["LEADER-EPOCH"], verbose["START-OFFSET"]) == ("0", str(COUNT))
    where = ("--reset-offsets", "--group", "workers", "--topic", "jobs")
    [planned] = rows(tools, *where, "--to-earliest", "--dry-run")
    assert (planned["NEW-OFFSET"], start(tools, "workers")) == ("0", (str(COUNT), "0"))
    rows(tools, *where, "--to-earliest", "--execute")
    assert start(tools, "workers") == ("0", str(COUNT))
    assert len(consume(tools, "workers", COUNT)) == COUNT
    rows(tools, *where, "--to-datetime", "2020-01-01T00:00:00.000", "--execute")
    assert start(tools, "workers") == ("0", str(COUNT))
    rows(tools, *where, "--to-latest", "--execute")
    assert start(tools, "workers") == (str(COUNT), "0")
    assert rows(tools, "--delete-offsets", "--group", "workers", "--topic", "jobs") == [
        {"TOPIC": "jobs", "STATUS": "Successful"}
    ]
    assert "has no offset information" in tools.run(GROUPS, "--describe", "--group", "workers").out
    assert (
        "Deletion of requested share groups ('workers') was successful."
        in tools.run(GROUPS, "--delete", "--group", "workers").out
    )
    assert "workers" not in tools.run(GROUPS, "--list").lines


def test_released_records_are_delivered_again_and_rejected_ones_are_not(tools: Tools) -> None:
    begin_early(tools, "choosy")
    with_count = ("--formatter-property", "print.delivery=true")
    first = consume(tools, "choosy", 10, "--release", *with_count)
    assert first == [f"Delivery:1\tjob {number}" for number in range(10)], first
    second = consume(tools, "choosy", 10, "--reject", *with_count)
    assert second == [f"Delivery:2\tjob {number}" for number in range(10)], second
    left = consume(tools, "choosy", COUNT - 10)
    assert left == [f"job {number}" for number in range(10, COUNT)]


def test_a_group_with_members_is_described_and_not_reset(tools: Tools, quick_broker: LowtideProcess) -> None:
    begin_early(tools, "busy")
    consuming = ("--bootstrap-server", quick_broker.bootstrap, "--topic", "jobs", "--group", "busy")
    with tools.running("kafka-console-share-consumer", *consuming) as lines:
        assert [next(lines) for _ in range(COUNT)] == [f"job {number}" for number in range(COUNT)]
        [member] = rows(tools, "--describe", "--group", "busy", "--members")
        assert (member["GROUP"], member["ASSIGNMENT"]) == ("busy", "jobs:0")
        [state] = rows(tools, "--describe", "--group", "busy", "--state")
        assert (state["STATE"], state["#MEMBERS"]) == ("Stable", "1")
        refused = tools.call(GROUPS, "--reset-offsets", "--group", "busy", "--all-topics", "--to-earliest", "--execute")
        assert "is not empty" in refused.out + refused.err, refused
        refused = tools.call(GROUPS, "--delete", "--group", "busy")
        assert "not EMPTY" in refused.out + refused.err or "not empty" in refused.out + refused.err, refused


def test_the_verifiable_consumer_of_share_groups(tools: Tools) -> None:
    for mode in ("auto", "sync", "async"):
        words = (
            "--topic",
            "jobs",
            "--group-id",
            f"verified-{mode}",
            "--max-messages",
            str(COUNT),
            "--acknowledgement-mode",
            mode,
        )
        ran = tools.call("kafka-verifiable-share-consumer", *words, "--offset-reset-strategy", "earliest")
        assert ran.exit_code == 0, ran
        events: list[dict[str, Any]] = [json.loads(line) for line in ran.lines if line.startswith("{")]
        read = sum(event["count"] for event in events if event["name"] == "records_consumed")
        stored = [event for event in events if event["name"] == "offsets_acknowledged"]
        assert (read, all(event["success"] for event in stored), len(stored) > 0) == (COUNT, True, True), events


def test_the_load_of_a_share_group_is_measured(tools: Tools) -> None:
    begin_early(tools, "fast")
    words = ("--topic", "jobs", "--group", "fast", "--num-records", str(COUNT), "--timeout", "60000", "--hide-header")
    ran = tools.call(
        "kafka-share-consumer-perf-test", *words
    )  # It complains where leaving takes longer than half a second.
    assert (ran.exit_code, [line.split(", ")[5] for line in ran.lines]) == (0, [str(COUNT)]), ran
