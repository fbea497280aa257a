"""A broker process with several log directories, some of which are bad, fail while it runs, or return.

Tests on a simulated disk, with every kind of failure, are in tests/unit/broker.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.simulation.client import WireClient

from .serving import ServeProcess, run_to_end, serve_command

TOPIC = "spread"
PARTITIONS = 6
STEP_LIMIT_S = 120.0


class Disks:
    """Three log directories of one broker."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / name for name in ("one", "two", "three")]
        self.setting = f"log.dirs={','.join(map(str, self.paths))}"

    def process(self, *settings: str) -> ServeProcess:
        return ServeProcess(self.paths[0], self.setting, *settings)

    def refusal(self) -> str:
        ended = run_to_end(serve_command(self.paths[0], self.setting))
        assert ended.returncode == 2, ended.stderr
        return ended.stderr.splitlines()[-1]


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    """Three directories with a topic over them, two records in each partition, cleanly stopped."""
    made = Disks(tmp_path)

    async def fill() -> None:
        async with made.process() as broker:
            client = await broker.connect()
            assert await create(client, TOPIC, PARTITIONS) == ErrorCode.NONE
            assert await produced(client, TOPIC) == [ErrorCode.NONE] * PARTITIONS
            assert await leaderless(client, TOPIC) == []
            client.close()
            assert await broker.terminate() == 0

    asyncio.run(fill())
    return made


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


async def ask(client: WireClient, request: Any, version: int) -> Any:
    async with asyncio.timeout(STEP_LIMIT_S):
        return await client.request(request, version)


async def create(client: WireClient, name: str, partitions: int) -> int:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
    return int((await ask(client, CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)).topics[0].error_code)


async def produced(client: WireClient, topic: str) -> list[int]:
    """Returns the error codes of one record for each partition."""
    rows = [
        PartitionProduceData(index=number, records=build_batch([(1, None, b"v", ())])) for number in range(PARTITIONS)
    ]
    request = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=rows)])
    return [row.error_code for row in (await ask(client, request, 9)).responses[0].partition_responses]


async def leaderless(client: WireClient, topic: str) -> list[int]:
    response = await ask(client, MetadataRequest(topics=None), 12)
    [row] = [row for row in response.topics if row.name == topic]
    return [
        partition.partition_index
        for partition in row.partitions
        if partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    ]


async def directories(client: WireClient) -> dict[str, int]:
    """Whether each directory is online, by path."""
    return {row.log_dir: row.error_code for row in (await ask(client, DescribeLogDirsRequest(topics=None), 5)).results}


def partitions_in(path: Path, topic: str) -> list[int]:
    return sorted(int(folder.name.rpartition("-")[2]) for folder in path.glob(f"{topic}-*"))


def unmounted(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.mkdir()


def replaced_by_a_file(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.write_bytes(b"another file")


def damaged(path: Path) -> None:
    (path / "lowtide-log-start.journal").write_bytes(b"garbage")


def gone(path: Path) -> None:
    path.rename(path.with_name("away"))


@pytest.mark.parametrize(
    "damage", [damaged, *(pytest.param(one, marks=pytest.mark.slow) for one in (unmounted, replaced_by_a_file, gone))]
)
def test_a_bad_directory_is_offline_and_the_others_serve(disks: Disks, damage: Callable[[Path], None]) -> None:
    """No partition that may be in it is re-created, and new partitions are placed elsewhere."""
    lost = partitions_in(disks.paths[1], TOPIC)
    assert len(lost) == PARTITIONS // 3
    damage(disks.paths[1])

    async def main() -> None:
        async with disks.process() as broker:
            client = await broker.connect()
            assert await leaderless(client, TOPIC) == lost
            expected = [
                ErrorCode.KAFKA_STORAGE_ERROR if number in lost else ErrorCode.NONE for number in range(PARTITIONS)
            ]
            assert await produced(client, TOPIC) == expected
            assert await directories(client) == {
                str(path): ErrorCode.KAFKA_STORAGE_ERROR if path == disks.paths[1] else ErrorCode.NONE
                for path in disks.paths
            }
            assert await create(client, "other", PARTITIONS) == ErrorCode.NONE
            assert await produced(client, "other") == [ErrorCode.NONE] * PARTITIONS
            client.close()
            assert any(
                line["event"] == "log directory is offline" and line["directory"] == str(disks.paths[1])
                for line in broker.lines
            )
            assert await broker.terminate() == 0

    run(main)


@pytest.mark.parametrize("damage", [unmounted, gone])
@pytest.mark.slowest
def test_a_directory_that_returns_serves_its_records(disks: Disks, damage: Callable[[Path], None]) -> None:
    damage(disks.paths[1])

    async def main(*, is_back: bool) -> None:
        async with disks.process() as broker:
            client = await broker.connect()
            assert (await leaderless(client, TOPIC) == []) is is_back
            if is_back:
                assert await produced(client, TOPIC) == [ErrorCode.NONE] * PARTITIONS
                assert not broker.faults
            client.close()
            assert await broker.terminate() == 0

    run(lambda: main(is_back=False))
    if disks.paths[1].exists():
        disks.paths[1].rmdir()
    disks.paths[1].with_name("away").rename(disks.paths[1])
    run(lambda: main(is_back=True))


@pytest.mark.parametrize("damage", [replaced_by_a_file, damaged])
@pytest.mark.slowest
def test_without_the_directory_of_the_metadata_nothing_starts(disks: Disks, damage: Callable[[Path], None]) -> None:
    damage(disks.paths[0])
    assert str(disks.paths[0]) in disks.refusal()
    assert all((path / ".kafka_cleanshutdown").exists() for path in disks.paths[1:])


@pytest.mark.parametrize("damage", [unmounted, gone])
@pytest.mark.slow
def test_a_missing_directory_of_the_metadata_is_no_new_broker(disks: Disks, damage: Callable[[Path], None]) -> None:
    """The other directories have a record of it."""
    damage(disks.paths[0])
    for _ in range(2):
        assert "the metadata are missing or empty" in disks.refusal()
    shutil.rmtree(disks.paths[0])
    disks.paths[0].with_name("away").rename(disks.paths[0])

    async def main() -> None:
        async with disks.process() as broker:
            client = await broker.connect()
            assert await produced(client, TOPIC) == [ErrorCode.NONE] * PARTITIONS
            assert not broker.faults

    run(main)


@pytest.mark.slow
def test_directories_that_fail_one_by_one(disks: Disks) -> None:
    """The others continue; without the first directory, which has the metadata, the broker stops."""
    lost = partitions_in(disks.paths[1], TOPIC) + partitions_in(disks.paths[2], TOPIC)

    async def main() -> None:
        async with disks.process() as broker:
            client = await broker.connect()
            for number, path in enumerate(disks.paths[1:]):
                shutil.rmtree(path)
                assert await create(client, f"after-{number}", PARTITIONS) == ErrorCode.NONE
                assert await produced(client, f"after-{number}") == [ErrorCode.NONE] * PARTITIONS
            assert await leaderless(client, TOPIC) == sorted(lost)
            assert (await directories(client))[str(disks.paths[0])] == ErrorCode.NONE
            shutil.rmtree(disks.paths[0])
            client.send(
                CreateTopicsRequest(
                    topics=[
                        CreatableTopic(name="last", num_partitions=1, replication_factor=1, assignments=[], configs=[])
                    ],
                    timeout_ms=5000,
                ),
                7,
            )
            async with asyncio.timeout(STEP_LIMIT_S):
                assert await broker.ended() == 1
            assert "all log directories have failed, the broker stops" in [line["event"] for line in broker.lines]

    run(main)
