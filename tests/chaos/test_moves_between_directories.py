"""Partitions move between directories of a broker that is written to, deleted from, and killed at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.records import read_batch_header
from lowtide.simulation.client import WireClient

from .serving import ServeProcess

TOPIC = "moved"
LIMIT_S = 120.0
ROUNDS = 6


class History:
    """A broker with two directories, and the acknowledged records."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / "one", folder / "two"]
        self.written: dict[int, bytes] = {}
        self.log_start = 0
        self.moves = 0

    def process(self) -> ServeProcess:
        return ServeProcess(self.paths[0], f"log.dirs={','.join(map(str, self.paths))}", "log.segment.bytes=1048576")

    def folders(self) -> list[str]:
        return [
            path.name for root in self.paths for path in root.iterdir() if path.is_dir() and path.name.startswith(TOPIC)
        ]

    async def ask(self, client: WireClient, request: Any, version: int) -> Any:
        async with asyncio.timeout(LIMIT_S):
            return await client.request(request, version)

    async def create(self, client: WireClient) -> None:
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        response = await self.ask(client, CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
        assert response.topics[0].error_code == ErrorCode.NONE

    async def produce(self, client: WireClient, value: bytes) -> None:
        row = PartitionProduceData(index=0, records=build_batch([(1, None, value, ())]))
        request = ProduceRequest(
            acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[row])]
        )
        answer = (await self.ask(client, request, 9)).responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.NONE
        self.written[answer.base_offset] = value

    async def delete(self, client: WireClient, offset: int) -> None:
        row = DeleteRecordsPartition(partition_index=0, offset=offset)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=TOPIC, partitions=[row])], timeout_ms=5000)
        answer = (await self.ask(client, request, 2)).topics[0].partitions[0]
        assert answer.error_code == ErrorCode.NONE
        self.log_start = max(self.log_start, offset)

    async def move(self, client: WireClient, path: Path) -> None:
        topics = [AlterReplicaLogDirTopic(name=TOPIC, partitions=[0])]
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(path), topics=topics)])
        answer = await self.ask(client, request, 2)
        assert answer.results[0].partitions[0].error_code == ErrorCode.NONE
        self.moves += 1

    async def places(self, client: WireClient) -> dict[str, bool]:
        """Whether each directory has the future log instead of the partition's, by path."""
        answer = await self.ask(client, DescribeLogDirsRequest(topics=None), 5)
        return {
            row.log_dir: part.is_future_key
            for row in answer.results
            for topic in row.topics
            for part in topic.partitions
        }

    async def earliest(self, client: WireClient) -> int:
        topic = ListOffsetsTopic(name=TOPIC, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-2)])
        answer = await self.ask(client, ListOffsetsRequest(replica_id=-1, topics=[topic]), 5)
        return int(answer.topics[0].partitions[0].offset)

    async def read(self, client: WireClient, offset: int) -> tuple[int, bytes]:
        """Error and records."""
        partition = FetchPartition(partition=0, fetch_offset=offset, log_start_offset=-1, partition_max_bytes=1 << 20)
        request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=TOPIC, partitions=[partition])])
        row = (await self.ask(client, request, 11)).responses[0].partitions[0]
        return row.error_code, bytes(row.records or b"")

    async def check(self, client: WireClient) -> None:
        """Everything acknowledged at or above the log start is there, and nothing below it is served."""
        if self.log_start:
            error, _ = await self.read(client, self.log_start - 1)
            assert error == ErrorCode.OFFSET_OUT_OF_RANGE
        start = await self.earliest(client)
        assert start >= self.log_start
        offset, found = start, {}
        while True:
            error, records = await self.read(client, offset)
            assert error == ErrorCode.NONE, (error, offset)
            position = 0
            while position + 61 <= len(records):
                size = int.from_bytes(records[position + 8 : position + 12], "big") + 12
                if position + size > len(records):
                    break
                header = read_batch_header(memoryview(records), position)
                found[header.base_offset] = records[position : position + size]
                offset = header.last_offset + 1
                position += size
            if not position:
                break
        for number, value in self.written.items():
            if number >= start:
                assert value in found[number], number


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_kills_while_a_partition_moves(tmp_path: Path, seed: int) -> None:
    """Nothing acknowledged is lost, no delete comes back, and in the end one directory has the partition."""
    history, chance = History(tmp_path), random.Random(seed)

    async def write(broker: ServeProcess) -> None:
        client = await broker.connect()
        number = 0
        with contextlib.suppress(ConnectionError, OSError, asyncio.IncompleteReadError, EOFError):
            while True:
                number += 1
                await history.produce(client, b"%d-%d-" % (number, broker.port) * chance.randint(1, 2000))
                if chance.random() < 0.2 and history.written:
                    await history.delete(client, chance.randint(history.log_start, max(history.written)))

    async def main() -> None:
        for number in range(ROUNDS):
            async with history.process() as broker:
                client = await broker.connect()
                if not number:
                    await history.create(client)
                await history.check(client)
                writing = asyncio.create_task(write(broker))
                for _ in range(chance.randint(1, 3)):
                    await history.move(client, chance.choice(history.paths))
                    await asyncio.sleep(chance.uniform(0.0, 0.6))
                await broker.kill()
                async with asyncio.timeout(LIMIT_S):
                    await asyncio.gather(writing, return_exceptions=True)
                assert broker.faults == []
                client.close()
        async with history.process() as broker:
            client = await broker.connect()
            await history.check(client)
            here = next(path for path, is_future in (await history.places(client)).items() if not is_future)
            target = next(path for path in history.paths if str(path) != here)
            await history.move(client, target)
            async with asyncio.timeout(LIMIT_S):
                while await history.places(client) != {str(target): False}:
                    await asyncio.sleep(0.05)
            await history.check(client)
            await history.produce(client, b"after")
            client.close()
            assert await broker.terminate() == 0
        async with history.process() as broker:
            client = await broker.connect()
            await history.check(client)
            assert await history.places(client) == {str(target): False}
            async with asyncio.timeout(LIMIT_S):
                while history.folders() != [f"{TOPIC}-0"]:
                    await asyncio.sleep(0.1)
            client.close()

    asyncio.run(main())
    assert len(history.written) > ROUNDS
