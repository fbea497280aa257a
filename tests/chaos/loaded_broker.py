"""One broker under load over all its restarts: real processes, real files, and clients that outlive them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from pathlib import Path

from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.simulation.load import PartitionLoad

from .serving import ServeProcess

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


class LoadedBroker:
    """One broker over all its restarts, and the clients that survive them."""

    def __init__(
        self, directory: Path, seed: int, *, rounds: int, topics: Mapping[str, Mapping[str, str]] = TOPICS
    ) -> None:
        """Topics are created with these configurations; each kind of request must succeed `rounds` times."""
        self.random = random.Random(seed)
        self.rounds = rounds
        self.topics = topics
        self.directory = directory
        self.process = ServeProcess(directory, *SETTINGS)
        self.loads = [
            PartitionLoad(
                topic, partition, lambda: self.process.connect(), random.Random(f"{seed} {topic} {partition}")
            )
            for topic in topics
            for partition in range(PARTITIONS)
        ]

    async def start(self) -> None:
        """Starts a new process."""
        self.process = ServeProcess(self.directory, *SETTINGS)
        await self.process.__aenter__()

    async def create_topics(self) -> None:
        """Creates all topics."""
        client = await self.process.connect()
        for load in self.loads[::PARTITIONS]:
            await load.create_topic(client, dict(self.topics[load.topic]), partitions=PARTITIONS)
        client.close()

    async def topic_ids(self) -> dict[str, bytes]:
        """Returns the current topic ids in the broker."""
        client = await self.process.connect()
        response = await client.request(MetadataRequest(topics=None, allow_auto_topic_creation=False), METADATA_VERSION)
        client.close()
        return {topic.name: topic.topic_id for topic in response.topics}

    async def read_back(self) -> None:
        """Every partition, whole. Errors: HistoryError for a violated guarantee."""
        async with asyncio.timeout(CHECK_LIMIT_S):
            client = await self.process.connect()
            for load in self.loads:
                await load.read_all(client)
            client.close()

    def has_worked(self) -> bool:
        """Returns whether there is something to check: all kinds of requests, and a segment that was rolled."""
        counts = self.counts()
        rolled = any(int(path.stem) > 0 for path in self.directory.glob("removed-later-*/*.log"))
        return rolled and min(counts["produced"], counts["deleted"], counts["read"]) >= self.rounds

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
            await self.process.kill()
            stop.set()
            async with asyncio.timeout(CHECK_LIMIT_S):
                await asyncio.gather(*tasks)

    async def kill_while_starting(self) -> None:
        """Kills a start within recovery, or at any other moment before it is done."""
        broker = ServeProcess(self.directory, *SETTINGS)
        await broker.launch()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.random.random() * START_KILL_S):
                await broker.wait_ready()
        await broker.kill()
        assert not broker.faults

    def counts(self) -> dict[str, int]:
        """Returns the counts of all clients."""
        return {name: sum(load.counts[name] for load in self.loads) for name in self.loads[0].counts}
