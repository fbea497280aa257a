"""Compaction in a real broker converges under kills, kcat reads the last values, and offsets stay bounded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.simulation.client import ConnectionLostError, WireClient
from tests.free_ports import HOST

from .serving import ServeProcess

ROUNDS = int(os.environ.get("ROUNDS", "3"))
SEED = int(os.environ.get("SEED", "7"))
KEYS = 40
DEADLINE_S = 120.0
SETTINGS = (
    "auto.create.topics.enable=false",
    "log.cleaner.backoff.ms=20",
    "log.segment.delete.delay.ms=0",
    "offsets.topic.num.partitions=1",
    "offsets.topic.replication.factor=1",
    "offsets.topic.segment.bytes=1048576",
)
COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.1"}


class KeyedLoad:
    """A producer with the last acknowledged value of each key, and the values that may have been written since."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0
        self.possible: dict[str, set[str | None]] = {f"key-{number}": {None} for number in range(KEYS)}

    async def run(self, client: WireClient, stop: asyncio.Event) -> None:
        """Produces until `stop` is set, or until the broker is gone."""
        with contextlib.suppress(ConnectionLostError, OSError):
            while not stop.is_set():
                await self._produce(client)

    async def _produce(self, client: WireClient) -> None:
        rows, last = [], {}
        for _ in range(50):
            key, value = f"key-{self.random.randrange(KEYS)}", f"value-{self.count}"
            self.count += 1
            rows.append((1_000_000, key.encode(), value.encode() + b"." * 60, ()))
            last[key] = value
        for key, value in last.items():
            self.possible[key].add(value)
        answer = await client.request(produce_request(build_batch(rows)), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        for key, value in last.items():
            self.possible[key] = {value}


def produce_request(batch: bytes) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=batch)
    return ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name="t", partition_data=[partition])]
    )


async def create_topic(broker: ServeProcess, others: dict[str, str] | None = None) -> None:
    client = await broker.connect()
    values = {**COMPACTED, "retention.ms": "-1", **(others or {})}
    configs = [CreatableTopicConfig(name=name, value=value) for name, value in values.items()]
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=configs)
    answer = await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=20_000, validate_only=False), 7)
    assert answer.topics[0].error_code == 0
    client.close()


async def read_with_kcat(broker: ServeProcess) -> tuple[dict[str, str], int]:
    """Returns the last value of each key, and the number of records."""
    command = [
        "kcat",
        "-b",
        f"{HOST}:{broker.port}",
        "-X",
        "broker.address.family=v4",
        "-C",
        "-t",
        "t",
        "-p",
        "0",
        "-o",
        "beginning",
        "-e",
    ]
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, "-q", "-f", "%k %s\\n"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr}\n{broker.faults}"
    rows = [line.split(" ") for line in done.stdout.splitlines()]
    return {key: value.rstrip(".") for key, value in rows}, len(rows)


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.suffix in {".cleaned", ".swap"}]


def workers_of(broker_id: int) -> list[int]:
    """Returns the processes that compact for a broker."""
    children = Path(f"/proc/{broker_id}/task")
    return [int(number) for task in children.iterdir() for number in (task / "children").read_text().split()]


def is_running(process_id: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


async def until_a_worker_runs(broker: ServeProcess) -> list[int]:
    async with asyncio.timeout(DEADLINE_S):
        while not (found := workers_of(broker.pid)):
            await asyncio.sleep(0.02)
    return found


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat isn't installed")
@pytest.mark.slow
async def test_a_compacted_topic_converges_under_kills(tmp_path: Path) -> None:
    load = KeyedLoad(SEED)
    killed_while_compacting = 0
    folder = tmp_path / "log" / "t-0"
    broker = ServeProcess(tmp_path / "log", *SETTINGS)
    async with broker:
        await create_topic(broker)
    for number in range(ROUNDS):
        broker = ServeProcess(tmp_path / "log", *SETTINGS)
        async with broker:
            found, _ = await read_with_kcat(broker)
            assert all(found.get(key) in values for key, values in load.possible.items()), f"in life {number}"
            stop = asyncio.Event()
            running = asyncio.create_task(load.run(await broker.connect(), stop))
            workers = await until_a_worker_runs(broker) if number % 2 else []
            await asyncio.sleep(load.random.uniform(0.0, 0.6))
            killed_while_compacting += bool(workers)
            await broker.kill()
            stop.set()
            await running
            async with asyncio.timeout(DEADLINE_S):
                while any(map(is_running, workers)):
                    await asyncio.sleep(0.01)
            assert not broker.faults
    assert killed_while_compacting, "there was no process to kill"
    broker = ServeProcess(tmp_path / "log", *SETTINGS)
    async with broker:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found, records = await read_with_kcat(broker)
                assert all(found.get(key) in values for key, values in load.possible.items())
                # The last record of each key remains, and the active segment: below 20,000 bytes.
                if records <= KEYS + 20_000 // 70 and not leftovers(folder):
                    break
                await asyncio.sleep(0.2)
        assert any(line["event"] == "log is compacted" for line in broker.lines) or load.count < 1000
        assert await broker.terminate() == 0
        assert not broker.faults


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat isn't installed")
@pytest.mark.slow
async def test_librdkafka_reads_across_many_empty_segments(tmp_path: Path) -> None:
    """librdkafka gives up after eleven answers without a record: it takes each for a batch too large to fetch."""
    async with ServeProcess(tmp_path / "log", *SETTINGS, "log.cleaner.enable=false") as broker:
        await create_topic(broker, {"internal.segment.bytes": "1000"})
        client = await broker.connect()
        for number in range(1000):
            request = produce_request(build_batch([(1_000_000, b"key", b"value-%d" % number + b"." * 600, ())]))
            assert (await client.request(request, 9)).responses[0].partition_responses[0].error_code == 0
        client.close()
        assert await broker.terminate() == 0
    async with ServeProcess(tmp_path / "log", *SETTINGS) as broker:
        async with asyncio.timeout(DEADLINE_S):
            while len(list((tmp_path / "log" / "t-0").glob("*.log"))) > 100:
                await asyncio.sleep(0.1)
        found, _ = await read_with_kcat(broker)
        assert found == {"key": "value-999"}
        assert not broker.faults


COMMITS = 1200
METADATA = "m" * 4000


async def test_committed_offsets_stay_bounded_and_are_there_after_a_restart(tmp_path: Path) -> None:
    """`__consumer_offsets` is compacted; without that it would be some 5,000,000 bytes long."""
    folder = tmp_path / "log" / "__consumer_offsets-0"
    broker = ServeProcess(tmp_path / "log", *SETTINGS)
    async with broker:
        await create_topic(broker)
        client = await broker.connect()
        async with asyncio.timeout(DEADLINE_S):
            while (await client.request(FindCoordinatorRequest(key="g0"), 3)).error_code or await commit(
                client, "g0", 0
            ):
                await asyncio.sleep(0.1)
        for number in range(COMMITS):
            assert await commit(client, f"g{number % 7}", number) == 0
        async with asyncio.timeout(DEADLINE_S):
            while sum(path.stat().st_size for path in folder.glob("*.log")) > 2_300_000:
                await asyncio.sleep(0.1)
        await broker.kill()
        assert not broker.faults
    broker = ServeProcess(tmp_path / "log", *SETTINGS)
    async with broker:
        client = await broker.connect()
        for number in range(7):
            assert await committed(client, f"g{number}") == max(at for at in range(COMMITS) if at % 7 == number)
        client.close()
        assert await broker.terminate() == 0
        assert not broker.faults


async def commit(client: WireClient, group: str, offset: int) -> int:
    row = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=METADATA
    )
    request = OffsetCommitRequest(
        group_id=group, member_id="", topics=[OffsetCommitRequestTopic(name="t", partitions=[row])]
    )
    answer = await client.request(request, 8)
    return answer.topics[0].partitions[0].error_code


async def committed(client: WireClient, group: str) -> int:
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    async with asyncio.timeout(DEADLINE_S):
        while True:
            answer = await client.request(OffsetFetchRequest(group_id=group, topics=topics), 7)
            if answer.error_code == 0:
                return answer.topics[0].partitions[0].committed_offset
            await asyncio.sleep(0.1)
