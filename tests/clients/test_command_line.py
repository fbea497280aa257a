"""The `lowtide` commands for a cluster, against a real broker: their JSON output, and their exit codes."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace

import pytest

from lowtide import BlockingAdminClient
from lowtide.admin import TopicPartition
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from lowtide.simulation.client import WireClient
from tests.unit.admin.schemas.registry_server import schema_registry

from .command_lines import answer, run, sentence
from .driver import Driver, OutgoingRecord

HOUR_MS = 3_600_000
LEAVES = -1
"""The epoch of the last heartbeat of a member."""


def test_topics_from_creation_to_deletion(lowtide: SimpleNamespace, other: Driver, lowtide_topic: str) -> None:
    """Topics are created, listed, extended, changed, described and deleted; a failure has exit code 1."""
    bootstrap, name = lowtide.bootstrap, lowtide_topic
    made = answer("topics", "create", name, "-p", 2, "-r", 1, "-c", "retention.ms=-1", bootstrap=bootstrap)["results"][
        0
    ]
    assert (made["name"], made["error"], made["partitions"], made["replicas"]) == (name, None, 2, 1)
    again = answer("topics", "create", name, bootstrap=bootstrap, code=1)["results"][0]
    assert again["error"]["code"] == "TOPIC_ALREADY_EXISTS"
    run("topics", "create", name, "--if-not-exists", bootstrap=bootstrap)
    assert run("topics", "partitions", name, 3, bootstrap=bootstrap).stdout == f"{name}: has 3 partitions\n"
    run("topics", "alter", name, "--set", "segment.bytes=1048576", "--unset", "retention.ms", bootstrap=bootstrap)
    told = answer("topics", "describe", name, bootstrap=bootstrap)["topics"][0]
    assert (told["id"], told["configs"], told["internal"]) == (made["id"], {"segment.bytes": "1048576"}, False)
    assert [(row["partition"], row["replicas"] == row["isr"], row["error"]) for row in told["partitions"]] == [
        (number, True, None) for number in range(3)
    ]
    assert [row["topic"] for row in answer("topics", "list", f"{name[:-1]}*", bootstrap=bootstrap)["topics"]] == [name]
    assert answer("topics", "explain", name, bootstrap=bootstrap)["partitions"][2]["partition"] == 2
    run("topics", "delete", name, "--yes", bootstrap=bootstrap)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in run("topics", "delete", name, "--yes", bootstrap=bootstrap, code=1).stderr
    run("topics", "delete", name, "--yes", "--if-exists", bootstrap=bootstrap)
    assert (
        answer("topics", "describe", name, bootstrap=bootstrap, code=1)["errors"][name]["code"]
        == "UNKNOWN_TOPIC_OR_PARTITION"
    )
    assert "there is no topic" in sentence("topics", "explain", name, bootstrap=bootstrap, code=2)


def test_a_rehearsed_change_says_what_retention_would_delete(
    lowtide: SimpleNamespace, topic: str, other: Driver
) -> None:
    """The command counts the records that the proposed settings would expire, and changes nothing."""
    an_hour_ago = int(time.time() * 1000) - HOUR_MS
    other.produce(topic, [OutgoingRecord(b"k", b"v", an_hour_ago)] * 3)
    alter = ("topics", "alter", topic, "--validate-only")
    told = answer(*alter, "--set", "retention.ms=60000", bootstrap=lowtide.bootstrap)["results"][0]["forecast"]
    assert {key: told[key] for key in ("records", "anyway", "kept", "unknown_partitions")} == {
        "records": 3,
        "anyway": 0,
        "kept": 0,
        "unknown_partitions": 0,
    }
    first = f"topic {topic}: could be changed\n{topic}: the next retention pass would delete "
    assert run(*alter, "--set", "retention.ms=60000", bootstrap=lowtide.bootstrap).stdout.startswith(
        f"{first}3 records,"
    )
    told = run(*alter, "--set", "retention.ms=-1", bootstrap=lowtide.bootstrap).stdout
    assert told == f"{first}0 records\n"


def test_levels_of_a_log_are_changed_while_it_runs(lowtide: SimpleNamespace) -> None:
    """KIP-412, without Kafka's tools; the room within has the level of the one around it."""
    room = ("configs", "alter", "--broker-logger", "0")
    run(*room, "--set", "lowtide.broker=WARN", bootstrap=lowtide.bootstrap)
    described = answer("configs", "describe", "--broker-logger", "0", bootstrap=lowtide.bootstrap)["resources"][0]
    levels = {row["key"]: row["value"] for row in described["configs"]}
    assert (described["type"], levels["lowtide.broker.network"], levels["lowtide.storage"]) == (
        "broker_logger",
        "WARN",
        levels["root"],
    )
    run(*room, "--unset", "lowtide.broker", bootstrap=lowtide.bootstrap)
    refused = answer(*room, "--set", "lowtide.nothing=INFO", bootstrap=lowtide.bootstrap, code=1)
    assert "Logger lowtide.nothing does not exist!" in refused["results"][0]["error"]["message"]


def test_configurations(lowtide: SimpleNamespace, topic: str) -> None:
    """The changed keys, and all keys with --all; the broker refuses an unknown key."""
    run("configs", "alter", "--topic", topic, "--set", "retention.ms=86400000", bootstrap=lowtide.bootstrap)
    told = answer("configs", "describe", "--topic", topic, bootstrap=lowtide.bootstrap)["resources"][0]
    assert (told["type"], told["name"], told["error"]) == ("topic", topic, None)
    expected = {"key": "retention.ms", "value": "86400000", "source": "topic", "read_only": False, "sensitive": False}
    assert expected in told["configs"]
    every = answer("configs", "describe", "--topic", topic, "--all", bootstrap=lowtide.bootstrap)["resources"][0]
    assert len(every["configs"]) > len(told["configs"])
    refused = answer("configs", "alter", "--topic", topic, "--set", "no.such=1", bootstrap=lowtide.bootstrap, code=1)
    assert refused["results"][0]["error"]["code"] == "INVALID_CONFIG"


def test_groups(lowtide: SimpleNamespace, other: Driver, topic: str) -> None:
    """Deleted records are not part of the lag; offsets are set within the log; a group is deleted with its offsets."""
    bootstrap, group = lowtide.bootstrap, f"group-of-{topic}"
    other.produce(topic, [OutgoingRecord(b"k", b"v")] * 10)
    with BlockingAdminClient(bootstrap) as client:
        client.alter_group_offsets(group, {TopicPartition(topic, 0): 2})
    other.delete_records(topic, {0: 4})
    described = answer("groups", "describe", group, bootstrap=bootstrap)["groups"][0]
    assert (described["state"], described["members"]) == ("Empty", [])
    row = {
        "topic": topic,
        "partition": 0,
        "committed": 2,
        "log_start_offset": 4,
        "log_end_offset": 10,
        "lag": 6,
        "read_by": None,
    }
    assert described["offsets"] == [row]
    assert group in [each["group"] for each in answer("groups", "list", bootstrap=bootstrap)["groups"]]
    planned = answer("groups", "reset", group, "--to", 1, "--dry-run", bootstrap=bootstrap)
    assert planned["offsets"] == [{"topic": topic, "partition": 0, "old": 2, "new": 4, "error": None}]
    assert answer("groups", "offsets", group, bootstrap=bootstrap)["offsets"][0]["offset"] == 2
    run("groups", "reset", group, "--to", "latest", "--topic", f"{topic}:0-1", "--yes", bootstrap=bootstrap)
    assert [each["offset"] for each in answer("groups", "offsets", group, bootstrap=bootstrap)["offsets"]] == [10, 0]
    assert "there is no terminal" in sentence("groups", "delete", group, bootstrap=bootstrap, code=4)
    run("groups", "delete", group, "--yes", bootstrap=bootstrap)
    assert "GROUP_ID_NOT_FOUND" in run("groups", "describe", group, bootstrap=bootstrap, code=1).stderr


def share_heartbeat(bootstrap: str, group: str, epoch: int, *topics: str) -> None:
    """One heartbeat of the only member of a share group: with epoch 0 it joins."""

    async def send() -> None:
        host, _, port = bootstrap.partition(":")
        client = await WireClient.connect(host, int(port))
        try:
            request = ShareGroupHeartbeatRequest(
                group_id=group, member_id="sharer", member_epoch=epoch, subscribed_topic_names=list(topics) or None
            )
            answered = await client.request(request, 1)
            assert answered.error_code == ErrorCode.NONE, ErrorCode(answered.error_code)
        finally:
            client.close()

    asyncio.run(send())


def test_a_share_group(lowtide: SimpleNamespace, other: Driver, topic: str) -> None:
    """KIP-932: listed, described with a member and without, where it starts, set back, deleted."""
    bootstrap, group = lowtide.bootstrap, f"share-of-{topic}"
    other.produce(topic, [OutgoingRecord(b"k", b"v")] * 10)
    share_heartbeat(bootstrap, group, 0, topic)
    described = answer("groups", "describe", group, bootstrap=bootstrap)["groups"][0]
    assert (described["kind"], described["state"], len(described["members"])) == ("share", "Stable", 1)
    refused = answer("groups", "reset", group, "--topic", topic, "--to", 4, "--yes", bootstrap=bootstrap, code=1)
    assert refused["offsets"][0]["error"]["code"] == "NON_EMPTY_GROUP"
    share_heartbeat(bootstrap, group, LEAVES)
    listed = {
        each["group"]: each["kind"]
        for each in answer("groups", "list", "--kind", "share", bootstrap=bootstrap)["groups"]
    }
    assert listed == {group: "share"}
    run("groups", "reset", group, "--topic", f"{topic}:0", "--to", 4, "--yes", bootstrap=bootstrap)
    described = answer("groups", "describe", group, bootstrap=bootstrap)["groups"][0]
    assert (described["state"], described["members"]) == ("Empty", [])
    assert [(row["partition"], row["committed"], row["log_end_offset"], row["lag"]) for row in described["offsets"]][
        :1
    ] == [(0, 4, 10, 6)]
    planned = answer("groups", "reset", group, "--shift-by", -1, "--dry-run", bootstrap=bootstrap)
    assert planned["offsets"][0] == {"topic": topic, "partition": 0, "old": 4, "new": 3, "error": None}
    deleted = answer("records", "delete", f"{topic}:0", "--committed-by", group, "--yes", bootstrap=bootstrap)[
        "partitions"
    ]
    assert [(row["delete_to"], row["low_watermark"]) for row in deleted] == [(4, 4)]
    run("groups", "delete", group, "--yes", bootstrap=bootstrap)
    assert "GROUP_ID_NOT_FOUND" in run("groups", "describe", group, bootstrap=bootstrap, code=1).stderr


def test_records_are_shown(lowtide: SimpleNamespace, other: Driver, topic: str) -> None:
    """Selects by offsets and by times; prints text and JSON lines."""
    now_ms = int(time.time() * 1000)
    other.produce(topic, [OutgoingRecord(b"k%d" % n, b'{"n": %d}' % n, now_ms - (10 - n) * HOUR_MS) for n in range(10)])
    words = ("records", "show", f"{topic}:0")
    ended = run(*words, "--from", 2, "--to", 4, "--output", "json", "--format", "json", bootstrap=lowtide.bootstrap)
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(row["offset"], row["key"], row["value"], row["headers"]) for row in rows] == [
        (2, "k2", {"n": 2}, []),
        (3, "k3", {"n": 3}, []),
    ]
    assert rows[0]["timestamp"] == now_ms - 8 * HOUR_MS
    lines = run(*words, "--from", now_ms - 3 * HOUR_MS, "-n", 2, bootstrap=lowtide.bootstrap).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["7", "8"]
    assert lines[0].endswith("key 'k7'  value '{\"n\": 7}'")
    beyond = run(*words, "--from", "end", bootstrap=lowtide.bootstrap)
    assert (beyond.stdout, beyond.stderr) == ("", f"{topic}-0: there are no records between 10 and its end, 10.\n")
    other.delete_records(topic, {0: 4})
    assert sentence(*words, "--from", 2, bootstrap=lowtide.bootstrap, code=1).endswith(
        f"{topic}-0 has no offset 2: its log starts at 4."
    )


def test_all_partitions_of_a_topic_are_shown(lowtide: SimpleNamespace, other: Driver, topic: str) -> None:
    """Each line names its partition; a partition without the offset doesn't end the others."""
    for partition in range(3):
        other.produce(topic, [OutgoingRecord(b"k", b"in %d" % partition)] * 3, partition=partition)
    lines = run("records", "show", topic, "--count", 2, bootstrap=lowtide.bootstrap).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["0:0", "0:1", "1:0", "1:1", "2:0", "2:1"]
    rows = [
        json.loads(line)
        for line in run("records", "show", topic, "-o", "json", bootstrap=lowtide.bootstrap).stdout.splitlines()
    ]
    assert [(row["partition"], row["offset"], row["value"]) for row in rows] == [
        (p, n, f"in {p}") for p in range(3) for n in range(3)
    ]
    last = run("records", "show", topic, "--last", 4, bootstrap=lowtide.bootstrap).stdout.splitlines()
    assert [line.split()[0] for line in last] == ["1:2", "2:0", "2:1", "2:2"], "the last of all partitions, by time"
    some = run("records", "show", f"{topic}:1-2", "--from", "end", "--to", "end", bootstrap=lowtide.bootstrap)
    assert (some.stdout, len(some.stderr.splitlines())) == ("", 2)
    other.delete_records(topic, {1: 2})
    ended = run("records", "show", topic, "--from", 1, bootstrap=lowtide.bootstrap, code=1)
    assert [line.split()[0] for line in ended.stdout.splitlines()] == ["0:1", "0:2", "2:1", "2:2"]
    assert ended.stderr == f"{topic}-1 has no offset 1: its log starts at 2.\n"


def test_records_are_searched(lowtide: SimpleNamespace, other: Driver, topic: str) -> None:
    """By text, key, header and filter, in all partitions, merged by time; the rest of them is named."""
    now_ms = int(time.time() * 1000)
    for n in range(12):
        headers = [("source", b"EWR")] if n == 7 else []
        record = OutgoingRecord(b"k%d" % (n % 4), b'{"n": %d}' % n, now_ms + n, headers)
        other.produce(topic, [record], partition=n % 3)

    def found(*words: object, code: int = 0) -> list[str]:
        ended = run("records", "show", topic, *words, "-o", "json", bootstrap=lowtide.bootstrap, code=code)
        return [json.loads(line)["value"] for line in ended.stdout.splitlines()]

    assert found("--search", '": 1') == ['{"n": 1}', '{"n": 10}', '{"n": 11}']
    assert found("--search", '": 1', "--last", 2) == ['{"n": 10}', '{"n": 11}']
    assert found("--key", "k1") == ['{"n": 1}', '{"n": 5}', '{"n": 9}']
    assert found("--header", "source=EWR") == found("--header", "source") == ['{"n": 7}']
    assert found("--where", "n > `9`", "--key", "k2") == ['{"n": 10}']
    assert found("--where", "n > `9`", "--to", 3) == []
    first = run("records", "show", topic, "--where", "n >= `0`", "-n", 5, bootstrap=lowtide.bootstrap)
    assert len(first.stdout.splitlines()) == 5
    assert first.stderr == "The first 5 records are shown; there may be more. --count changes that.\n"
    wrong = sentence("records", "show", topic, "--where", "n >", bootstrap=lowtide.bootstrap, code=2)
    assert wrong.endswith('the filter "n >" is not JMESPath: it ends too early.')


def test_values_are_read_by_a_registry(lowtide: SimpleNamespace, other: Driver, topic: str) -> None:
    with schema_registry() as registry:
        number = registry.register("s", '{"type": "object"}', "JSON")
        values = [b"\0" + number.to_bytes(4, "big") + b'{"n": %d}' % n for n in (1, 2)]
        other.produce(topic, [OutgoingRecord(b"k", value) for value in (*values, b"\0\0\0\0\x4d")], partition=0)
        words = ("records", "show", f"{topic}:0", "--registry", registry.url)
        ended = run(*words, "--where", "n == `2`", "-o", "json", "--format", "json", bootstrap=lowtide.bootstrap)
        assert [json.loads(line)["value"] for line in ended.stdout.splitlines()] == [{"n": 2}]
        ended = run(*words, bootstrap=lowtide.bootstrap)
        assert [line.partition("value ")[2] for line in ended.stdout.splitlines()][:2] == ["'{\"n\":1}'", "'{\"n\":2}'"]
        assert ended.stderr == "offset 2: the schema registry does not know the schema 77.\n"
    said = sentence("records", "show", topic, "--registry", "ftp://x", code=2, bootstrap=lowtide.bootstrap)
    assert said.endswith(
        "--registry: the URL of the schema registry must begin with http:// or https:// and have a host."
    )


@pytest.mark.parametrize(
    "words",
    [
        (
            "topics",
            "create",
            "t",
            "--partitions",
            3,
            "--replication-factor",
            3,
            "--config",
            "retention.ms=1",
            "--if-not-exists",
        ),
        ("topics", "create", "t", "--replicas", 3, "--set", "retention.ms=1"),
        ("topics", "alter", "t", "--config", "retention.ms=1", "--delete-config", "segment.bytes"),
        ("groups", "reset", "g", "--to-offset", 5),
        ("groups", "reset", "g", "--to-datetime", "2026-11-01T00:00:00Z"),
        ("records", "show", "t", "--max-messages", 5),
    ],
)
def test_options_of_kafkas_tools_are_taken_beside_our_own(words: tuple[str, ...]) -> None:
    """The command is understood, and ends because there is no cluster."""
    assert "127.0.0.1:1" in sentence(*words, "-b", "127.0.0.1:1", "--timeout", 0.5, code=3)


def test_log_dirs_and_the_cluster(lowtide: SimpleNamespace, other: Driver, topic: str) -> None:
    other.produce(topic, [OutgoingRecord(b"k", b"v")] * 10)
    (directory,) = answer("log-dirs", "--topic", topic, bootstrap=lowtide.bootstrap)["log_dirs"]
    sizes = {row["partition"]: row["bytes"] for row in directory["partitions"]}
    assert sizes.keys() == {0, 1, 2}
    assert sizes[0] > 0
    assert 0 < directory["usable_bytes"] <= directory["total_bytes"]
    told = answer("cluster", "status", bootstrap=lowtide.bootstrap)
    assert [row["broker"] for row in told["brokers"]] == [told["controller"]]
    assert (told["without_leader"], told["under_replicated"], told["reassignments"]) == ([], [], [])
    assert told["features"]["group.version"] == 1
    assert "All have a leader" in run("cluster", "status", bootstrap=lowtide.bootstrap).stdout


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "list"),
        ("configs", "describe", "--broker", "1"),
        ("groups", "list"),
        ("records", "show", "t"),
        ("log-dirs",),
        ("cluster", "status"),
    ],
)
def test_no_cluster_is_exit_code_3(words: tuple[str, ...]) -> None:
    """The message of each command has the addresses that were tried."""
    assert "127.0.0.1:1" in sentence(*words, "-b", "127.0.0.1:1", "--timeout", 0.5, code=3)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("configs", "describe"), "give --topic, --broker, --broker-logger or --group."),
        (("configs", "describe", "--broker-logger", "all"), "'all' is not a broker: write an id."),
        (("configs", "describe", "--broker", "x"), "'x' is not a broker: write an id or `all`."),
        (("configs", "alter", "--broker", "1"), "give --set KEY=VALUE or --unset KEY."),
        (("configs", "alter", "--broker", "1", "--set", "x"), "'x' has no value: write KEY=VALUE."),
        (("configs", "alter", "--broker", "1", "--set", "x=1", "--unset", "x"), "x is both set and unset."),
        (("groups", "reset", "g"), "give one of --to, --to-time and --shift-by."),
        (("groups", "reset", "g", "--to", "1", "--shift-by", "1"), "give one of"),
        (("groups", "reset", "g", "--to", "yesterday"), "'yesterday' is not an offset"),
        (("records", "show", "t:x"), "'x' in 't:x' is not a partition"),
        (("records", "show", "t", "--last", "5", "--from", "1"), "--last and --from exclude each other."),
        (("records", "show", "t", "--last", "0"), "Invalid value"),
        (("records", "produce", "t:0-1", "x"), "give one partition only"),
        (("records", "show", "t", "--from", "2026-11-01"), "has no time zone"),
        (("topics", "partitions", "t", "0"), "Invalid value"),
    ],
)
def test_invalid_arguments_are_exit_code_2(words: tuple[str, ...], part: str) -> None:
    """They are detected before a request: there is no cluster."""
    assert part in sentence(*words, "-b", "127.0.0.1:1", "--timeout", 0.5, code=2)
