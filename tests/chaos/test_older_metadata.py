"""Metadata restored from a backup are behind the log directories: no broker acts on them, and nothing is removed."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.broker.lifecycle.metadata_copies import COPY_FILE
from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.simulation.load import PartitionLoad

from .serving import ServeProcess, run_to_end, serve_command

METADATA_FILE = "lowtide-metadata.sqlite"
METADATA_VERSION = 12


@pytest.mark.slow
async def test_a_broker_is_not_started_over_older_metadata(tmp_path: Path) -> None:
    """Topics that they lack were not deleted. The refusal says what to do, each time."""
    directory = tmp_path / "log"
    await live_with_new_topic(directory, "early")
    backup = (directory / METADATA_FILE).read_bytes()
    await live_with_new_topic(directory, "late")
    put_back(directory, backup)
    for _ in range(2):
        refused = await asyncio.to_thread(run_to_end, serve_command(directory))
        assert refused.returncode == 2
        assert "lowtide metadata recover" in refused.stderr
        assert (directory / "late-0" / "00000000000000000000.log").exists()


def put_back(directory: Path, backup: bytes) -> None:
    for path in directory.glob(f"{METADATA_FILE}-*"):
        path.unlink()
    (directory / METADATA_FILE).write_bytes(backup)


async def live_with_new_topic(directory: Path, name: str) -> None:
    """Runs a broker from start to clean stop; a topic is created meanwhile."""
    async with ServeProcess(directory) as broker:
        client = await broker.connect()
        await PartitionLoad(name, 0, broker.connect, random.Random(1)).create_topic(client, {})
        client.close()
        assert await broker.terminate() == 0


@pytest.mark.slow
async def test_the_metadata_of_one_broker_are_recovered(tmp_path: Path) -> None:
    """From its own directory; also if the file is gone, only from the directory."""
    directory = tmp_path / "log"
    await live_with_new_topic(directory, "early")
    backup = (directory / METADATA_FILE).read_bytes()
    await live_with_new_topic(directory, "late")
    put_back(directory, backup)
    for lost in (False, True):
        if lost:
            for path in directory.glob(f"{METADATA_FILE}*"):
                path.unlink()
        words = ["--log-dirs", str(directory)]
        before = {
            path.name: path.read_bytes() for path in directory.iterdir() if path.is_file() and "lock" not in path.name
        }
        assert (await run("status", *words)).returncode == 1
        rehearsal = await run("recover", *words, "--dry-run")
        assert rehearsal.returncode == 0
        assert "topic late: missing in the store, will be restored" in rehearsal.stdout
        assert {path.name: path.read_bytes() for path in directory.iterdir() if path.name in before} == before, (
            "nothing was changed"
        )
        assert (await run("recover", *words)).returncode == 4, "it asks first"
        assert (await run("recover", *words, "--yes")).returncode == 0
        assert (await run("status", *words)).returncode == 0
        async with ServeProcess(directory) as broker:
            client = await broker.connect()
            known = await client.request(MetadataRequest(topics=None), METADATA_VERSION)
            client.close()
            assert {topic.name for topic in known.topics} == {"early", "late"}
            assert all(partition.leader_id >= 0 for topic in known.topics for partition in topic.partitions)
            assert await broker.terminate() == 0
        assert (await run("status", *words)).returncode == 0


@pytest.mark.slow
async def test_a_broker_without_partitions_keeps_its_copy_over_lost_metadata(tmp_path: Path) -> None:
    """A start on an empty store must not begin another history and replace the copy in the directory."""
    directory = tmp_path / "log"
    async with ServeProcess(directory) as broker:
        assert await broker.terminate() == 0
    remembered = (directory / COPY_FILE).read_bytes()
    for path in directory.glob(f"{METADATA_FILE}*"):
        path.unlink()
    for _ in range(2):
        refused = await asyncio.to_thread(run_to_end, serve_command(directory))
        assert refused.returncode == 2
        assert "lowtide metadata recover" in refused.stderr
        assert (directory / COPY_FILE).read_bytes() == remembered
    assert (await run("recover", "--log-dirs", str(directory), "--yes")).returncode == 0
    async with ServeProcess(directory) as broker:
        assert await broker.terminate() == 0


async def run(*words: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run_to_end, [sys.executable, "-m", "lowtide.cli.main", "metadata", *words])
