"""Brokers are killed again and again while single records are erased: no live record is lost or changed, no erased one
is served after the acknowledgement, and none is left in a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from lowtide.admin import AdminClient, TopicPartition
from lowtide.admin.erasing import PartitionErasure
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.records import iterate_batches
from tests.etcd import missing

from .cluster_processes import ClusterProcesses

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

TOPIC = "people"
PARTITION = TopicPartition(TOPIC, 0)
ROUNDS = int(os.environ.get("ROUNDS", "3"))
BATCHES, PER_BATCH, ERASED = 8, 7, 9
COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "5000", "min.cleanable.dirty.ratio": "0.1"}
SEED = int(os.environ.get("SEED", "1"))
CONFIRMED_WITHIN_S = 300
"""How long brokers may take to confirm. It takes a second; campaigns run at the lowest priority of a busy machine."""


def value_of(number: int) -> bytes:
    return b"-record-%09d-" % number + b"." * 300


def files_with(cluster: ClusterProcesses, numbers: set[int]) -> list[str]:
    """Returns the files of all brokers that have one of these records.

    Brokers run, and give files other names: then it is looked again.
    """
    while True:
        with contextlib.suppress(FileNotFoundError):
            return [
                str(path.relative_to(cluster.directory))
                for directory in cluster.directories.values()
                for path in sorted(directory.rglob(f"{TOPIC}-0*/*"))
                if any(b"-record-%09d-" % number in path.read_bytes() for number in numbers)
            ]


async def records_of(cluster: ClusterProcesses) -> dict[int, bytes]:
    """Reads the partition from its leader, from one answer on to the next.

    If the leader changes meanwhile, it begins again at the new one: on a busy machine sessions are lost.
    """
    leader = int((await cluster.until_partition(TOPIC, lambda row: row.leader_id >= 0)).leader_id)
    bounds = await cluster.bounds(leader, TOPIC)
    assert isinstance(bounds, tuple), bounds
    offset, end = bounds
    records: dict[int, bytes] = {}
    while offset < end:
        row, more = await cluster.fetch(leader, TOPIC, offset)
        if row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return await records_of(cluster)
        assert row.error_code == 0, row
        if not row.records:
            break
        # Clients skip control batches, but this reader doesn't.
        records |= {each: value for each, value in more.items() if value.startswith(b"-record-")}
        data = bytes(row.records)
        whole = [header for at, header in iterate_batches(data) if at + header.size_bytes <= len(data)]
        offset = whole[-1].next_offset
    return records


async def erase(
    cluster: ClusterProcesses, offsets: list[int], erasure_id: UUID, seconds: float, keys: tuple[bytes, ...] = ()
) -> object:
    """Erases keys, or without them records at offsets; in a compacted topic also the newest version of a key."""
    by_offset = {PARTITION: [(each, each) for each in offsets]}
    async with AdminClient(cluster.bootstrap) as admin:
        found = await admin.erase_records(
            [PARTITION],
            keys=keys,
            offsets=None if keys else by_offset,
            force=not keys,
            erasure_id=erasure_id,
            timeout=seconds,
        )
    return found[PARTITION]


async def erase_everywhere(
    cluster: ClusterProcesses, offsets: list[int], erasure_id: UUID, keys: tuple[bytes, ...] = ()
) -> None:
    """Erases, and expects that each broker confirms."""
    result = await erase(cluster, offsets, erasure_id, CONFIRMED_WITHIN_S, keys)
    assert isinstance(result, PartitionErasure), result
    assert (sorted(result.erased_by), result.not_erased_by) == (sorted(cluster.ids), {})


async def until_read(cluster: ClusterProcesses, live: dict[int, bytes]) -> None:
    """Waits until all live records are read, and expects that no read returns anything else.

    After SIGKILL of all brokers the high watermark is older for a moment, and reads end there.
    """
    end_s = time.monotonic() + 30
    while (records := await records_of(cluster)) != live:
        assert records.items() <= live.items()
        assert time.monotonic() < end_s, len(records)
        await asyncio.sleep(0.1)


async def append_versions(cluster: ClusterProcesses, keys: list[bytes], first: int) -> dict[int, bytes]:
    """Writes a version of each key. Returns them by offset."""
    values = [value_of(first + each) for each in range(len(keys))]
    batch = build_batch([(int(time.time() * 1000), key, value, ()) for key, value in zip(keys, values, strict=True)])
    data = [TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])]
    row: Any = None

    async def produce(leader: int) -> Any:
        nonlocal row
        answer = await cluster.ask(leader, ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), 9, limit_s=20)
        row = answer.responses[0].partition_responses[0]
        return row

    await cluster.acknowledged(TOPIC, produce)
    return dict(enumerate(values, row.base_offset))


async def test_brokers_are_killed_while_versions_of_keys_are_erased(tmp_path: Path) -> None:
    """In a compacted topic: the newest version of every other key stays, and no older one of an erased key returns."""
    choice = random.Random(SEED)
    async with ClusterProcesses(tmp_path, "log.cleaner.backoff.ms=300") as cluster:
        await cluster.create_topic(TOPIC, [cluster.ids], configs=COMPACTED)
        live: dict[bytes, dict[int, bytes]] = {b"person-%d" % number: {} for number in range(12)}
        gone: set[int] = set()
        number, compacted = 0, False
        for _ in range(ROUNDS):
            for _ in range(BATCHES):
                keys = choice.choices(sorted(live), k=PER_BATCH)
                written = await append_versions(cluster, keys, number)
                number += PER_BATCH
                for key, (offset, value) in zip(keys, written.items(), strict=True):
                    live[key][offset] = value
            chosen = choice.choice([key for key in sorted(live) if live[key]])
            end = choice.choice([*sorted(live[chosen]), max(live[chosen])])
            named = (chosen,) if choice.random() < 0.5 else ()
            erased = {offset: value for offset, value in live[chosen].items() if named or offset <= end}
            erasure_id = UUID(int=choice.getrandbits(128))
            leader = int((await cluster.until_partition(TOPIC, lambda row: row.leader_id >= 0)).leader_id)
            victims = choice.choice(([leader], [each for each in cluster.ids if each != leader][:1], cluster.ids))
            erasing = asyncio.create_task(erase(cluster, [end], erasure_id, 10, named))
            await asyncio.wait([erasing], timeout=choice.uniform(0.0, 0.8))
            await cluster.kill(*victims)
            with contextlib.suppress(Exception):  # Whatever it says, the call is repeated.
                await erasing
            await cluster.start(*victims)
            await cluster.until_in_sync(TOPIC)
            await erase_everywhere(cluster, [end], erasure_id, named)
            for offset, value in erased.items():
                gone.add(int(value[8:17]))
                del live[chosen][offset]
            assert files_with(cluster, gone) == []
            compacted = await until_versions_are_read(cluster, live) or compacted
        await cluster.restart(*cluster.ids)
        await cluster.until_in_sync(TOPIC)
        assert files_with(cluster, gone) == []
        assert await until_versions_are_read(cluster, live) or compacted
        cluster.check_no_faults()


async def until_versions_are_read(cluster: ClusterProcesses, live: dict[bytes, dict[int, bytes]]) -> bool:
    """Waits until the newest version of each key is read, and expects that no read returns an erased one.

    Returns whether others were compacted away.
    """
    allowed = {offset: value for versions in live.values() for offset, value in versions.items()}
    newest = {max(versions): versions[max(versions)] for versions in live.values() if versions}
    end_s = time.monotonic() + 30
    while not newest.items() <= (records := await records_of(cluster)).items():
        assert records.items() <= allowed.items()
        assert time.monotonic() < end_s, newest.keys() - records.keys()
        await asyncio.sleep(0.1)
    assert records.items() <= allowed.items()
    return len(records) < len(allowed)


async def test_brokers_are_killed_while_records_are_erased(tmp_path: Path) -> None:
    choice = random.Random(SEED)
    async with ClusterProcesses(tmp_path, "log.roll.ms=2000") as cluster:
        await cluster.create_topic(TOPIC, [cluster.ids])
        live: dict[int, bytes] = {}
        gone: set[int] = set()
        number = 0
        for _ in range(ROUNDS):
            for _ in range(BATCHES):
                values = [value_of(number + each) for each in range(PER_BATCH)]
                number += PER_BATCH
                base = await cluster.append(TOPIC, values)
                live |= dict(enumerate(values, base))
            offsets = sorted(choice.sample(sorted(live), ERASED))
            erasure_id = UUID(int=choice.getrandbits(128))
            leader = int((await cluster.until_partition(TOPIC, lambda row: row.leader_id >= 0)).leader_id)
            victims = choice.choice(([leader], [each for each in cluster.ids if each != leader][:1], cluster.ids))
            erasing = asyncio.create_task(erase(cluster, offsets, erasure_id, seconds=10))
            await asyncio.wait([erasing], timeout=choice.uniform(0.0, 0.8))
            await cluster.kill(*victims)
            with contextlib.suppress(Exception):  # Whatever it says, the call is repeated.
                await erasing
            await cluster.start(*victims)
            await cluster.until_in_sync(TOPIC)
            await erase_everywhere(cluster, offsets, erasure_id)
            for offset in offsets:
                gone.add(int(live.pop(offset)[8:17]))
            assert files_with(cluster, gone) == []
            assert await records_of(cluster) == live
        await cluster.restart(*cluster.ids)
        await cluster.until_in_sync(TOPIC)
        assert files_with(cluster, gone) == []
        await until_read(cluster, live)
        cluster.check_no_faults()


async def test_a_volume_is_put_back_to_before_an_erasure(tmp_path: Path) -> None:
    """The replica gets the erasure from its leader again: then none of its files has an erased record."""
    choice = random.Random(SEED)
    async with ClusterProcesses(tmp_path, "log.roll.ms=2000") as cluster:
        await cluster.create_topic(TOPIC, [cluster.ids])
        live: dict[int, bytes] = {}
        gone: set[int] = set()
        number = 0
        for _ in range(ROUNDS):
            for _ in range(BATCHES):
                values = [value_of(number + each) for each in range(PER_BATCH)]
                number += PER_BATCH
                live |= dict(enumerate(values, await cluster.append(TOPIC, values)))
            victim = choice.choice(cluster.ids)
            directory, copy = cluster.directories[victim], tmp_path / "copy"
            await cluster.terminate(victim)
            shutil.copytree(directory, copy)
            await cluster.start(victim)
            await cluster.until_in_sync(TOPIC)
            offsets = sorted(choice.sample(sorted(live), ERASED))
            erasure_id = UUID(int=choice.getrandbits(128))
            await erase_everywhere(cluster, offsets, erasure_id)
            for offset in offsets:
                gone.add(int(live.pop(offset)[8:17]))
            await cluster.kill(victim)
            shutil.rmtree(directory)
            copy.rename(directory)
            assert files_with(cluster, gone)
            await cluster.start(victim)
            await cluster.until_in_sync(TOPIC)
            await erase_everywhere(cluster, offsets, erasure_id)
            assert files_with(cluster, gone) == []
            await until_read(cluster, live)
        cluster.check_no_faults()
