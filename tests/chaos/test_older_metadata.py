"""Metadata that were put back from a backup know less than the log directories: a start with them removes nothing."""

from __future__ import annotations

import random
from pathlib import Path

from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.testing.load import PartitionLoad

from .serving import ServeProcess

METADATA_VERSION = 12
METADATA_FILE = "lowtide-metadata.sqlite"


async def test_logs_of_topics_that_older_metadata_lack_are_left_alone(tmp_path: Path) -> None:
    """Metadata that were put back from a backup know less than the log directories: what they lack wasn't deleted."""
    directory = tmp_path / "log"
    await live_with_new_topic(directory, "early")
    backup = (directory / METADATA_FILE).read_bytes()
    await live_with_new_topic(directory, "late")
    for path in directory.glob(f"{METADATA_FILE}-*"):
        path.unlink()
    (directory / METADATA_FILE).write_bytes(backup)
    for _ in range(2):
        async with ServeProcess(directory) as broker:
            client = await broker.connect()
            known = await client.request(MetadataRequest(topics=None), METADATA_VERSION)
            client.close()
            assert [topic.name for topic in known.topics] == ["early"]
            assert await broker.terminate() == 0
        assert (directory / "late-0" / "00000000000000000000.log").exists()


async def live_with_new_topic(directory: Path, name: str) -> None:
    """A broker's life from start to clean stop, in which a topic is made."""
    async with ServeProcess(directory) as broker:
        client = await broker.connect()
        await PartitionLoad(name, 0, broker.connect, random.Random(1)).create_topic(client, {})
        client.close()
        assert await broker.terminate() == 0
