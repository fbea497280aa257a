"""A broker with 128 descriptors and five hundred partitions serves, stops, recovers, and survives greedy clients."""

from __future__ import annotations

import asyncio
import select
import shutil
import socket
from pathlib import Path

import pytest

from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.records import iterate_batches
from lowtide.simulation.client import WireClient
from tests.free_ports import HOST

from .large_frames import framed
from .serving import ServeProcess

LIMIT = 128
PARTITIONS = 500
FETCH_VERSION = 12
PRLIMIT = shutil.which("prlimit")
WITHIN = [str(PRLIMIT), f"--nofile={LIMIT}:{LIMIT}"]

pytestmark = pytest.mark.skipif(PRLIMIT is None, reason="no prlimit here")


async def create(client: WireClient) -> None:
    topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1, assignments=[], configs=[])
    answer = await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
    assert answer.topics[0].error_code == ErrorCode.NONE


async def produce(client: WireClient, value: bytes) -> None:
    """One record to each partition, in requests of a hundred."""
    for start in range(0, PARTITIONS, 100):
        rows = [
            PartitionProduceData(index=number, records=build_batch([(0, None, value, ())]))
            for number in range(start, start + 100)
        ]
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="t", partition_data=rows)]
        )
        answer = await client.request(request, 9)
        assert {row.error_code for row in answer.responses[0].partition_responses} == {ErrorCode.NONE}


async def batches(client: WireClient) -> dict[int, int]:
    """Returns the number of batches of each partition.

    A response may have fewer partitions than requested: the others are requested again.
    """
    found: dict[int, int] = {}
    while len(found) < PARTITIONS:
        rows = [
            FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
            for number in range(PARTITIONS)
            if number not in found
        ]
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, max_bytes=50 << 20, topics=[FetchTopic(topic="t", partitions=rows)]
        )
        answer = await client.request(request, FETCH_VERSION)
        before = len(found)
        for row in answer.responses[0].partitions:
            assert row.error_code == ErrorCode.NONE
            if row.records:
                found[row.partition_index] = len(list(iterate_batches(memoryview(row.records))))
        assert len(found) > before, "each response has new partitions"
    return found


@pytest.mark.slowest
async def test_five_hundred_partitions_are_served_stopped_and_recovered(tmp_path: Path) -> None:
    async with ServeProcess(tmp_path, within=WITHIN) as broker:
        client = await broker.connect()
        await create(client)
        await produce(client, b"first")
        assert set((await batches(client)).values()) == {1}
        await broker.kill()
        assert broker.faults == []
    async with ServeProcess(tmp_path, within=WITHIN) as broker:
        client = await broker.connect()
        assert set((await batches(client)).values()) == {1}
        await produce(client, b"second")
        assert await broker.terminate() == 0
        assert broker.faults == []
    async with ServeProcess(tmp_path, within=WITHIN) as broker:
        assert set((await batches(await broker.connect())).values()) == {2}
        limits = next(line for line in broker.lines if line["event"] == "limits")
        assert (limits["open_files"], limits["max_connections"] < LIMIT) == (LIMIT, True)
        assert broker.faults == []


@pytest.mark.slow
async def test_idle_connections_up_to_the_limit_block_no_client(tmp_path: Path) -> None:
    async with ServeProcess(tmp_path, within=WITHIN) as broker:
        honest = await broker.connect()
        await create(honest)
        idle = [await asyncio.open_connection(HOST, broker.port) for _ in range(2 * LIMIT)]
        try:
            await produce(honest, b"first")
            while not await newcomer_is_served(
                broker
            ):  # It is accepted once one of the idle connections has been silent for a second.
                await asyncio.sleep(0.05)
            assert set((await batches(honest)).values()) >= {2}
        finally:
            for _, writer in idle:
                writer.transport.abort()
            honest.close()
            await asyncio.sleep(0)
        assert broker.faults == []


async def newcomer_is_served(broker: ServeProcess) -> bool:
    client = await broker.connect()
    try:
        await produce(client, b"second")
    except ConnectionError:
        return False
    finally:
        client.close()
    return True


async def fill(client: WireClient, partitions: int) -> None:
    """Several megabytes in each of so many, more than the buffers of a connection take."""
    records = build_batch([(0, None, bytes(900_000), ())])
    for number in 7 * [*range(partitions)]:
        rows = [PartitionProduceData(index=number, records=records)]
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="t", partition_data=rows)]
        )
        answer = await client.request(request, 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def fetch(*partitions: int) -> FetchRequest:
    rows = [FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=50 << 20) for number in partitions]
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=50 << 20, topics=[FetchTopic(topic="t", partitions=rows)])


async def deaf_connection(broker: ServeProcess) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Returns a connection of a client that reads nothing, with as small a buffer as the system allows."""
    plain = socket.create_connection((HOST, broker.port))
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader, writer = await asyncio.open_connection(sock=plain)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return reader, writer


@pytest.mark.slow
async def test_clients_that_do_not_read_their_answers_keep_no_file_from_others(tmp_path: Path) -> None:
    """Each answer holds a file and exceeds the connection's buffers: other partitions could become unreadable."""
    async with ServeProcess(tmp_path, within=WITHIN) as broker:
        honest = await broker.connect()
        await create(honest)
        while len(list(tmp_path.rglob("t-*/*.log"))) < PARTITIONS:
            await asyncio.sleep(0.05)  # Creating a file may take that of another partition, also a held one.
        limits = next(line for line in broker.lines if line["event"] == "limits")
        files = limits["open_segments"]
        await fill(honest, files + 1)
        silent = [await deaf_connection(broker) for _ in range(files)]
        try:
            for number, (_, writer) in enumerate(silent):
                writer.write(
                    framed(ApiKey.FETCH, FETCH_VERSION, codec_for(FetchRequest, FETCH_VERSION).encode(fetch(number)))
                )
            for _, writer in silent:
                # Its answer has begun and holds its file. A client that came before the last of them would keep a file
                # for good.
                while not select.select([writer.get_extra_info("socket").fileno()], [], [], 0)[0]:
                    await asyncio.sleep(0.01)
            errors = []
            while not errors or errors[-1] != ErrorCode.NONE or len(set(errors)) == 1:
                answer = await honest.request(fetch(files), FETCH_VERSION)
                errors.append(answer.responses[0].partitions[0].error_code)
        finally:
            for _, writer in silent:
                writer.transport.abort()
        assert set(errors) == {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE}
        reasons = {str(line.get("reason")) for line in broker.lines}
        assert any("hold files open" in reason for reason in reasons), reasons
        honest.close()


async def test_too_few_descriptors_refuse_the_start(tmp_path: Path) -> None:
    within = [str(PRLIMIT), "--nofile=100:100"]
    broker = ServeProcess(tmp_path, within=within)
    await broker.launch()
    assert await broker.ended() == 2
    assert any("RLIMIT_NOFILE, ulimit -n) is 100: a broker needs at least 128" in line for line in broker.noise)
