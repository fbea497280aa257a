"""A broker that is killed while it punches holes, and erases: no kept record is lost, no deleted one returns.

A real process over a real file system: that of temporary files (ext4, mostly), and a tmpfs. Each round produces about
two MiB and deletes nearly all of them, again and again, so that each delete is followed by a hole; SIGKILL comes at a
random moment.

`ROUNDS=n` kills more often, `SEED=n` repeats the choice of moments.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.simulation.client import WireClient

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
from .serving import ServeProcess

ROUNDS = int(os.environ.get("ROUNDS", "3"))
SEED = int(os.environ.get("SEED", "18"))

SETTINGS = ("auto.create.topics.enable=false",)
ROLLED, ERASED = {"internal.segment.bytes": "5000000"}, {"lowtide.delete.erase": "true"}
TOPICS = {"one-segment": {}, "rolled": ROLLED, "erased": ERASED, "erased-rolled": ROLLED | ERASED}
SHARED_MEMORY = Path("/dev/shm")
LIFE_S = (0.05, 0.8)
LIMIT_S = 120.0
RECORDS, RECORD_BYTES = 5, 80_000
"""Of a batch: 400 kB."""

BATCHES = 5
SLACK_BYTES = 256 * 1024
"""Blocks beside those of a kept batch: indexes, snapshots, and those in which a hole begins and ends."""


class Log:
    """One partition, its writer, and what is known of it."""

    def __init__(self, topic: str, directory: Path) -> None:
        self.topic = topic
        self.folder = directory / f"{topic}-0"
        self.acknowledged: dict[int, bytes] = {}
        self.attempted: set[bytes] = set()
        self.start, self.asked_start = 0, 0
        self.end = 0
        self._number = 0

    def value(self) -> bytes:
        self._number += 1
        value = f"<{self.topic}-{self._number}>".encode()
        self.attempted.add(value)
        return value

    def space_bytes(self) -> int:
        """Returns the blocks of all its files; one that goes meanwhile counts nothing."""
        found = 0
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found += path.stat().st_blocks * 512
        return found

    async def work(self, client: WireClient, draw: random.Random) -> None:
        """Produces, and deletes into the middle of a batch. Errors: OSError when the broker dies."""
        while True:
            for _ in range(BATCHES):
                values = [self.value() for _ in range(RECORDS)]
                row = only_row(
                    await client.request(
                        produce_request(self.topic, 0, [each.ljust(RECORD_BYTES, b".") for each in values]),
                        PRODUCE_VERSION,
                    )
                )
                assert row.error_code == ErrorCode.NONE
                self.acknowledged.update(enumerate(values, row.base_offset))
                self.end = row.base_offset + RECORDS
            self.asked_start = max(self.asked_start, self.end - draw.randrange(2 * RECORDS))
            await self.delete(client)
            await asyncio.sleep(draw.uniform(0, 0.1))

    async def delete(self, client: WireClient) -> None:
        row = only_row(await client.request(delete_request(self.topic, 0, self.asked_start), DELETE_RECORDS_VERSION))
        assert row.error_code == ErrorCode.NONE
        self.start = self.asked_start

    async def check(self, client: WireClient) -> None:
        """Reads all that there is."""
        start, end = [
            only_row(await client.request(offsets_request(self.topic, 0, which), LIST_OFFSETS_VERSION)).offset
            for which in (EARLIEST, LATEST)
        ]
        assert self.start <= start <= self.asked_start
        assert self.end <= end
        offset = start
        while offset < end:
            row = only_row(await client.request(fetch_request(self.topic, 0, offset), FETCH_VERSION))
            found = records_from(row.records, offset)
            assert min(found) == offset
            for offset, content in sorted(found.items()):
                value = content.rstrip(b".")
                assert len(content) == RECORD_BYTES
                assert value == self.acknowledged.setdefault(offset, value)
                assert value in self.attempted
            offset += 1
        self.acknowledged = {at: value for at, value in self.acknowledged.items() if at >= start}
        assert set(self.acknowledged) == set(range(start, end))
        self.start = self.asked_start = start
        self.end = end

    def has(self, words: bytes) -> bool:
        """Returns whether any of its files has these bytes; one that goes meanwhile hasn't."""
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if words in path.read_bytes():
                    return True
        return False


@pytest.fixture(params=["disk", pytest.param("tmpfs", marks=pytest.mark.slow)])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path / "log"
        return
    if not os.access(SHARED_MEMORY, os.W_OK):
        pytest.skip("there is no tmpfs to write to")
    made = Path(tempfile.mkdtemp(dir=SHARED_MEMORY))
    try:
        yield made / "log"
    finally:
        shutil.rmtree(made)


async def live(broker: ServeProcess, logs: list[Log], draw: random.Random, life_s: float) -> None:
    """All clients at work until the broker is killed."""
    clients = [await broker.connect() for _ in logs]
    tasks = [asyncio.create_task(log.work(client, draw)) for log, client in zip(logs, clients, strict=True)]
    done, _ = await asyncio.wait(tasks, timeout=life_s, return_when=asyncio.FIRST_EXCEPTION)
    await broker.kill()
    async with asyncio.timeout(LIMIT_S):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert not done, outcomes
    assert all(isinstance(each, OSError) for each in outcomes), outcomes


async def settle(log: Log, client: WireClient) -> None:
    """After a delete the space is that of what is kept, and no file has a deleted record."""
    await log.check(client)
    until_s = time.monotonic() + LIMIT_S
    if "lowtide.delete.erase" in TOPICS[log.topic]:
        log.asked_start = max(log.start, log.end - 2)  # Inside of a batch.
        await log.delete(client)
        erased = [value for at, value in log.acknowledged.items() if at < log.start]
        while any(log.has(value) for value in erased):
            assert time.monotonic() < until_s, [path.name for path in log.folder.iterdir()]
            await asyncio.sleep(0.05)
        await log.check(client)
    deleted = [value for at, value in log.acknowledged.items() if at < log.end - 1]
    log.asked_start = log.end
    await log.delete(client)
    while any(log.has(value) for value in deleted) or log.space_bytes() > SLACK_BYTES:
        assert time.monotonic() < until_s, [(path.name, path.stat().st_blocks * 512) for path in log.folder.iterdir()]
        await asyncio.sleep(0.05)


@pytest.mark.seeds
async def test_nothing_is_lost_and_nothing_returns(directory: Path) -> None:
    draw = random.Random(SEED)
    logs = [Log(topic, directory) for topic in TOPICS]
    broker = ServeProcess(directory, *SETTINGS)
    try:
        await broker.__aenter__()
        client = await broker.connect()
        for topic, configs in TOPICS.items():
            answer = await client.request(
                topic_request(topic, partitions=1, replicas=1, configs=configs), CREATE_TOPICS_VERSION
            )
            assert answer.topics[0].error_code == ErrorCode.NONE
        for number in range(ROUNDS):
            await live(broker, logs, draw, draw.uniform(*LIFE_S))
            assert not broker.faults, f"in life {number}"
            broker = ServeProcess(directory, *SETTINGS)
            await broker.__aenter__()
            client = await broker.connect()
            async with asyncio.timeout(LIMIT_S):
                for log in logs:
                    await log.check(client)
        for log in logs:
            await settle(log, client)
        assert await broker.terminate() == 0
        assert not broker.faults
    finally:
        await broker.kill()
