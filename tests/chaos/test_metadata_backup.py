"""`lowtide backup` and `restore` with real brokers: records and deletes after the backup survive."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lowtide.metadata import keys
from lowtide.metadata.backup import Backup, decode_backup, encode_backup
from lowtide.metadata.embedded import MetadataFileError, read_embedded_in_use
from lowtide.metadata.etcd_address import DEFAULT_PREFIX
from lowtide.metadata.metadata_copy import MetadataCopy
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import MetadataRequest
from tests.etcd import CONTROL_PROGRAM, missing

from .asking import (
    CREATE_TOPICS_VERSION,
    DELETE_RECORDS_VERSION,
    EARLIEST,
    FETCH_VERSION,
    LATEST,
    LIST_OFFSETS_VERSION,
    PRODUCE_VERSION,
    delete_request,
    fetch_request,
    offsets_request,
    only_row,
    produce_request,
    records_from,
    topic_request,
)
from .cluster_processes import METADATA_VERSION, ClusterProcesses
from .security import Security
from .serving import ServeProcess, run_to_end, serve_command

METADATA_FILE = "lowtide-metadata.sqlite"
EARLY, LATE = "early", "late"
VALUES = [b"value %d" % number for number in range(20)]
MORE = [b"more %d" % number for number in range(20)]
X = 15
LIMIT_S = 60.0

needs_etcd = pytest.mark.skipif(
    missing() is not None or shutil.which(CONTROL_PROGRAM) is None, reason="etcd or etcdctl is missing"
)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "lowtide.cli.main", *words]


async def lowtide(*words: str, code: int = 0) -> str:
    done: subprocess.CompletedProcess[str] = await asyncio.to_thread(run_to_end, command(*words), limit_s=LIMIT_S)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


async def asked(broker: ServeProcess, request: Any, version: int) -> Any:
    client = await broker.connect()
    try:
        return await client.request(request, version)
    finally:
        client.close()


async def create(broker: ServeProcess, topic: str, configs: dict[str, str]) -> None:
    answer = await asked(broker, topic_request(topic, [[0]], configs=configs), CREATE_TOPICS_VERSION)
    assert answer.topics[0].error_code == ErrorCode.NONE


async def produce(broker: ServeProcess, topic: str, values: list[bytes]) -> None:
    assert (
        only_row(await asked(broker, produce_request(topic, 0, values), PRODUCE_VERSION)).error_code == ErrorCode.NONE
    )


async def bounds(broker: ServeProcess, topic: str) -> tuple[int, int]:
    rows = [
        only_row(await asked(broker, offsets_request(topic, 0, each), LIST_OFFSETS_VERSION))
        for each in (EARLIEST, LATEST)
    ]
    assert {row.error_code for row in rows} == {ErrorCode.NONE}
    return rows[0].offset, rows[1].offset


async def topics_of(broker: ServeProcess) -> dict[str, bytes]:
    """Returns the topics' ids, by name."""
    answer = await asked(broker, MetadataRequest(topics=None), METADATA_VERSION)
    return {topic.name: topic.topic_id for topic in answer.topics}


def lose_metadata(directory: Path) -> None:
    for path in directory.glob(f"{METADATA_FILE}*"):
        path.unlink()


@pytest.mark.slow
async def test_one_broker_loses_its_metadata(tmp_path: Path) -> None:
    """The backup was made while it ran, and its directory has seen more since: a topic, records, a delete."""
    directory, file = tmp_path / "log", tmp_path / "backup"
    async with ServeProcess(directory) as broker:
        await create(broker, EARLY, {"retention.bytes": "-1"})
        await produce(broker, EARLY, VALUES)
        printed = await lowtide("backup", "--to", str(file), "--log-dirs", str(directory))
        assert "1 topic with 1 partition" in printed
        assert "It contains password hashes" in printed
        assert file.stat().st_mode & 0o777 == 0o600
        assert "exists already" in await lowtide("backup", "--to", str(file), "--log-dirs", str(directory), code=2)
        await create(broker, LATE, {})
        await produce(broker, LATE, MORE)
        await produce(broker, EARLY, MORE)
        deleted = await asked(broker, delete_request(EARLY, 0, X), DELETE_RECORDS_VERSION)
        assert only_row(deleted).low_watermark == X
        ids = await topics_of(broker)
        refused = await lowtide("restore", str(file), "--log-dirs", str(directory), "--replace", "--yes", code=1)
        assert "stop it first" in refused
        await broker.kill()
    restore = ["restore", str(file), "--log-dirs", str(directory)]
    assert "the metadata store isn't empty" in await lowtide(*restore, "--yes", code=1)
    lose_metadata(directory)
    rehearsal = await lowtide(*restore, "--dry-run")
    assert f"topic {LATE}: missing in the store, will be restored" in rehearsal
    assert not (directory / METADATA_FILE).exists()
    assert "there is no terminal" in await lowtide(*restore, code=4)
    await lowtide(*restore, "--yes")
    async with ServeProcess(directory) as broker:
        assert await topics_of(broker) == ids
        assert await bounds(broker, EARLY) == (X, len(VALUES + MORE))
        assert await bounds(broker, LATE) == (0, len(MORE))
        row = only_row(await asked(broker, fetch_request(EARLY, 0, X), FETCH_VERSION))
        assert records_from(row.records, X) == dict(enumerate([*VALUES, *MORE][X:], X))
        await produce(broker, EARLY, VALUES)
        assert await broker.terminate() == 0


@pytest.mark.slow
async def test_one_broker_loses_its_disk(tmp_path: Path) -> None:
    """Topics, with their ids and configurations, come back without records.

    The old directory is refused, should it turn up again.
    """
    directory, found, file = tmp_path / "log", tmp_path / "found", tmp_path / "backup"
    async with ServeProcess(directory) as broker:
        await create(broker, EARLY, {"retention.bytes": "12345"})
        ids = await topics_of(broker)
        assert await broker.terminate() == 0
    await lowtide("backup", "--to", str(file), "--log-dirs", str(directory))
    async with ServeProcess(directory) as broker:
        await create(broker, LATE, {})
        assert await broker.terminate() == 0
    directory.rename(found)
    directory.mkdir()
    restore = ["restore", str(file), "--metadata", str(directory / METADATA_FILE), "--yes"]
    assert "what broker 0 knows is missing" in await lowtide(*restore, code=1)
    printed = await lowtide(*restore, "--without", "0")
    assert (
        f"{EARLY}-0: no sound log of its only replica is given; broker 0 leads it with what it has when it starts"
        in printed
    )
    async with ServeProcess(directory) as broker:
        assert await topics_of(broker) == ids
        assert await bounds(broker, EARLY) == (0, 0)
        await produce(broker, EARLY, VALUES)
        assert await broker.terminate() == 0
    again = tmp_path / "again"
    await lowtide("backup", "--to", str(again), "--log-dirs", str(directory))
    configs = decode_backup(again.read_bytes()).copy.rows[keys.topic_config(EARLY)]
    assert b"12345" in configs[1]
    (found / METADATA_FILE).unlink()
    shutil.copy(directory / METADATA_FILE, found / METADATA_FILE)
    refused = await asyncio.to_thread(run_to_end, serve_command(found))
    assert refused.returncode == 2
    assert (found / f"{LATE}-0").is_dir()


@pytest.mark.slow
async def test_a_damaged_backup_is_refused_by_its_name(tmp_path: Path) -> None:
    directory, file = tmp_path / "log", tmp_path / "backup"
    async with ServeProcess(directory) as broker:
        assert await broker.terminate() == 0
    await lowtide("backup", "--to", str(file), "--log-dirs", str(directory))
    assert "cluster id" in await lowtide("backup", "--verify", str(file))
    file.write_bytes(file.read_bytes()[:-10])
    for words in (
        ["backup", "--verify", str(file)],
        ["restore", str(file), "--log-dirs", str(directory), "--replace", "--yes"],
    ):
        printed = await lowtide(*words, code=1)
        assert f"{file}: it is cut off or damaged" in printed
        assert printed.count("\n") == 1


def with_many_topics(content: bytes) -> bytes:
    """Returns the backup with enough group configurations for a restore of many steps."""
    found = decode_backup(content)
    rows = [*found.copy.rows.values(), *((keys.group_config(f"g{number}"), b"{}", 1, 1) for number in range(30_000))]
    copy = MetadataCopy(rows, found.copy.revision, history_id=found.copy.history_id, cluster_id=found.copy.cluster_id)
    return encode_backup(Backup(found.made_ms, found.version, found.metadata_level, copy))


@pytest.mark.slow
async def test_a_restore_that_is_killed_is_refused_by_brokers_and_continued(tmp_path: Path) -> None:
    directory, file = tmp_path / "log", tmp_path / "backup"
    async with ServeProcess(directory) as broker:
        await create(broker, EARLY, {})
        await produce(broker, EARLY, VALUES)
        assert await broker.terminate() == 0
    await lowtide("backup", "--to", str(file), "--log-dirs", str(directory))
    file.write_bytes(with_many_topics(file.read_bytes()))
    lose_metadata(directory)
    place = directory / METADATA_FILE
    restore = command("restore", str(file), "--metadata", str(place), "--without", "0", "--yes")
    async with asyncio.timeout(LIMIT_S):
        while DEFAULT_PREFIX + keys.SUSPENSION not in keys_of(
            place
        ):  # One that was quicker than this look is made again.
            lose_metadata(directory)
            await killed_when_it_writes(restore, place)
    assert len(keys_of(place)) < 30_000
    refused = await asyncio.to_thread(run_to_end, serve_command(directory))
    assert refused.returncode == 2
    assert "a restore is under way, or was cut off" in refused.stderr
    assert "is suspended" in await lowtide(
        "backup", "--to", str(tmp_path / "other"), "--log-dirs", str(directory), code=1
    )
    await lowtide(*restore[3:])
    assert len(keys_of(place)) > 30_000
    assert DEFAULT_PREFIX + keys.SUSPENSION not in keys_of(place)
    async with ServeProcess(directory) as broker:
        assert await bounds(broker, EARLY) == (0, len(VALUES))
        assert await broker.terminate() == 0


async def killed_when_it_writes(restore: list[str], place: Path) -> None:
    """SIGKILL to a restore that has begun."""
    process = await asyncio.create_subprocess_exec(*restore, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.returncode is None and DEFAULT_PREFIX + keys.SUSPENSION not in keys_of(place):
        await asyncio.sleep(0)
    if process.returncode is None:
        os.kill(process.pid, signal.SIGKILL)
    await process.wait()


def keys_of(place: Path) -> set[bytes]:
    """Returns the keys of a store that another process is creating."""
    with contextlib.suppress(MetadataFileError):
        return {pair.key for pair in read_embedded_in_use(str(place))[0]}
    return set()


@needs_etcd
@pytest.mark.slow
async def test_a_cluster_loses_its_etcd(tmp_path: Path) -> None:
    """The backup was made under load; broker 3 was away since.

    Records, deletes and topics from after the backup are there.
    """
    async with ClusterProcesses(tmp_path) as cluster:
        address = ("--metadata", f"etcd://{cluster.etcd.endpoint}")
        file = str(tmp_path / "backup")
        await cluster.create_topic(EARLY, [[1, 2, 3]])
        await cluster.acknowledged(EARLY, lambda leader: cluster.produce(leader, EARLY, VALUES))
        await lowtide("backup", "--to", file, *address)
        await cluster.kill(3)
        await cluster.create_topic(LATE, [[1, 2]], configs={"retention.ms": "-1"})
        await cluster.acknowledged(LATE, lambda leader: cluster.produce(leader, LATE, VALUES))
        await cluster.until_in_sync(EARLY, members={1, 2})
        await cluster.acknowledged(EARLY, lambda leader: cluster.produce(leader, EARLY, MORE))
        await cluster.acknowledged(EARLY, lambda leader: cluster.delete(leader, EARLY, X))
        await cluster.kill(1, 2)
        await asyncio.to_thread(cluster.etcd.kill)
        shutil.rmtree(cluster.etcd.directory)
        await asyncio.to_thread(cluster.etcd.start)
        files = [str(tmp_path / f"broker-{broker_id}.json") for broker_id in cluster.ids]
        for each, directory in zip(files, cluster.directories.values(), strict=True):
            await lowtide("metadata", "export", "--log-dirs", str(directory), each)
        assert "what broker 3 knows is missing" in await lowtide("restore", file, *files[:2], *address, "--yes", code=1)
        assert f"topic {LATE}" in await lowtide("restore", file, *files, *address, "--yes")
        await cluster.start(*cluster.ids)
        await cluster.until_in_sync(EARLY)
        row = await cluster.until_in_sync(LATE)
        assert await cluster.bounds(row.leader_id, LATE) == (0, len(VALUES))
        expected = dict(enumerate([*VALUES, *MORE][X:], X))
        for broker_id in cluster.ids:

            async def has_it_all(broker_id: int = broker_id) -> bool:
                row, records = await cluster.fetch(broker_id, EARLY, X)
                return row.error_code == ErrorCode.NONE and records == expected and row.log_start_offset == X

            await cluster.until(f"broker {broker_id} has it all", has_it_all)


@needs_etcd
@pytest.mark.slowest
async def test_a_cluster_loses_everything(tmp_path: Path) -> None:
    """Only the backup is left: topics return, and lead once the operator accepts the loss of their records."""
    async with ClusterProcesses(tmp_path) as cluster:
        address = ("--metadata", f"etcd://{cluster.etcd.endpoint}")
        file = str(tmp_path / "backup")
        await cluster.create_topic(EARLY, [[1, 2, 3]], configs={"retention.bytes": "12345"})
        await lowtide("backup", "--to", file, *address)
        lost = ["restore", file, *address, "--yes", "--without", "1", "--without", "2", "--without", "3"]
        assert "is running: stop all brokers first" in await lowtide(*lost, "--replace", code=1)
        await cluster.kill(*cluster.ids)
        await asyncio.to_thread(cluster.etcd.kill)
        shutil.rmtree(cluster.etcd.directory)
        for directory in cluster.directories.values():
            shutil.rmtree(directory)
        await asyncio.to_thread(cluster.etcd.start)
        assert f"{EARLY}-0: of its in-sync replicas (1, 2, 3) no sound log is given" in await lowtide(*lost)
        await cluster.start(*cluster.ids)
        await cluster.until_partition(EARLY, lambda row: row.leader_id == -1)
        await lowtide("cluster", "elect", "--unclean", "--yes", "--bootstrap-server", cluster.bootstrap)
        await cluster.until_in_sync(EARLY)
        await cluster.acknowledged(EARLY, lambda leader: cluster.produce(leader, EARLY, VALUES))
        described = await lowtide(
            "topics", "describe", EARLY, "--output", "json", "--bootstrap-server", cluster.bootstrap
        )
        assert '"12345"' in described


@needs_etcd
@pytest.mark.slowest
async def test_a_cluster_loses_its_etcd_with_tls(tmp_path: Path) -> None:
    """etcd requires a certificate, and clients log in. A command without a certificate says that it used no TLS."""
    security = Security(tmp_path / "security")
    async with ClusterProcesses(tmp_path / "brokers", "min.insync.replicas=1", brokers=1, security=security) as cluster:
        bare = ("--metadata", f"etcd://{cluster.etcd.secured_endpoint}")
        file, exported = str(tmp_path / "backup"), str(tmp_path / "broker-1.json")
        await cluster.create_topic(EARLY, [[1]], configs={"retention.bytes": "12345"})
        assert "not reached without TLS" in await lowtide("backup", "--to", file, *bare, code=3)
        address = (*bare, *security.metadata_options)
        await lowtide("backup", "--to", file, *address)
        await cluster.acknowledged(EARLY, lambda leader: cluster.produce(leader, EARLY, VALUES))
        await cluster.kill(1)
        await asyncio.to_thread(cluster.etcd.kill)
        shutil.rmtree(cluster.etcd.directory)
        await asyncio.to_thread(cluster.etcd.start)
        await lowtide("metadata", "export", "--log-dirs", str(cluster.directories[1]), exported)
        rehearsed = await lowtide("restore", file, exported, *address, "--dry-run")
        assert "not reached without TLS" in await lowtide("restore", file, exported, *bare, "--yes", code=3)
        assert await asyncio.to_thread(cluster.etcd.count, DEFAULT_PREFIX) == 0, rehearsed
        await lowtide("restore", file, exported, *address, "--yes")
        await cluster.start(1)
        await cluster.until_in_sync(EARLY)
        assert await cluster.bounds(1, EARLY) == (0, len(VALUES))
