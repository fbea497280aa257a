"""`lowtide topics explain`: its output for a response, and its refusals."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from lowtide.admin.client import AdminClient
from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.retained import as_value, line, sentence
from lowtide.admin.retention import Explanation
from lowtide.cli import topics as module
from lowtide.cli.main import main
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_retention import RetainedPartition, RetentionRule

NOW_MS = 1_000_000_000
HOUR_MS = 3_600_000


def row(*rules: RetentionRule, **changed: Any) -> RetainedPartition:
    told = RetainedPartition(
        partition_index=3,
        error_code=0,
        log_start_offset=10,
        high_watermark=90,
        log_end_offset=91,
        segment_count=3,
        size_bytes=3_000_000,
        segment_start=10,
        segment_end=40,
        segment_bytes=1_000_000,
        rules=list(rules),
    )
    return msgspec.structs.replace(told, **changed)


TIME = RetentionRule(reason="time", goes_at_ms=NOW_MS + 3 * HOUR_MS)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (row(TIME), "goes in 3 h by time"),
        (
            row(RetentionRule(reason="consumed", group_id="g", consumed_offset=20), TIME),
            "kept: group g is at offset 20 of 40; goes in 3 h by time",
        ),
        (
            row(RetentionRule(reason="consumed", group_id="g"), TIME),
            "kept: group g has not committed an offset; goes in 3 h by time",
        ),
        (row(RetentionRule(reason="consumed"), TIME), "kept: no group has committed an offset; goes in 3 h by time"),
        (
            row(RetentionRule(reason="consumed", doubt="broker 2: it is away"), TIME),
            "kept: what the groups have consumed is not known (broker 2: it is away); goes in 3 h by time",
        ),
        (row(RetentionRule(reason="consumed", goes_at_ms=NOW_MS + 90_000), TIME), "goes in 1 min 30 s by consumed"),
        (
            row(TIME, RetentionRule(reason="size", bytes_missing=1_500_000)),
            "1.50 MB before it goes by size; goes in 3 h",
        ),
        (
            row(RetentionRule(reason="size", goes_at_ms=NOW_MS), RetentionRule(reason="time", goes_at_ms=5)),
            "goes at the next check by size",
        ),
        (row(RetentionRule(reason="min-timestamp")), "kept: not all of it is older than log.retention.min.timestamp"),
        (row(), "kept for ever: no rule is on"),
        (row(TIME, is_active=True), "goes in 3 h by time; it is the active segment, which is closed when it goes"),
        (row(TIME, hold="empty", is_active=True), "kept: it is empty"),
        (row(hold="compacted"), "kept: its cleanup.policy has no delete, so only compaction removes records"),
        (row(hold="no-policy"), "kept: its cleanup.policy is empty, so only requests delete records"),
        (
            row(TIME, hold="not-replicated"),
            "kept: not all in-sync replicas have it yet; goes in 3 h by time once they do",
        ),
        (row(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), "not known: NOT_LEADER_OR_FOLLOWER"),
    ],
)
def test_a_line_says_what_keeps_it_and_when_it_is_deleted(told: RetainedPartition, words: str) -> None:
    assert words in sentence(told, NOW_MS)
    assert words in line(told, NOW_MS)


@pytest.mark.parametrize(
    ("waits_for", "words"),
    [("reader", "an answer is being sent from the file."), ("of a later version", "of a later version.")],
)
def test_a_line_says_what_is_deleted_and_not_freed(waits_for: str, words: str) -> None:
    told = row(TIME, unfreed_bytes=5000, unfreed_waits_for=waits_for)
    assert line(told, NOW_MS).endswith(f"by time. 5.00 kB are below the log start and not freed: {words}")
    value = as_value(told, NOW_MS)
    assert (value["live_bytes"], value["unfreed"]) == (2_995_000, {"bytes": 5000, "waits_for": waits_for})
    assert as_value(row(), NOW_MS)["unfreed"] is None


@pytest.mark.parametrize(
    ("erasures", "records", "words"),
    [(1, 1, "1 erasure of 1 record has waited"), (2, 7, "2 erasures of 7 records have waited")],
)
def test_a_line_says_which_erasures_wait_to_be_rewritten(erasures: int, records: int, words: str) -> None:
    reason = "no room in /data: needs 900 bytes, has 12"
    since_ms = NOW_MS - 90_000
    told = row(
        TIME,
        erasures_waiting=erasures,
        records_to_erase=records,
        erasing_since_ms=since_ms,
        erasing_waits_for=reason,
    )
    assert line(told, NOW_MS).endswith(f"by time. {words} for 1 min 30 s to leave the files: {reason}.")
    value = {"erasures": erasures, "records": records, "since_ms": since_ms, "waits_for": reason}
    assert as_value(told, NOW_MS)["erasing"] == value
    assert as_value(row(), NOW_MS)["erasing"] is None


def test_a_value_for_programs_has_null_for_unknown_values() -> None:
    value = as_value(row(RetentionRule(reason="consumed", group_id="g"), TIME), NOW_MS)
    assert value["rules"][0] == {
        "reason": "consumed",
        "goes_at_ms": None,
        "bytes_missing": None,
        "group": "g",
        "consumed_offset": None,
        "doubt": None,
    }
    assert value["oldest_segment"] == {"first_offset": 10, "end_offset": 40, "bytes": 1_000_000, "active": False}
    assert as_value(row(error_code=6), NOW_MS) == {"partition": 3, "error": "NOT_LEADER_OR_FOLLOWER"}


@pytest.mark.parametrize(("rows", "code"), [([row(TIME)], 0), ([row(TIME), row(error_code=6)], 1)])
@pytest.mark.parametrize("output", ["text", "json"])
def test_the_exit_code_says_whether_all_is_explained(
    rows: list[RetainedPartition],
    code: int,
    output: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    described = TopicDescription(name="t", topic_id=None, is_internal=False, partitions={})

    async def describe(client: AdminClient, topics: list[str]) -> dict[str, TopicDescription]:
        assert (topics, client.settings.default_api_timeout_ms) == (["t"], 60_000)
        return {"t": described}

    async def explained(client: AdminClient, topic: TopicDescription) -> Explanation:
        addresses = [(each.host, each.port) for each in client.settings.bootstrap_servers]
        assert (addresses, topic) == ([("a", 1), ("::1", 2)], described)
        return Explanation(rows, NOW_MS, NOW_MS + 5000)

    monkeypatch.setattr(AdminClient, "describe_topics", describe)
    monkeypatch.setattr(module, "explain_retention", explained)
    assert main(["topics", "explain", "t", "--bootstrap-server", "a:1,[::1]:2", "--output", output]) == code
    told = capsys.readouterr().out
    if output == "json":
        assert [each["partition"] for each in json.loads(told)["partitions"]] == [3] * len(rows)
    else:
        assert "the next check is in 5 s." in told.splitlines()[0]


@pytest.mark.parametrize("address", ["a:", "a:b", ":9092", "a:70000", "a b:1"])
def test_an_invalid_address_is_refused_with_a_message(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "explain", "t", "--bootstrap-server", address]) == 2
    told = capsys.readouterr().err
    assert told.startswith("lowtide topics explain: --bootstrap-server: bootstrap.servers contains ")
    assert told.endswith("it must be host:port, with a port from 1 to 65535.\n")


@pytest.mark.parametrize(
    "words", [["expain", "t"], ["explain"], ["explain", "t", "--timeout", "0"], ["explain", "t", "--output", "xml"]]
)
def test_a_wrong_call_ends_with_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """And with one message that names the help."""
    assert main(["topics", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("lowtide topics")
    assert told.endswith("--help`.\n")
    assert told.count("\n") == 1
