"""Metadata that were put back from a backup know less than the log directories: no broker acts on them, and nothing is removed."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from lowtide.testing.load import PartitionLoad

from .serving import ServeProcess, run_to_end, serve_command

METADATA_FILE = "lowtide-metadata.sqlite"


async def test_a_broker_is_not_started_over_older_metadata(tmp_path: Path) -> None:
    """What they lack wasn't deleted. The refusal says what to do, each time."""
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
    """A broker's life from start to clean stop, in which a topic is made."""
    async with ServeProcess(directory) as broker:
        client = await broker.connect()
        await PartitionLoad(name, 0, broker.connect, random.Random(1)).create_topic(client, {})
        client.close()
        assert await broker.terminate() == 0
