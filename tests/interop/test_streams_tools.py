"""kafka-streams-groups against a streams group, with each option: while the application runs, then without it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from .lowtide_process import LowtideProcess
from .members import outputs_of, until
from .streaming import QUICK_STREAMS, WordCount
from .tools import JavaClient, Tools
from .topics import PARTITIONS, Topics

pytestmark = pytest.mark.interop

TOOL = "kafka-streams-groups"
GROUP = "tooled"
OF_GROUP = ("--group", GROUP)
LINES = 20
TASKS = "0:[0,1,2]; 1:[0,1,2];"
"""All tasks of a member that is alone."""


@pytest.fixture(scope="module")
def quick_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LowtideProcess]:
    """A broker that quickly detects joins and failures."""
    with LowtideProcess(tmp_path_factory.mktemp("lowtide") / "data", **QUICK_STREAMS) as process:
        yield process


@pytest.fixture(scope="module")
def tools(jars: Path, quick_broker: LowtideProcess, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return Tools(jars, quick_broker.bootstrap, tmp_path_factory.mktemp("jvm"))


@pytest.fixture
def words(
    jars: Path, quick_broker: LowtideProcess, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> WordCount:
    """A word count with its topics and some lines."""
    java = JavaClient(jars, quick_broker.bootstrap, tmp_path_factory.mktemp("java"))
    made = WordCount(Topics(quick_broker.bootstrap), java, tmp_path, GROUP)
    made.make("lines", "counts")
    made.write(LINES)
    return made


def rows(text: str) -> list[dict[str, str]]:
    """Returns the table that the tool prints; the last column may have blanks."""
    lines = [line for line in text.splitlines() if line.strip()]
    names = lines[0].split() if lines else []
    return [dict(zip(names, line.split(maxsplit=len(names) - 1), strict=False)) for line in lines[1:]]


def offsets(text: str) -> dict[tuple[str, int], str]:
    """Returns the last column by topic and partition."""
    return {(row["TOPIC"], int(row["PARTITION"])): row[list(row)[-1]].strip() for row in rows(text)}


def test_every_option(tools: Tools, words: WordCount, tmp_path: Path) -> None:
    """As Kafka 4.4 prints it."""
    with words.start("streams") as member:
        until(words.is_complete, partial(outputs_of, member))
        check_running(tools, words)
        member.leave()
    check_resets(tools, words, tmp_path)
    check_deletes(tools, words)


def check_running(tools: Tools, words: WordCount) -> None:
    """The group is listed and described; it can't be reset or deleted."""
    assert tools.run("kafka-streams-groups", "--list").lines == [GROUP]
    for states in ((), ("stable",)):
        assert rows(tools.run(TOOL, "--list", "--state", *states).out) == [{"GROUP": GROUP, "STATE": "Stable"}]
    assert rows(tools.run(TOOL, "--list", "--state", "Empty").out) == []
    lags = {(words.topic(name), n): "0" for name in ("lines", "words-repartition") for n in range(PARTITIONS)}
    for which in ((*OF_GROUP,), (*OF_GROUP, "--offsets"), ("--all-groups",)):
        assert offsets(tools.run(TOOL, "--describe", *which).out) == lags
    verbose = rows(tools.run(TOOL, "--describe", *OF_GROUP, "--offsets", "--verbose").out)
    assert sorted(row[list(row)[-1]].strip() for row in verbose) == sorted(lags.values())
    [state] = rows(tools.run(TOOL, "--describe", *OF_GROUP, "--state", "--verbose").out)
    assert state["GROUP-EPOCH"] == state["TARGET-ASSIGNMENT-EPOCH"]
    # The coordinator's column has a blank.
    [line] = tools.run(TOOL, "--describe", *OF_GROUP, "--state").out.splitlines()[1:2]
    assert line.split()[3:] == ["sticky", "Stable", "1"]
    [one] = rows(tools.run(TOOL, "--describe", *OF_GROUP, "--members").out)
    assert one["ASSIGNMENTS"].strip() == f"ACTIVE: {TASKS}"
    [one] = rows(tools.run(TOOL, "--describe", *OF_GROUP, "--members", "--verbose").out)
    assert (one["TOPOLOGY-EPOCH"], one["MEMBER-PROTOCOL"]) == ("0", "streams")
    assert one["MEMBER-EPOCH"] == one["TARGET-ASSIGNMENT-EPOCH"]
    assert one["ASSIGNMENTS"].strip() == f"ACTIVE: {TASKS} TARGET-ACTIVE: {TASKS}"
    topology = tools.call(TOOL, "--describe", *OF_GROUP, "--topology")
    assert (topology.exit_code, "No topology description is stored" in topology.out) == (1, True), topology
    refused = tools.call(TOOL, "--reset-offsets", *OF_GROUP, "--to-earliest", "--all-input-topics", "--execute")
    assert "can only be reset if the group 'tooled' is inactive, but the current state is Stable" in refused.out
    assert "Streams group 'tooled' is not EMPTY" in tools.call(TOOL, "--delete", *OF_GROUP).out
    kept = tools.call(TOOL, "--delete-offsets", *OF_GROUP, "--input-topic", words.topic("lines"))
    assert "GroupSubscribedToTopicException" in kept.out


def check_resets(tools: Tools, words: WordCount, folder: Path) -> None:
    """Each way to say where to, tried or executed."""
    lines = words.topic("lines")
    until(lambda: rows(tools.run(TOOL, "--list", "--state", "Empty").out) != [], lambda: "the group is not empty")
    before = words.topics.committed(GROUP)
    for how, expected in {
        ("--to-earliest",): 0,
        ("--to-latest",): LINES,
        ("--to-current",): LINES,
        ("--to-offset", "5"): 5,
        ("--shift-by", "-2"): LINES - 2,
        ("--by-duration", "P1D"): 0,
        ("--to-datetime", "2026-01-01T00:00:00.000"): 0,
    }.items():
        ran = tools.run(TOOL, "--reset-offsets", *OF_GROUP, *how, "--input-topic", lines, "--dry-run")
        assert offsets(ran.out) == {(lines, n): str(expected) for n in range(PARTITIONS)}, how
    assert words.topics.committed(GROUP) == before, "a dry run changes nothing"
    tools.run(TOOL, "--reset-offsets", *OF_GROUP, "--to-offset", "5", "--input-topic", f"{lines}:0", "--execute")
    plan = ("--to-current", "--all-input-topics", "--dry-run", "--export")
    exported = tools.run(TOOL, "--reset-offsets", *OF_GROUP, *plan)
    assert sorted(line for line in exported.lines if line) == [f"{lines},0,5", f"{lines},1,20", f"{lines},2,20"]
    file = folder / "offsets.csv"
    file.write_text(f"{lines},0,3\n")
    tools.run(TOOL, "--reset-offsets", *OF_GROUP, "--from-file", str(file), "--execute")
    assert words.topics.committed(GROUP)[lines, 0] == 3
    changelog = words.topic("counts-changelog")
    assert changelog in words.topics.names()
    again = ("--to-latest", "--all-input-topics", "--delete-internal-topic", changelog, "--execute")
    tools.run(TOOL, "--reset-offsets", *OF_GROUP, *again)
    assert {words.topics.committed(GROUP)[lines, n] for n in range(PARTITIONS)} == {LINES}
    until(lambda: changelog not in words.topics.names(), words.topics.names)


def check_deletes(tools: Tools, words: WordCount) -> None:
    """Offsets, then the group with its internal topics."""
    lines = words.topic("lines")
    deleted = tools.run(TOOL, "--delete-offsets", *OF_GROUP, "--input-topic", lines)
    assert offsets(deleted.out.partition("\n")[2]) == {(lines, n): "Successful" for n in range(PARTITIONS)}
    assert "Request succeeded" in tools.run(TOOL, "--delete-offsets", *OF_GROUP, "--all-input-topics").out
    repartition = words.topic("words-repartition")
    assert repartition in words.topics.names()
    tools.run(TOOL, "--delete", *OF_GROUP, "--delete-all-internal-topics")
    until(lambda: repartition not in words.topics.names(), words.topics.names)
    assert "GroupIdNotFoundException" in tools.call(TOOL, "--describe", *OF_GROUP).out
    assert tools.run(TOOL, "--list").lines in ([], [""])
