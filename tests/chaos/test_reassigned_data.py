"""Partitions that move with their records: the same bytes, the same log start, nothing left on the old brokers; also
under load.

Three real brokers in this process. As in Apache Kafka, a new replica starts at its leader's log start, and has the
whole batch that straddles it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lowtide import LowtideCluster
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.records import iterate_batches
from lowtide.simulation.client import WireClient

from . import asking

LIMIT_S = 120.0
SETTLED_WITHIN_S = 60.0
SEGMENT_BYTES = 1 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster(brokers=3) as running:
        yield running


class Client:
    """Sends requests to the right broker, and repeats them when leadership has moved."""

    def __init__(self, cluster: LowtideCluster, name: str) -> None:
        self._cluster = cluster
        self.name = name
        self._connections: dict[int, WireClient] = {}
        self._connecting = asyncio.Lock()

    async def ask(self, broker_id: int, request: Any, version: int) -> Any:
        async with self._connecting:
            if broker_id not in self._connections:
                host, _, port = self._cluster.address(broker_id).rpartition(":")
                self._connections[broker_id] = await WireClient.connect(host, int(port))
        return await self._connections[broker_id].request(request, version)

    async def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        await asyncio.sleep(0)

    async def partition(self) -> Any:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=self.name)], allow_auto_topic_creation=False)
        return (await self.ask(self._cluster.broker_ids[0], request, 12)).topics[0].partitions[0]

    async def ask_leader(self, request: Any, version: int) -> Any:
        """Returns the row of the leader. A request to a broker that is not leader is repeated."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                leader = (await self.partition()).leader_id
                if leader >= 0:
                    row = asking.only_row(await self.ask(leader, request, version))
                    if row.error_code not in {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
                        return row
                await asyncio.sleep(0.01)

    async def produce(self, values: list[bytes]) -> int:
        """Returns the offset of the first; all in-sync replicas have the records."""
        row = await self.ask_leader(asking.produce_request(self.name, 0, values), asking.PRODUCE_VERSION)
        assert row.error_code == ErrorCode.NONE, ErrorCode(row.error_code)
        return int(row.base_offset)

    async def delete(self, offset: int) -> None:
        row = await self.ask_leader(asking.delete_request(self.name, 0, offset), asking.DELETE_RECORDS_VERSION)
        assert row.error_code == ErrorCode.NONE, ErrorCode(row.error_code)

    async def offset(self, timestamp: int) -> int:
        return int(
            (await self.ask_leader(asking.offsets_request(self.name, 0, timestamp), asking.LIST_OFFSETS_VERSION)).offset
        )

    async def read(self, start: int, end: int) -> bytes:
        """Returns the batches from that of `start` to that before `end`."""
        found = b""
        while start < end:
            row = await self.ask_leader(asking.fetch_request(self.name, 0, start), asking.FETCH_VERSION)
            assert row.error_code == ErrorCode.NONE, ErrorCode(row.error_code)
            for position, header in iterate_batches(bytes(row.records)):
                if position + header.size_bytes <= len(row.records):
                    found += bytes(row.records[position : position + header.size_bytes])
                    start = header.last_offset + 1
        return found

    async def move(self, *replicas: int) -> None:
        """Reassign the partition to these replicas, and wait until all are in sync."""
        row = ReassignablePartition(partition_index=0, replicas=list(replicas))
        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=self.name, partitions=[row])])
        answer = await self.ask(self._cluster.broker_ids[0], request, 0)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE
        async with asyncio.timeout(LIMIT_S):
            while True:
                state = await self.partition()
                if state.replica_nodes == list(replicas) and sorted(state.isr_nodes) == sorted(replicas):
                    return
                await asyncio.sleep(0.01)

    async def has_only(self, *broker_ids: int) -> None:
        """Waits until only these brokers have a log of it."""
        root = Path(self._cluster.data_directory)
        async with asyncio.timeout(LIMIT_S):
            while {each for each in self._cluster.broker_ids if self._folder(root, each).exists()} != set(broker_ids):
                await asyncio.sleep(0.01)

    def files(self, broker_id: int) -> dict[str, bytes]:
        """Returns the segments of a broker by their names; one that is deleted meanwhile is left out."""
        found: dict[str, bytes] = {}
        for file in sorted(self._folder(Path(self._cluster.data_directory), broker_id).glob("*.log")):
            with suppress(FileNotFoundError):
                found[file.name] = file.read_bytes()
        return found

    def _folder(self, root: Path, broker_id: int) -> Path:
        return root / f"broker-{broker_id}" / f"{self.name}-0"


@asynccontextmanager
async def partition_of(cluster: LowtideCluster, name: str, *replicas: int) -> AsyncIterator[Client]:
    """A topic of one partition."""
    client = Client(cluster, name)
    request = asking.topic_request(name, [replicas], configs={"segment.bytes": str(SEGMENT_BYTES)})
    answer = await client.ask(cluster.broker_ids[0], request, asking.CREATE_TOPICS_VERSION)
    assert answer.topics[0].error_code == ErrorCode.NONE, answer
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("many", [False, True])
def test_all_bytes_move_and_nothing_stays_behind(cluster: LowtideCluster, many: bool) -> None:
    """A delete into the middle of a batch, alone or with later segments, the first of which go entirely."""

    async def scenario() -> None:
        async with partition_of(cluster, f"moves-{many}", 1, 2) as client:
            start = 5
            await client.produce([b"value %d" % number for number in range(10)])
            for number in range(40 if many else 0):
                base = await client.produce([b"%d" % number + bytes(50_000), bytes(50_000)])
                start = base + 1 if number == 25 else start
            await client.delete(start)
            end = await client.offset(asking.LATEST)
            before = await client.read(start, end)
            assert next(iterate_batches(before))[1].base_offset < start
            await client.move(3)
            await client.has_only(3)
            assert (await client.partition()).leader_id == 3
            assert [await client.offset(asking.EARLIEST), await client.offset(asking.LATEST)] == [start, end]
            assert await client.read(start, end) == before
            assert b"".join(client.files(3).values()) == before, (
                "the whole batch that straddles the start, and nothing before it"
            )
            row = await client.ask_leader(asking.fetch_request(client.name, 0, start - 1), asking.FETCH_VERSION)
            assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert await client.produce([b"on"]) == end

    asyncio.run(scenario())


def test_it_moves_under_load(cluster: LowtideCluster) -> None:
    """Twice around all brokers under load: no acknowledged record is lost, no deleted one returns."""

    async def scenario() -> None:
        async with partition_of(cluster, "busy", 1, 2) as client:
            acknowledged: dict[int, bytes] = {}
            deleted, moving = 0, True

            async def produce() -> None:
                sent = 0
                while moving:
                    values = [b"%d %d" % (sent, number) + bytes(2_000) for number in range(5)]
                    base = await client.produce(values)
                    acknowledged.update(enumerate(values, base))
                    sent += 1

            async def delete() -> None:
                nonlocal deleted
                while moving:
                    end = max(acknowledged, default=-1) + 1
                    offset = max(end - 13, 0)  # In the middle of a batch.
                    await client.delete(offset)
                    deleted = max(deleted, offset)
                    await asyncio.sleep(0.01)

            async def watch() -> None:
                while moving:
                    promised = deleted
                    assert await client.offset(asking.EARLIEST) >= promised
                    await asyncio.sleep(0.002)

            work = [asyncio.create_task(each()) for each in (produce, delete, watch)]
            try:
                for replicas in ((2, 3), (3, 1), (1, 2), (3,), (2, 1), (1, 3)):
                    await client.move(*replicas)
                    await client.has_only(*replicas)
                    await asyncio.sleep(0.05)
                    assert not any(task.done() for task in work), [task for task in work if task.done()]
            finally:
                moving = False
                await asyncio.gather(*work)
            start, end = await client.offset(asking.EARLIEST), await client.offset(asking.LATEST)
            assert start == deleted > 0
            found = asking.records_from(await client.read(start, end), start)
            assert {offset: found.get(offset) for offset in acknowledged if offset >= start} == {
                offset: value for offset, value in acknowledged.items() if offset >= start
            }
            async with asyncio.timeout(SETTLED_WITHIN_S):
                while not (kept := left_in(client.files(1), start)) or kept != left_in(client.files(3), start):
                    await asyncio.sleep(0.05)
            assert asking.records_from(kept, start) == found

    asyncio.run(scenario())


def left_in(files: dict[str, bytes], start: int) -> bytes:
    """Returns the batches of a log from the one with offset `start`; none while earlier batches are being freed."""
    data = b"".join(files.values())
    try:
        return next((data[position:] for position, header in iterate_batches(data) if header.last_offset >= start), b"")
    except ProtocolError:
        return b""
