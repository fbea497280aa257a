"""`kafka-streams-groups` with every option: listed, described, set back, and deleted with its internal topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide import BlockingAdminClient, TopicPartition
from tests.clients.driver import OutgoingRecord
from tests.clients.driver_confluent import Confluent
from tests.clients.streams_member import heartbeat, heartbeats, word_count

from .lowtide_process import LowtideProcess
from .tools import Tools

pytestmark = pytest.mark.interop

GROUP = "app"
INPUT = "in"
AGAIN, COUNTS = "app-again-repartition", "app-counts-changelog"
RECORDS = 3


@pytest.fixture
def group(tools: Tools, broker: LowtideProcess) -> None:
    """The group with one member, which has all tasks."""
    tools.run("kafka-topics", "--create", "--topic", INPUT, "--partitions", "2", "--replication-factor", "1")
    Confluent(broker.bootstrap).produce(INPUT, [OutgoingRecord(b"k", b"v")] * RECORDS)
    heartbeats(broker.bootstrap, heartbeat(GROUP, 0, word_count(INPUT, GROUP)), tasks=4)


def rows(tools: Tools, *options: str) -> list[list[str]]:
    """Returns the words of each line after the column names."""
    lines = [line.split() for line in tools.run("kafka-streams-groups", *options).lines if line.strip()]
    return sorted(lines[1:])


def committed(broker: LowtideProcess) -> dict[TopicPartition, int]:
    with BlockingAdminClient(broker.bootstrap) as admin:
        return {key: row.offset for key, row in admin.list_group_offsets([GROUP])[GROUP].items()}


@pytest.mark.usefixtures("group")
def test_every_option_is_answered(tools: Tools, broker: LowtideProcess, tmp_path: Path) -> None:
    assert tools.run("kafka-streams-groups", "--list").lines == [GROUP]
    assert rows(tools, "--list", "--state", "Stable") == [[GROUP, "Stable"]]
    described = ("--describe", "--group", GROUP)
    assert rows(tools, *described) == [[GROUP, AGAIN, "0", "0"], [GROUP, AGAIN, "1", "0"], *_lags()]
    assert [row[-1] for row in rows(tools, *described, "--offsets", "--verbose")] == ["0", "0", str(RECORDS), "0"]
    tasks = ["ACTIVE:", "0:[0,1];", "1:[0,1];"]
    assert rows(tools, *described, "--members") == [[GROUP, "member", "process", "test", *tasks]]
    (member,) = rows(tools, *described, "--members", "--verbose")
    assert member[2:5] == ["3", "member", "streams"], "topology epoch and protocol"
    assert member[-3:] == ["TARGET-ACTIVE:", *tasks[1:]]
    (state,) = rows(tools, *described, "--state")
    assert state[-2:] == ["Stable", "1"]
    (state,) = rows(tools, *described, "--state", "--verbose")
    assert state[-4:] == ["Stable", *member[1:2], *member[1:2], "1"], "group epoch and target epoch"
    _refused_while_it_has_members(tools)
    heartbeats(broker.bootstrap, heartbeat(GROUP, -1))
    _reset(tools, broker, tmp_path)
    _delete(tools, broker)


def _lags() -> list[list[str]]:
    return [[GROUP, INPUT, "0", str(RECORDS)], [GROUP, INPUT, "1", "0"]]


def _refused_while_it_has_members(tools: Tools) -> None:
    for words, reason in (
        (("--delete",), "GroupNotEmptyException"),
        (("--delete-offsets", "--input-topic", INPUT), "GroupSubscribedToTopicException"),
        (("--reset-offsets", "--all-input-topics", "--to-earliest", "--execute"), "the current state is Stable"),
    ):
        assert reason in tools.call("kafka-streams-groups", *words, "--group", GROUP).out


def _reset(tools: Tools, broker: LowtideProcess, folder: Path) -> None:
    before = {TopicPartition(INPUT, 0): 1, TopicPartition(INPUT, 1): 0, TopicPartition(AGAIN, 0): 0}
    with BlockingAdminClient(broker.bootstrap) as admin:
        assert set(admin.alter_group_offsets(GROUP, before).values()) == {None}
    listed = folder / "offsets.csv"
    listed.write_text(f'"{INPUT}",0,2\n')
    reset = ("--reset-offsets", "--group", GROUP)
    for scenario, new in (
        (("--to-earliest",), 0),
        (("--to-latest",), RECORDS),
        (("--to-current",), 1),
        (("--shift-by", "1"), 2),
        (("--to-offset", "1"), 1),
        (("--to-datetime", "2020-01-01T00:00:00.000"), 0),
        (("--by-duration", "PT1H"), 0),
        (("--from-file", str(listed)), 2),
    ):
        planned = rows(tools, *reset, "--input-topic", f"{INPUT}:0", *scenario, "--dry-run")
        assert planned[-1] == [GROUP, INPUT, "0", str(new)], scenario
    exported = tools.run(
        "kafka-streams-groups", *reset, "--input-topic", f"{INPUT}:0", "--to-latest", "--dry-run", "--export"
    )
    assert exported.lines[0] == f"{INPUT},0,{RECORDS}"
    assert committed(broker) == before
    more = ("--delete-internal-topic", COUNTS)
    tools.run("kafka-streams-groups", *reset, "--all-input-topics", "--to-latest", *more, "--execute")
    assert committed(broker) == before | {TopicPartition(INPUT, 0): RECORDS}


def _delete(tools: Tools, broker: LowtideProcess) -> None:
    with BlockingAdminClient(broker.bootstrap) as admin:
        assert {AGAIN, INPUT} <= admin.list_topics().keys()
        assert COUNTS not in admin.list_topics()
        tools.run("kafka-streams-groups", "--delete-offsets", "--group", GROUP, "--input-topic", INPUT)
        assert set(committed(broker)) == {TopicPartition(AGAIN, 0)}
        tools.run("kafka-streams-groups", "--delete", "--group", GROUP, "--delete-all-internal-topics")
        assert AGAIN not in admin.list_topics()
    unknown = tools.call("kafka-streams-groups", "--describe", "--group", GROUP)
    assert "GroupIdNotFoundException" in unknown.out
