"""`lowtide records` against a real broker: deletes by offset, time and groups, dry runs, sweeps that are killed."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.interrupts import sigint

from .command_lines import answer, command, environment, run, run_process, sentence
from .conftest import NOT_YET
from .driver import Driver, OutgoingRecord, until

HOUR_MS = 3_600_000


def ten(now_ms: int) -> list[OutgoingRecord]:
    """Ten records, an hour apart; the last one is an hour old."""
    return [OutgoingRecord(b"k", b"%d" % n, now_ms - (10 - n) * HOUR_MS) for n in range(10)]


@pytest.fixture
def filled(other: Driver, topic: str) -> tuple[str, int]:
    """A topic with ten records in each of two of its three partitions, and the time now."""
    now_ms = int(time.time() * 1000)
    other.produce(topic, ten(now_ms), partition=0)
    other.produce(topic, ten(now_ms), partition=1)
    return topic, now_ms


def test_a_dry_run_reports_what_is_then_deleted(
    lowtide: SimpleNamespace, other: Driver, filled: tuple[str, int]
) -> None:
    """It has the exact number of records, and deletes nothing."""
    topic, now_ms = filled
    words = ("records", "delete", topic, "--before", now_ms - 6 * HOUR_MS)
    told = answer(*words, "--dry-run", bootstrap=lowtide.bootstrap)
    assert told["dry_run"] is True
    assert {
        row["partition"]: (row["log_start_offset"], row["delete_to"], row["records"]) for row in told["partitions"]
    } == {0: (0, 4, 4), 1: (0, 4, 4), 2: (0, 0, 0)}
    assert 0 < told["bytes_estimated"] < 2000
    assert other.offsets(topic, range(3)) == {0: (0, 10), 1: (0, 10), 2: (0, 0)}
    done = answer(*words, "--yes", bootstrap=lowtide.bootstrap)
    assert [row["records"] for row in done["partitions"]] == [row["records"] for row in told["partitions"]]
    assert [(row["low_watermark"], row["error"]) for row in done["partitions"]] == [(4, None), (4, None), (0, None)]
    assert other.offsets(topic, range(3)) == {0: (4, 10), 1: (4, 10), 2: (0, 0)}


def test_offsets_and_the_end_of_some_partitions(
    lowtide: SimpleNamespace, other: Driver, filled: tuple[str, int]
) -> None:
    topic, _ = filled
    run_process("records", "delete", f"{topic}:0", "--offset", 3, "--yes", bootstrap=lowtide.bootstrap)
    told = answer(
        "records", "delete", f"{topic}:1-2", "--offset", "end", "--yes", "--leader-only", bootstrap=lowtide.bootstrap
    )
    assert [(row["low_watermark"], row["leader_log_start_offset"]) for row in told["partitions"]] == [(10, 10), (0, 0)]
    assert other.offsets(topic, range(3)) == {0: (3, 10), 1: (10, 10), 2: (0, 0)}


def test_an_emptied_partition_has_nothing_to_delete(
    lowtide: SimpleNamespace, other: Driver, filled: tuple[str, int]
) -> None:
    """The newest record is still on the disk, and newer than the time; this was once a reason to refuse."""
    topic, now_ms = filled
    other.delete_records(topic, {0: 10})
    told = answer(
        "records", "delete", f"{topic}:0", "--before", now_ms - 5 * HOUR_MS, "--yes", bootstrap=lowtide.bootstrap
    )
    (row,) = told["partitions"]
    assert (row["log_start_offset"], row["delete_to"], row["records"], row["error"]) == (10, 10, 0, None)


def test_what_all_groups_have_consumed(lowtide: SimpleNamespace, other: Driver, filled: tuple[str, int]) -> None:
    """The slowest group decides; a partition without a commit of one of them is skipped and reported."""
    topic, _ = filled
    from lowtide import BlockingAdminClient
    from lowtide.admin import TopicPartition

    with BlockingAdminClient(lowtide.bootstrap) as client:
        slow, fast = f"slow-{topic}", f"fast-{topic}"
        client.alter_group_offsets(slow, {TopicPartition(topic, 0): 4})
        client.alter_group_offsets(fast, {TopicPartition(topic, 0): 9, TopicPartition(topic, 1): 9})
    words = ("records", "delete", topic, "--committed-by", slow, "--committed-by", fast, "--yes")
    told = answer(*words, bootstrap=lowtide.bootstrap, code=1)
    assert [row["error"] and row["error"]["message"] for row in told["partitions"]] == [
        None,
        f"group {slow} has committed no offset for it",
        f"group {slow} has committed no offset for it",
    ]
    assert other.offsets(topic, range(3)) == {0: (4, 10), 1: (0, 10), 2: (0, 0)}


def test_nothing_is_deleted_without_a_yes(lowtide: SimpleNamespace, other: Driver, filled: tuple[str, int]) -> None:
    """Without a terminal nothing is deleted: exit code 4."""
    topic, _ = filled
    ran = run_process("records", "delete", topic, "--offset", 3, bootstrap=lowtide.bootstrap, code=4)
    assert (ran.stdout, ran.stderr.count("\n")) == ("", 1)
    for words in (("delete", topic), ("sweep", f"{topic}*")):
        said = sentence("records", *words, "--offset", 3, bootstrap=lowtide.bootstrap, code=4)
        assert said.startswith(
            f"lowtide records {words[0]}: this command asks for confirmation, and there is no terminal"
        )
    assert other.offsets(topic, [0]) == {0: (0, 10)}


def answered(command_line: list[str], variables: dict[str, str], reply: str) -> tuple[int, str]:
    """Runs a command on a terminal, and answers its question. Returns its exit code, and the terminal's output."""
    here, there = pty.openpty()
    process = subprocess.Popen(command_line, env=variables, stdin=there, stdout=there, stderr=there)
    os.close(there)
    shown = ""
    try:
        while True:
            try:
                piece = os.read(here, 65536).decode()
            except OSError:  # The other end is closed.
                break
            if not piece:
                break
            if "[y/N]" in piece and "[y/N]" not in shown:
                os.write(here, reply.encode())
            shown += piece
        return process.wait(60), shown
    finally:
        process.kill()
        process.wait()
        os.close(here)


def test_a_user_is_asked(lowtide: SimpleNamespace, other: Driver, filled: tuple[str, int]) -> None:
    """On a terminal the records to delete are shown first, and only "yes" deletes them."""
    topic, _ = filled
    words = command("records", "delete", f"{topic}:0", "--offset", 3)
    code, shown = answered(words, environment(lowtide.bootstrap), "n\n")
    assert "Delete all records below offset 3: 3 records of 1 partition, about" in shown
    assert (code, other.offsets(topic, [0])) == (4, {0: (0, 10)})
    code, _ = answered(words, environment(lowtide.bootstrap), "y\n")
    assert (code, other.offsets(topic, [0])) == (0, {0: (3, 10)})
    code, shown = answered(
        command("records", "sweep", topic, "--offset", 5, "--yes"), environment(lowtide.bootstrap), ""
    )
    assert "sweeping" in shown


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("delete", "{topic}", "--offset", 11, "--yes"), None),
        (("delete", "{topic}"), "give one of --offset, --before and --committed-by."),
        (
            ("delete", "{topic}", "--offset", 1, "--before", "1793491200000"),
            "--offset and --before exclude each other",
        ),
        (("delete", "{topic}", "--offset", "-1"), "--offset: '-1' is not an offset"),
        (("delete", "{topic}", "--before", "2026-11-01"), "--before: '2026-11-01' has no time zone"),
        (("delete", "{topic}:9", "--offset", 1), "has no partition 9: it has 3."),
        (("delete", "{topic}-gone", "--offset", 1), "there is no topic"),
        (("delete", "a b", "--offset", 1), "'a b' is not a topic name"),
        (("delete",), "Missing argument"),
        (("sweep", "--offset", 1), "give patterns of topics, or --file."),
        (("sweep", "no-such-*", "--offset", 1), "no topic matches 'no-such-*'."),
        (("sweep", "x", "--file", "f", "--offset", 1), "--file contains the partitions and offsets"),
        (("sweep", "--file", "missing.json"), "missing.json can't be read: No such file or directory."),
        (("sweep", "x", "--offset", 1, "--rate", 0), "Invalid value for"),
    ],
)
def test_invalid_arguments_are_refused(
    lowtide: SimpleNamespace, other: Driver, filled: tuple[str, int], words: tuple, part: str | None
) -> None:
    """With a message, before anything is deleted."""
    topic, _ = filled
    named = [str(word).replace("{topic}", topic) for word in words]
    if part is None:
        rows = answer("records", *named, bootstrap=lowtide.bootstrap, code=1)["partitions"]
        assert rows[0]["error"]["message"] == "offset 11 is above the high watermark, 10"
    else:
        assert part in sentence("records", *named, bootstrap=lowtide.bootstrap, code=2)
    assert other.offsets(topic, [0]) == {0: (0, 10)}


def test_a_cluster_that_is_down_is_exit_code_3() -> None:
    """The message has the addresses that were tried."""
    said = sentence("records", "delete", "t", "--offset", 1, "--timeout", 1, "-b", "127.0.0.1:1", code=3)
    assert "127.0.0.1:1" in said


def test_settings_that_are_invalid_are_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=MAYBE\n")
    said = sentence("records", "delete", "t", "--offset", 1, "--command-config", file, code=2)
    assert "client.properties line 1: security.protocol is 'MAYBE'" in said


def test_a_sweep_that_is_killed_continues(
    lowtide: SimpleNamespace, other: Driver, lowtide_topic: str, tmp_path: Path
) -> None:
    """After SIGKILL the next run does the rest, up to the offsets of the first. Only the owner can read the file."""
    other.create_topic(lowtide_topic, 24, {})
    until(lambda: len(other.offsets(lowtide_topic, range(24))) == 24, but=NOT_YET)
    for number in range(24):
        other.produce(lowtide_topic, [OutgoingRecord(b"k", b"v")] * 3, partition=number)
    state = tmp_path / "state.json"
    words = ("records", "sweep", f"{lowtide_topic}*", "--offset", "end", "--state", state, "--yes", "--output", "json")
    process = subprocess.Popen(
        command(*words, "--rate", 8), env=environment(lowtide.bootstrap), stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: state.exists() and 2 <= state.read_text().count('"done"') < 24)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with sigint():
        interrupted = subprocess.Popen(
            command(*words, "--rate", 1),
            env=environment(lowtide.bootstrap),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    before = state.read_text().count('"done"')
    try:
        until(lambda: state.read_text().count('"done"') > before)
    finally:
        interrupted.send_signal(signal.SIGINT)
        _, said = interrupted.communicate()
    assert interrupted.returncode == 130
    assert said.startswith("interrupted: ")
    assert "the same command resumes from " in said
    assert state.stat().st_mode & 0o777 == 0o600
    begun = json.loads(state.read_text())
    assert any(row[4] == "pending" for row in begun["partitions"])
    other.produce(lowtide_topic, [OutgoingRecord(b"k", b"late")], partition=23)
    assert "belongs to another sweep" in sentence(*words[:4], 1, *words[5:], bootstrap=lowtide.bootstrap, code=2)
    report = tmp_path / "report.json"
    told = json.loads(run(*words, "--report", report, bootstrap=lowtide.bootstrap).stdout)
    assert (told["partitions"], told["done"], told["failed"], told["records"]) == (24, 24, 0, 72)
    expected = dict.fromkeys(range(24), (3, 3)) | {23: (3, 4)}
    assert other.offsets(lowtide_topic, range(24)) == expected
    assert len(json.loads(report.read_text())["outcomes"]) == 24
    assert "nothing to do" in run(*words, bootstrap=lowtide.bootstrap).stderr


def test_a_report_that_cannot_be_written_is_reported_before_anything_is_deleted(
    lowtide: SimpleNamespace, other: Driver, filled: tuple[str, int], tmp_path: Path
) -> None:
    """It was once reported after all deletes, instead of their results."""
    topic, _ = filled
    words = ("records", "sweep", topic, "--offset", 3, "--yes", "--report", tmp_path / "none" / "report.json")
    assert "report.json can't be written" in sentence(*words, bootstrap=lowtide.bootstrap, code=1)
    assert other.offsets(topic, [0]) == {0: (0, 10)}


def test_an_unknown_code_is_a_name(lowtide: SimpleNamespace, filled: tuple[str, int]) -> None:
    """Deletes of records once showed Kafka's number instead of its name."""
    words = ("records", "delete", "__consumer_offsets:0", "--offset", 0, "--yes")
    run("groups", "reset", "some", "--topic", filled[0], "--to", "earliest", "--yes", bootstrap=lowtide.bootstrap)
    (row,) = answer(*words, bootstrap=lowtide.bootstrap, code=1)["partitions"]
    assert row["error"]["code"] == "INVALID_TOPIC_EXCEPTION"


def test_a_re_created_topic_is_not_swept(lowtide: SimpleNamespace, other: Driver, topic: str, tmp_path: Path) -> None:
    """A sweep continues after its topic was deleted and re-created: nothing of the new one is deleted."""
    other.produce(topic, [OutgoingRecord(b"k", b"v")] * 3)
    state = tmp_path / "state.json"
    words = ("records", "sweep", topic, "--offset", 2, "--state", state, "--yes", "--timeout", 10)
    run(*words, bootstrap=lowtide.bootstrap, code=1)  # Two of its partitions are empty.
    stored = json.loads(state.read_text())
    stored["partitions"] = [[*row[:4], "pending"] for row in stored["partitions"] if row[1] == 0]
    stored["topic_ids"] = {topic: "AAAAAAAAAAAAAAAAAAAAEQ"}
    state.write_text(json.dumps(stored))
    other.produce(topic, [OutgoingRecord(b"k", b"v")] * 3)
    before = other.offsets(topic, [0])
    told = answer(*words, bootstrap=lowtide.bootstrap, code=1)
    assert "was created again" in told["failures"][0]["reason"]
    assert other.offsets(topic, [0]) == before


def test_a_sweep_of_a_file(lowtide: SimpleNamespace, other: Driver, filled: tuple[str, int], tmp_path: Path) -> None:
    topic, _ = filled
    file = tmp_path / "offsets.json"
    file.write_text(
        json.dumps(
            {
                "partitions": [
                    {"topic": topic, "partition": 0, "offset": 2},
                    {"topic": topic, "partition": 1, "offset": -1},
                ]
            }
        )
    )
    told = answer("records", "sweep", "--file", file, "--dry-run", bootstrap=lowtide.bootstrap)
    assert (told["partitions"], told["records"]) == (2, 12)
    assert answer("records", "sweep", "--file", file, "--yes", bootstrap=lowtide.bootstrap)["records"] == 12
    assert other.offsets(topic, [0, 1]) == {0: (2, 10), 1: (10, 10)}


def test_lines_become_records(lowtide: SimpleNamespace, other: Driver, topic: str) -> None:
    """Reads values and JSON from a pipe. Keys get the partitions that other clients choose."""
    ended = subprocess.run(
        command("records", "produce", topic, "--separator", ":"),
        env=environment(lowtide.bootstrap),
        input="UA:one\nAA:two\nUA:three",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (ended.stdout, ended.stderr) == (f"{topic}: 3 records\n", "")
    assert answer(
        "records", "produce", f"{topic}:2", "four", "--key", "k", "--header", "h=v", bootstrap=lowtide.bootstrap
    ) == {"topic": topic, "records": 1}
    from lowtide.protocol.key_hash import partition_of_key

    rows = {}
    for partition in range(3):
        shown = run("records", "show", f"{topic}:{partition}", "--output", "json", bootstrap=lowtide.bootstrap).stdout
        rows[partition] = [json.loads(line) for line in shown.splitlines()]
    assert [row["value"] for row in rows[partition_of_key(b"UA", 3)] if row["key"] == "UA"] == ["one", "three"]
    assert [row["value"] for row in rows[partition_of_key(b"AA", 3)] if row["key"] == "AA"] == ["two"]
    assert (rows[2][-1]["key"], rows[2][-1]["value"], rows[2][-1]["headers"]) == (
        "k",
        "four",
        [{"name": "h", "value": "v"}],
    )


def test_a_line_that_is_no_record_is_named_with_what_is_written(lowtide: SimpleNamespace, topic: str) -> None:
    said = sentence("records", "produce", topic, "--format", "hex", "00", "xy", code=1, bootstrap=lowtide.bootstrap)
    assert (
        said == "lowtide records produce: line 2, 'xy', is not a record: it must be hex digits, two for each byte; "
        "nothing is written."
    )
    said = sentence("records", "produce", f"{topic}:3", "x", code=1, bootstrap=lowtide.bootstrap)
    assert (
        said == f"lowtide records produce: topic {topic} has no partition 3: it has 3 partitions; nothing is written."
    )
    said = sentence("records", "produce", topic, "x", "--compression", "rar", code=2, bootstrap=lowtide.bootstrap)
    assert said.startswith("lowtide records produce: --compression rar is invalid: it must be one of none, gzip, ")


def test_what_comes_is_followed_until_ctrl_c(lowtide: SimpleNamespace, other: Driver, filled: tuple[str, int]) -> None:
    """Without --from it starts at the end. Records that are deleted meanwhile are skipped, with a remark."""
    topic, _ = filled
    follow = ("records", "show", f"{topic}:0", "--follow", "--output", "json")
    other.delete_records(topic, {0: 3})
    old = subprocess.Popen(
        command(*follow, "--from", 1, "--count", 8),
        env=environment(lowtide.bootstrap),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with sigint():
        new = subprocess.Popen(command(*follow), env=environment(lowtide.bootstrap), stdout=subprocess.PIPE, text=True)
    try:
        assert old.stdout is not None
        assert new.stdout is not None
        assert [json.loads(old.stdout.readline())["offset"] for _ in range(7)] == list(range(3, 10))
        seen: list[str] = []
        deadline = time.monotonic() + 60
        while not seen:  # The other one may still be looking for the end: it shows what is written behind that.
            assert time.monotonic() < deadline
            other.produce(topic, [OutgoingRecord(b"k", b"later", int(time.time() * 1000))], partition=0)
            if select.select([new.stdout], [], [], 0.5)[0]:
                seen.append(json.loads(new.stdout.readline())["value"])
        assert seen == ["later"]
        rest, errors = old.communicate(timeout=60)
        assert (json.loads(rest)["value"], old.returncode) == ("later", 0)
        assert errors == f"{topic}-0: the records from 1 to 2 are deleted.\n"
        new.send_signal(signal.SIGINT)
        new.communicate(timeout=60)
        assert new.returncode == 130
    finally:
        for process in (old, new):
            process.kill()
            process.wait()
    assert "--follow and --to" in sentence(*follow[:4], "--to", "end", code=2, bootstrap=lowtide.bootstrap)
