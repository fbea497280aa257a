"""A broker compacts without a request: whole brokers on virtual time."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

from lowtide.broker.retention.deletion_ledger import DeletedCount
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.records import Record, iterate_batches, iterate_records
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.storage.checkpoint import decode_offsets
from lowtide.storage.compaction.log_cleaning import CleaningLimits
from lowtide.storage.log.log import Log
from lowtide.storage.log.retention.retention_plan import Reason
from tests.unit.broker.partitions.leading import Leading

BACKOFF_S = 5
COMPACTED = {"cleanup_policy": "compact", "internal_segment_bytes": "300"}


def play(scenario: Any, *followers: int, **settings: str) -> None:
    async def begin(loop: SimulatedLoop) -> None:
        world = Leading(loop)
        await world.start(*followers, **{"log_cleaner_backoff_ms": str(BACKOFF_S * 1000)} | settings)
        await scenario(world)

    run_simulation(begin, 1)


async def produce(world: Leading, *records: tuple[str, str | None], topic: str = "t", partition: int = 0) -> int:
    """A batch for each record; returns the last error code."""
    for key, value in records:
        row = (world.clock.wall_ms(), key.encode() if key else None, value.encode() if value is not None else None, ())
        rows = [
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=partition, records=build_batch([row]))]
            )
        ]
        answer = await world.client.request(ProduceRequest(acks=1, timeout_ms=1000, topic_data=rows), 9)
    return answer.responses[0].partition_responses[0].error_code


def log_of(world: Leading, topic: str = "t", partition: int = 0) -> Log:
    log: Log = world.replicas.partitions[TopicPartition(topic, partition)].log
    return log


def records(world: Leading, log: Log) -> list[Record]:
    found = []
    for segment in log.segments:
        content = world.filesystem.read_bytes(segment.path)
        for at, header in iterate_batches(content):
            found += iterate_records(content[at : at + header.size_bytes], max_bytes=1 << 20)
    return found


def newest(world: Leading, log: Log) -> dict[str, str]:
    return {(each.key or b"").decode(): each.value.decode() for each in records(world, log) if each.value is not None}


async def rest(times: int = 1) -> None:
    await asyncio.sleep(times * (BACKOFF_S + 1))


KEYS = [(f"k{number % 5}", f"v{number}") for number in range(60)]


def test_a_compacted_topic_keeps_the_last_record_of_each_key() -> None:
    async def scenario(world: Leading) -> None:
        await world.create_topic("t", (1,), **COMPACTED)
        await world.create_topic("d", (1,), internal_segment_bytes="300")
        await produce(world, *KEYS)
        await produce(world, *KEYS, topic="d")
        log = log_of(world)
        size = log.size_bytes
        await rest(3)
        assert len(records(world, log)) < 15
        assert newest(world, log) == {f"k{number}": f"v{55 + number}" for number in range(5)}
        assert (log.log_start_offset, log.log_end_offset) == (0, 60)
        assert len(records(world, log_of(world, "d"))) == 60, "others are left alone"
        assert world.broker is not None
        assert world.broker.serving.retention is not None
        count = world.broker.serving.retention.deleted["t", Reason.COMPACTION]
        assert isinstance(count, DeletedCount)
        assert count.size_bytes == size - log.size_bytes
        assert count.offsets == 60 - len(records(world, log))
        await asyncio.sleep(70)
        assert not [
            name for name in world.filesystem.listdir("/data/t-0") if name.endswith((".deleted", ".cleaned", ".swap"))
        ]
        checkpoint = "/data/cleaner-offset-checkpoint"
        assert decode_offsets(world.filesystem.read_bytes(checkpoint), checkpoint) == {
            ("t", 0): log.segments[-1].base_offset
        }
        await produce(world, ("k0", "again"))
        assert newest(world, log)["k0"] == "again"

    play(scenario)


def test_a_record_without_key_is_refused_and_a_delete_too() -> None:
    async def scenario(world: Leading) -> None:
        await world.create_topic("t", (1,), **COMPACTED)
        assert await produce(world, ("", "v")) == ErrorCode.INVALID_RECORD
        assert await produce(world, ("k", "v")) == ErrorCode.NONE
        partition = DeleteRecordsPartition(partition_index=0, offset=1)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[partition])], timeout_ms=1000)
        answer = await world.client.request(request, 2)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.POLICY_VIOLATION

    play(scenario)


def test_compact_and_delete_does_both() -> None:
    async def scenario(world: Leading) -> None:
        await world.create_topic("t", (1,), **COMPACTED | {"cleanup_policy": "compact,delete", "retention_ms": "40000"})
        await produce(world, *KEYS)
        log = log_of(world)
        await rest(3)
        assert len(records(world, log)) < 15
        assert log.log_start_offset == 0
        await asyncio.sleep(60)
        assert log.log_start_offset == log.log_end_offset == 60
        await produce(world, *KEYS)
        await rest(3)
        assert newest(world, log) == {f"k{number}": f"v{55 + number}" for number in range(5)}

    play(scenario, log_retention_check_interval_ms="20000", log_initial_task_delay_ms="1000")


def test_it_can_be_switched_off() -> None:
    async def scenario(world: Leading) -> None:
        await world.create_topic("t", (1,), **COMPACTED)
        await produce(world, *KEYS)
        await rest(5)
        assert len(records(world, log_of(world))) == 60

    play(scenario, log_cleaner_enable="false")
    play(scenario, log_cleaner_threads="0")


def test_a_dynamic_setting_applies_to_the_next_compaction() -> None:
    """The interval of checks, the rate of a compaction, and its memory."""

    async def scenario(world: Leading) -> None:
        assert world.broker is not None
        limits: list[CleaningLimits] = []
        log_manager = world.broker.log_manager
        begin = log_manager.begin_cleaning

        def note(log: Log, cleanable: Any, given: CleaningLimits, *rest: Any) -> Any:
            limits.append(given)
            return begin(log, cleanable, given, *rest)

        log_manager.begin_cleaning = note
        await set_on_broker(world, ("log.cleaner.backoff.ms", "600000"))
        await rest()
        await world.create_topic("t", (1,), **COMPACTED)
        await produce(world, *KEYS)
        await rest(10)
        assert len(records(world, log_of(world))) == 60
        await set_on_broker(
            world, ("log.cleaner.io.max.bytes.per.second", "1000000"), ("log.cleaner.dedupe.buffer.size", "2097152")
        )
        await asyncio.sleep(600)
        assert len(records(world, log_of(world))) < 15
        assert {(each.bytes_per_second, each.map_bytes) for each in limits} == {(1_000_000, 2 << 20)}

    play(scenario)


async def set_on_broker(world: Leading, *changes: tuple[str, str]) -> None:
    configs = [AlterableConfig(name=name, config_operation=0, value=value) for name, value in changes]
    resource = AlterConfigsResource(resource_type=ConfigResourceType.BROKER, resource_name="1", configs=configs)
    answer = await world.client.request(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
    assert (answer.responses[0].error_code, answer.responses[0].error_message) == (0, None)


def test_a_damaged_log_is_left_alone_and_others_are_compacted() -> None:
    """LogCleanerManagerTest: testGrabFilthiestCompactedLogIgnoresUncleanablePartitions."""

    async def scenario(world: Leading) -> None:
        await world.create_topic("t", (1,), **COMPACTED)
        await world.create_topic("u", (1,), **COMPACTED)
        await produce(world, *KEYS)
        await produce(world, *KEYS, topic="u")
        log = log_of(world)
        world.filesystem.open(log.segments[2].path, write=True).pwritev([b"\xff\xff"], 70)
        await rest(4)
        assert len(records(world, log_of(world, "u"))) < 15
        assert log.log_end_offset == 60
        assert len(log.segments) > 5
        assert world.broker is not None
        assert world.broker.serving.cleaner is not None
        assert list(world.broker.serving.cleaner.uncleanable) == [("t", 0)]
        assert await produce(world, ("k0", "again")) == ErrorCode.NONE, "the log still accepts records"

    play(scenario)


def test_a_full_disk_defers_it() -> None:
    async def scenario(world: Leading) -> None:
        await world.create_topic("t", (1,), **COMPACTED)
        await produce(world, *KEYS)
        world.filesystem.fail_next("create", errno.ENOSPC, count=2, path_contains=".cleaned")
        await rest(1)
        log = log_of(world)
        assert len(records(world, log)) == 60
        await rest(4)
        assert len(records(world, log)) < 15
        assert not log.offline

    play(scenario)


def test_the_dirtiest_log_is_first() -> None:
    async def scenario(world: Leading) -> None:
        for number in range(3):
            await world.create_topic(f"t{number}", (1,), **COMPACTED)
        await produce(world, *KEYS, topic="t0")
        await produce(world, *KEYS, topic="t2")
        await rest(3)
        await produce(world, *KEYS[:30], topic="t0")
        await produce(world, *KEYS, topic="t1")
        assert world.broker is not None
        assert world.broker.serving.cleaner is not None
        seen: list[str] = []
        for _ in range(3000):
            await asyncio.sleep(0.005)
            seen += [key.topic for key in world.broker.serving.cleaner._running if key.topic not in seen]
        assert seen == ["t1", "t0"]

    play(scenario)


def test_old_records_are_compacted_by_the_maximum_lag() -> None:
    """KIP-354: for any dirty ratio, and although the segment is not full."""

    async def scenario(world: Leading) -> None:
        await world.create_topic(
            "t", (1,), cleanup_policy="compact", min_cleanable_dirty_ratio="1", max_compaction_lag_ms="30000"
        )
        await produce(world, *KEYS)
        log = log_of(world)
        await rest(2)
        assert len(records(world, log)) == 60
        await asyncio.sleep(40)
        await produce(world, ("k0", "later"))
        assert len(log.segments) == 2, "the segment is closed for it"
        await rest(2)
        assert len(records(world, log)) == 6

    play(scenario)


def test_a_stop_in_the_middle_does_no_harm() -> None:
    async def scenario(world: Leading) -> None:
        await world.create_topic("t", (1,), **COMPACTED)
        await produce(world, *KEYS)
        log = log_of(world)
        assert world.broker is not None
        assert world.broker.serving.cleaner is not None
        for _ in range(4000):
            await asyncio.sleep(0.002)
            if world.broker.serving.cleaner._running:
                break
        else:
            raise AssertionError("it never began")
        await world.broker.stop()
        assert {each.key for each in records(world, log)} == {f"k{number}".encode() for number in range(5)}

    play(scenario)
