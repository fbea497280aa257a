"""A broker that is killed at any moment loses no acknowledged record, restores no deleted one, and assigns no offset twice.

A real process with real files, several clients that produce, read and delete; SIGKILL at a random moment, sometimes also while it
starts; then everything is read back and checked against the history of all processes. Nothing is flushed: the page cache survives.

`ROUNDS=n` kills more often, `SEED=n` repeats the choice of moments (what they hit also depends on the machine).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path

import pytest

from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.simulation.history import HistoryError
from lowtide.simulation.load import PartitionLoad

from .serving import ServeProcess

ROUNDS = int(os.environ.get("ROUNDS", "8"))
SEED = int(os.environ.get("SEED", "7"))

METADATA_VERSION = 12
PARTITIONS = 2
PAUSE_S = 0.004
LIFE_S = (0.15, 0.6)
START_KILL_S = 0.4
"""A start is killed within this: it takes about as long."""

CHECK_LIMIT_S = 120.0
SETTINGS = ("auto.create.topics.enable=false",)
TOPICS = {
    # One topic removes deleted files at once, so that the kill hits the removal; the files of the other one wait.
    "removed-at-once": {"internal.segment.bytes": "4000", "index.interval.bytes": "500", "file.delete.delay.ms": "0"},
    "removed-later": {"internal.segment.bytes": "9000"},
    # Nothing is removed here: deleted records become a hole.
    "punched": {},
}


class Cluster:
    """One broker over all its restarts, and the clients that survive them."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.broker = ServeProcess(directory, *SETTINGS)
        self.loads = [
            PartitionLoad(topic, partition, lambda: self.broker.connect(), random.Random(f"{seed} {topic} {partition}"))
            for topic in TOPICS
            for partition in range(PARTITIONS)
        ]

    async def start(self) -> None:
        """Start a new process."""
        self.broker = ServeProcess(self.directory, *SETTINGS)
        await self.broker.__aenter__()

    async def create_topics(self) -> None:
        """Create all topics."""
        client = await self.broker.connect()
        for load in self.loads[::PARTITIONS]:
            await load.create_topic(client, TOPICS[load.topic], partitions=PARTITIONS)
        client.close()

    async def topic_ids(self) -> dict[str, bytes]:
        """The current topic ids in the broker."""
        client = await self.broker.connect()
        response = await client.request(MetadataRequest(topics=None, allow_auto_topic_creation=False), METADATA_VERSION)
        client.close()
        return {topic.name: topic.topic_id for topic in response.topics}

    async def read_back(self) -> None:
        """Every partition, whole. Errors: HistoryError for a violated guarantee."""
        async with asyncio.timeout(CHECK_LIMIT_S):
            client = await self.broker.connect()
            for load in self.loads:
                await load.read_all(client)
            client.close()

    def has_worked(self) -> bool:
        """Whether there is something to check: all kinds of requests, and a segment that was rolled."""
        counts = self.counts()
        rolled = any(int(path.stem) > 0 for path in self.directory.glob("removed-later-*/*.log"))
        return rolled and min(counts["produced"], counts["deleted"], counts["read"]) >= ROUNDS

    async def work_until_killed(self, life_s: float, *, is_last: bool) -> None:
        """Clients at work, and the end of the process amid it."""
        stop = asyncio.Event()
        tasks = [asyncio.create_task(load.run(until=stop, pause_s=PAUSE_S)) for load in self.loads]
        try:
            done, _ = await asyncio.wait(tasks, timeout=life_s, return_when=asyncio.FIRST_EXCEPTION)
            async with asyncio.timeout(CHECK_LIMIT_S):
                while is_last and not self.has_worked() and not done:  # A busy machine does little in a short life.
                    done, _ = await asyncio.wait(tasks, timeout=LIFE_S[0], return_when=asyncio.FIRST_EXCEPTION)
            assert not [task for task in done if task.exception() is None], "a client ended by itself"
        finally:
            await self.broker.kill()
            stop.set()
            async with asyncio.timeout(CHECK_LIMIT_S):
                await asyncio.gather(*tasks)

    async def kill_while_starting(self) -> None:
        """Kill a start within recovery, or at any other moment before it is done."""
        broker = ServeProcess(self.directory, *SETTINGS)
        await broker.launch()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.random.random() * START_KILL_S):
                await broker.wait_ready()
        await broker.kill()
        assert not broker.faults

    def counts(self) -> dict[str, int]:
        """The counts of all clients."""
        return {name: sum(load.counts[name] for load in self.loads) for name in self.loads[0].counts}


@pytest.mark.seeds
async def test_nothing_is_lost_or_comes_back_over_many_kills(tmp_path: Path) -> None:
    """D1, D7, D10, D12 and R1 to R4 over SIGKILL; topics keep their ids; the broker itself never reports an error."""
    cluster = Cluster(tmp_path / "log", SEED)
    await cluster.start()
    try:
        await cluster.create_topics()
        topic_ids = await cluster.topic_ids()
        assert set(topic_ids) == set(TOPICS)
        for number in range(ROUNDS):
            await cluster.work_until_killed(cluster.random.uniform(*LIFE_S), is_last=number == ROUNDS - 1)
            assert not cluster.broker.faults, f"in life {number}"
            if cluster.random.random() < 0.25:
                await cluster.kill_while_starting()
            await cluster.start()
            assert await cluster.topic_ids() == topic_ids, f"in life {number + 1}"
            await cluster.read_back()
        assert cluster.has_worked(), cluster.counts()
        assert await cluster.broker.terminate() == 0
        await cluster.start()
        await cluster.read_back()
        assert await cluster.topic_ids() == topic_ids
        assert not cluster.broker.faults
    finally:
        await cluster.broker.kill()


async def test_the_checker_detects_a_lost_record(tmp_path: Path) -> None:
    """The other test can fail: when the last bytes of a killed broker's log are cut off, the missing records are detected."""
    cluster = Cluster(tmp_path / "log", SEED)
    await cluster.start()
    try:
        await cluster.create_topics()
        load = cluster.loads[-1]
        client = await cluster.broker.connect()
        for _ in range(3):
            await load.produce(client, 2)
        await cluster.broker.kill()
        segment = max(cluster.directory.glob(f"{load.topic}-{load.partition}/*.log"))
        os.truncate(segment, written_bytes(segment) - 1)
        await cluster.start()
        with pytest.raises(HistoryError, match="ends at 4, 6 was reached"):
            await cluster.read_back()
    finally:
        await cluster.broker.kill()


async def test_the_checker_detects_a_deleted_record_that_returns(tmp_path: Path) -> None:
    """When the journal of a killed broker is restored to its state before a delete, the missing delete is detected."""
    cluster = Cluster(tmp_path / "log", SEED)
    await cluster.start()
    try:
        await cluster.create_topics()
        load = cluster.loads[-1]
        client = await cluster.broker.connect()
        await load.produce(client, 5)
        journal = cluster.directory / "lowtide-log-start.journal"
        before = journal.read_bytes()
        while not load.history.acknowledged_delete:
            await load.delete(client)
        await cluster.broker.kill()
        journal.write_bytes(before)
        await cluster.start()
        with pytest.raises(HistoryError, match="are deleted for good"):
            await cluster.read_back()
    finally:
        await cluster.broker.kill()


def written_bytes(segment: Path) -> int:
    """The size of a segment without preallocated bytes."""
    return len(segment.read_bytes().rstrip(b"\0"))
