"""A broker with a log directory that is damaged, foreign, in use, or not writable.

It ends with code 2 and one message that names the file and, if there is one, the remedy; and it changes nothing: with
the file restored, or after the requested repair, the broker starts and has every record. Real processes over real
files.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.simulation.load import PartitionLoad

from .serving import ServeProcess, run_to_end, serve_command

READ_LIMIT_S = 120.0
METADATA_VERSION = 12
TOPIC = "kept"
JOURNAL = "lowtide-log-start.journal"
METADATA_FILE = "lowtide-metadata.sqlite"
CLEAN_MARKER = ".kafka_cleanshutdown"
SYNC_FAILED_MARK = "lowtide-sync-failed"
GARBAGE = b"garbage\n\xff\x00\n"


class Content(NamedTuple):
    """All records and log starts that clients can read from a broker."""

    topic_id: bytes
    log_start_offset: int
    log_end_offset: int
    records: dict[int, bytes]


class LeftDirectory(NamedTuple):
    """A log directory, and its contents when the broker ended."""

    directory: Path
    content: Content


# ---------------------------------------------------------------------- initial directories
@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> LeftDirectory:
    """The directory of a cleanly stopped broker, with records and deletes. Tests must not change it."""
    directory = tmp_path_factory.mktemp("stopped") / "log"
    return LeftDirectory(directory, asyncio.run(fill(directory, kill=False)))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> LeftDirectory:
    """The directory of a killed broker."""
    directory = tmp_path_factory.mktemp("killed") / "log"
    return LeftDirectory(directory, asyncio.run(fill(directory, kill=True)))


def copied(left: LeftDirectory, to: Path) -> LeftDirectory:
    """Returns a copy, to be damaged."""
    shutil.copytree(left.directory, to / "log")
    return LeftDirectory(to / "log", left.content)


@pytest.fixture
def left(stopped: LeftDirectory, tmp_path: Path) -> LeftDirectory:
    """A directory after a clean stop, to be damaged."""
    return copied(stopped, tmp_path)


@pytest.fixture
def left_by_kill(killed: LeftDirectory, tmp_path: Path) -> LeftDirectory:
    """A directory after SIGKILL, to be damaged."""
    return copied(killed, tmp_path)


async def fill(directory: Path, *, kill: bool) -> Content:
    async with ServeProcess(directory) as broker:
        client = await broker.connect()
        load = PartitionLoad(TOPIC, 0, broker.connect, random.Random(1))
        await load.create_topic(client, {"internal.segment.bytes": "1000"})
        for _ in range(12):
            await load.produce(client, 3)
        while load.history.acknowledged_delete < 10:
            await load.delete(client)
        await load.produce(client, 3)
        client.close()
        content = await read(broker)
        assert 10 <= content.log_start_offset < content.log_end_offset
        assert await (broker.kill() if kill else broker.terminate()) in (None, 0)
        return content


async def read(broker: ServeProcess) -> Content:
    client = await broker.connect()
    async with asyncio.timeout(READ_LIMIT_S):
        response = await client.request(MetadataRequest(topics=None), METADATA_VERSION)
        topic_ids = {topic.name: topic.topic_id for topic in response.topics}
        reader = PartitionLoad(TOPIC, 0, broker.connect, random.Random(0))
        reader.history.on_delete(1 << 40)  # this reader does not know what was deleted or produced
        bounds = await reader.bounds(client)
        assert bounds is not None
        records: dict[int, bytes] = {}
        while len(records) < bounds[1] - bounds[0]:
            found = await reader.fetch(client, max(records, default=bounds[0] - 1) + 1)
            assert found
            records |= found
    client.close()
    return Content(topic_ids[TOPIC], *bounds, records)


# ---------------------------------------------------------------------- expectations
def refusal(directory: Path, *settings: str) -> str:
    """Returns the message with which a broker refuses to start on `directory`, which it does not change."""
    before = snapshot(directory)
    ended = run_to_end(serve_command(directory, *settings))
    assert ended.returncode == 2, ended.stderr
    log, sentences = [], []
    for line in ended.stderr.splitlines():
        (log if line.startswith("{") else sentences).append(line)
    assert not [line for line in log if json.loads(line)["event"] == "ready"]
    assert len(sentences) == 1, ended.stderr
    assert sentences[0].startswith("lowtide serve: ")
    assert "Errno" not in sentences[0]
    assert snapshot(directory) == before
    return sentences[0]


def snapshot(directory: Path) -> dict[str, bytes | None]:
    """Every file and folder.

    Without the metadata store, which counts its openings, and whose contents are compared by reading.
    """
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
        if not path.name.startswith(METADATA_FILE)
    }


def served(directory: Path, *settings: str) -> Content:
    """Returns the contents that clients read when a broker runs on `directory`, which it does without a fault."""

    async def serve() -> Content:
        async with ServeProcess(directory, *settings) as broker:
            content = await read(broker)
            assert await broker.terminate() == 0
            assert not broker.faults
            return content

    return asyncio.run(serve())


def changed(path: Path, position: int, content: bytes) -> None:
    """Overwrites a piece of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def repair(directory: Path) -> str:
    """`lowtide repair-log-start`."""
    ended = run_to_end([sys.executable, "-m", "lowtide.cli.main", "repair-log-start", "--log-dir", str(directory)])
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


# ---------------------------------------------------------------------- log starts
JOURNAL_DAMAGE: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(GARBAGE),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "header": lambda path: changed(path, 20, b"\xff\xff"),
    "frame": lambda path: changed(path, 512 + 30, b"\xff\xff"),
    "cut": lambda path: os.truncate(path, 530),
}


@pytest.mark.parametrize("damage", JOURNAL_DAMAGE)
@pytest.mark.slow
def test_a_damaged_journal_is_refused_and_can_be_repaired(left: LeftDirectory, damage: str) -> None:
    """After a clean stop: the exports of the stop replace the journal, so that no deleted record returns."""
    refuse_and_repair(left, damage)
    assert served(left.directory) == left.content


@pytest.mark.parametrize("damage", ["frame", "missing"])
@pytest.mark.slow
def test_a_damaged_journal_of_a_killed_broker_is_refused_and_can_be_repaired(
    left_by_kill: LeftDirectory, damage: str
) -> None:
    """After SIGKILL records whose delete is only in the journal may return; the repair reports that.

    Nothing else changes.
    """
    known = left_by_kill.content
    refuse_and_repair(left_by_kill, damage)
    content = served(left_by_kill.directory)
    assert content.log_start_offset <= known.log_start_offset
    assert {
        offset: value for offset, value in content.records.items() if offset >= known.log_start_offset
    } == known.records
    assert (content.topic_id, content.log_end_offset) == (known.topic_id, known.log_end_offset)
    assert served(left_by_kill.directory) == content, "a second start has other contents"


def refuse_and_repair(left: LeftDirectory, damage: str) -> None:
    """The message names the journal and the command, which is then run."""
    JOURNAL_DAMAGE[damage](left.directory / JOURNAL)
    sentence = refusal(left.directory)
    assert f"{left.directory}/{JOURNAL}" in sentence
    assert f"`lowtide repair-log-start --log-dir {left.directory}`" in sentence
    assert "Repaired." in repair(left.directory)


def test_an_undamaged_journal_is_not_repaired(left: LeftDirectory) -> None:
    """The repair of a valid journal does nothing, and a deleted record stays deleted."""
    before = snapshot(left.directory)
    assert "Nothing is damaged" in repair(left.directory)
    assert snapshot(left.directory) == before
    assert served(left.directory) == left.content


@pytest.mark.parametrize("name", ["log-start-offset-checkpoint", "log-begin-offset-checkpoint"])
@pytest.mark.parametrize("content", [GARBAGE, b""], ids=["garbage", "empty"])
@pytest.mark.slow
def test_a_corrupt_checkpoint_of_log_starts_is_refused(left: LeftDirectory, name: str, content: bytes) -> None:
    """It is never treated as "nothing is deleted": neither our export nor Kafka's file."""
    (left.directory / name).write_bytes(content)
    sentence = refusal(left.directory)
    assert f"{left.directory}/{name}" in sentence
    assert f"`lowtide repair-log-start --log-dir {left.directory}`" in sentence
    repair(left.directory)
    assert served(left.directory) == left.content


def test_a_refused_start_leaves_the_marks_as_they_are(left: LeftDirectory) -> None:
    """The directory stays cleanly stopped, without a mark of a failed sync: the next start recovers nothing."""
    (left.directory / JOURNAL).write_bytes(GARBAGE)
    refusal(left.directory)
    assert (left.directory / CLEAN_MARKER).exists()
    assert not (left.directory / SYNC_FAILED_MARK).exists()


# ---------------------------------------------------------------------- what can be rebuilt
FOUND_OUT_AGAIN = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    CLEAN_MARKER,
    f"{TOPIC}-0/leader-epoch-checkpoint",
    f"{TOPIC}-0/partition.metadata",
)


@pytest.mark.parametrize("content", [GARBAGE, b"", None], ids=["garbage", "empty", "missing"])
@pytest.mark.slow
def test_what_can_be_found_out_again_stops_nobody(left: LeftDirectory, content: bytes | None) -> None:
    """Files that only save time, or repeat the log and the metadata: the broker starts with everything."""
    for name in FOUND_OUT_AGAIN:
        path = left.directory / name
        assert path.exists(), name
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
    assert served(left.directory) == left.content


# ---------------------------------------------------------------------- ownership
@pytest.mark.slow
def test_a_directory_in_use_is_refused(left: LeftDirectory) -> None:
    """A second broker does not start, and the first is not affected."""

    async def serve() -> None:
        async with ServeProcess(left.directory) as first:
            ended = await asyncio.to_thread(run_to_end, serve_command(left.directory))
            assert ended.returncode == 2
            (sentence,) = ended.stderr.splitlines()
            assert str(left.directory) in sentence
            assert "another broker" in sentence
            assert await read(first) == left.content
            assert await first.terminate() == 0
            assert not first.faults

    asyncio.run(serve())
    assert served(left.directory) == left.content


def property_changed(directory: Path, name: str, value: str) -> None:
    path = directory / "meta.properties"
    lines = [
        f"{name}={value}\n" if line.startswith(f"{name}=") else line
        for line in path.read_text().splitlines(keepends=True)
    ]
    path.write_text("".join(lines))


def metadata_changed(change: Callable[[Path], object]) -> Callable[[Path], object]:
    """Changes the metadata file, after SQLite's write-ahead log has been folded into it."""

    def damage(directory: Path) -> object:
        folded(directory / METADATA_FILE)
        return change(directory / METADATA_FILE)

    return damage


def folded(path: Path) -> None:
    """Checkpoints SQLite's write-ahead log into the file, where damage to the file can reach it."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


OTHER_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "of another node": (lambda path: property_changed(path, "node.id", "7"), "node 7"),
    "of another version": (lambda path: property_changed(path, "version", "9"), "version is '9'"),
    "of no node": (lambda path: property_changed(path, "node.id", "x"), "node.id is 'x'"),
    "of another cluster": (lambda path: property_changed(path, "cluster.id", OTHER_CLUSTER), OTHER_CLUSTER),
    "with an unreadable owner": (lambda path: (path / "meta.properties").write_bytes(GARBAGE), "meta.properties"),
    "without an owner": (lambda path: (path / "meta.properties").unlink(), "meta.properties"),
    "garbage as metadata": (metadata_changed(lambda path: path.write_bytes(GARBAGE * 1000)), METADATA_FILE),
    "first page of metadata": (metadata_changed(lambda path: changed(path, 0, b"\xff" * 100)), METADATA_FILE),
    "other pages of metadata": (
        metadata_changed(lambda path: changed(path, 4096, b"\xff" * (path.stat().st_size - 4096))),
        METADATA_FILE,
    ),
    "metadata cut": (metadata_changed(lambda path: os.truncate(path, 5000)), METADATA_FILE),
    # SQLite's header: user_version. The format of a newer Lowtide is not guessed.
    "newer metadata": (metadata_changed(lambda path: changed(path, 60, (99).to_bytes(4, "big"))), "has format 99"),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", REFUSED)
def test_a_directory_is_refused_until_it_is_mended(left: LeftDirectory, damage: str) -> None:
    """The message has the path and the cause, nothing changes, and the restored files have everything."""
    change, cause = REFUSED[damage]
    original = {path: path.read_bytes() for path in left.directory.glob("*") if path.is_file()}
    change(left.directory)
    metadata = (left.directory / METADATA_FILE).read_bytes()
    sentence = refusal(left.directory)
    assert str(left.directory) in sentence
    assert cause in sentence
    assert "metadata" not in damage or (left.directory / METADATA_FILE).read_bytes() == metadata
    for path, content in original.items():
        path.write_bytes(content)
    assert served(left.directory) == left.content


@pytest.mark.slow
def test_a_directory_given_to_another_node_is_refused(left: LeftDirectory) -> None:
    """The configuration names another node than the directory."""
    sentence = refusal(left.directory, "node.id=3")
    assert f"{left.directory}: the log directory belongs to node 0 (meta.properties), this broker is node 3" in sentence
    assert served(left.directory) == left.content


@pytest.mark.slow
def test_a_second_directory_of_another_cluster_is_refused(left: LeftDirectory, tmp_path: Path) -> None:
    """The first directory is ours; the second one was another cluster's, and stays so."""
    other = tmp_path / "other"
    asyncio.run(fill(other, kill=False))
    before = snapshot(other)
    sentence = refusal(left.directory, f"log.dirs={left.directory},{other}")
    assert "cluster" in sentence
    assert snapshot(other) == before
    assert served(left.directory) == left.content


@pytest.mark.slow
def test_a_directory_stays_cleanly_stopped_when_another_is_refused(left: LeftDirectory, tmp_path: Path) -> None:
    """One bad directory does not cost the good ones a recovery."""
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(left.directory / "meta.properties", other)
    property_changed(other, "node.id", "7")
    refusal(left.directory, f"log.dirs={left.directory},{other}")
    assert (left.directory / CLEAN_MARKER).exists()


# ---------------------------------------------------------------------- lost metadata
def lose_metadata(directory: Path, *, leave_empty: bool) -> None:
    for path in directory.glob(f"{METADATA_FILE}*"):
        path.unlink()
    if leave_empty:
        (directory / METADATA_FILE).touch()


@pytest.mark.slow
@pytest.mark.parametrize("leave_empty", [False, True], ids=["removed", "empty"])
def test_lost_metadata_are_refused_unless_the_operator_wants_the_topics_as_they_are(
    left: LeftDirectory, leave_empty: bool
) -> None:
    """Only the other contents of the directory distinguish them from a new broker's. Deleted records stay deleted."""
    lose_metadata(left.directory, leave_empty=leave_empty)
    for _ in range(2):
        sentence = refusal(left.directory)
        assert f"{left.directory / METADATA_FILE}: the metadata are missing or empty" in sentence
        assert f"create an empty file {left.directory}/lowtide-adopt-topics" in sentence
    (left.directory / "lowtide-adopt-topics").touch()
    assert served(left.directory) == left.content
    assert not (left.directory / "lowtide-adopt-topics").exists()
    lose_metadata(left.directory, leave_empty=leave_empty)
    refusal(left.directory)


@pytest.mark.slow
def test_metadata_put_back_are_taken_though_a_start_was_refused_without_them(
    left: LeftDirectory, tmp_path: Path
) -> None:
    """The refused start left a new file behind, which the old one replaces."""
    folded(left.directory / METADATA_FILE)
    kept = shutil.copy(left.directory / METADATA_FILE, tmp_path / "kept")
    lose_metadata(left.directory, leave_empty=False)
    refusal(left.directory)
    lose_metadata(left.directory, leave_empty=False)
    shutil.copy(kept, left.directory / METADATA_FILE)
    assert served(left.directory) == left.content


# ---------------------------------------------------------------------- no directory at all
@pytest.mark.slow
@pytest.mark.parametrize("name", ["file", "file/log", "log", "/proc/self/log"])
def test_a_path_where_no_directory_can_be_is_refused(tmp_path: Path, name: str) -> None:
    """A file, a path below one, a folder in place of the metadata file, and a file system without new folders."""
    (tmp_path / "file").write_bytes(b"another file")
    (tmp_path / "log" / METADATA_FILE).mkdir(parents=True)
    assert str(tmp_path / name) in refusal(tmp_path / name)
    assert (tmp_path / "file").read_bytes() == b"another file"


WITHOUT_PRIVILEGE = [
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
    "--inh-caps=-dac_override,-dac_read_search",
]
"""Permissions bind root too without these capabilities."""


@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None,
    reason="root may write anywhere, and there is no setpriv to bind it",
)
@pytest.mark.slow
def test_a_directory_that_cannot_be_written_is_refused(left: LeftDirectory) -> None:
    """Permissions deny writing."""
    left.directory.chmod(0o555)
    try:
        ended = run_to_end([*(WITHOUT_PRIVILEGE if os.geteuid() == 0 else []), *serve_command(left.directory)])
        assert ended.returncode == 2
        (sentence,) = ended.stderr.splitlines()
        assert str(left.directory) in sentence
    finally:
        left.directory.chmod(0o755)
    assert served(left.directory) == left.content
