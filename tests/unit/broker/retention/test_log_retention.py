"""A broker deletes records by its retention rules: whole brokers on virtual time."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from lowtide.broker.coordinator.runtime.offsets_topic import java_hash
from lowtide.broker.retention.deletion_ledger import COUNTED_AFTER_S, DeletedCount
from lowtide.broker.retention.log_retention import DELETIONS_AT_ONCE
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_retention import (
    DescribeRetentionRequest,
    DescribeRetentionTopic,
    RetainedPartition,
    RetentionRule,
)
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.storage.log.retention.retention_plan import Reason
from tests.unit.broker.partitions.leading import Leading

CHECK_MS = 60_000
TOPIC = TopicPartition("t", 0)


def play(scenario: Any, *followers: int, commit_ms: tuple[float, float] = (0.1, 0.5), **settings: str) -> None:
    async def begin(loop: SimulatedLoop) -> None:
        world = Leading(loop)
        world.commit_ms = commit_ms
        given = {"log_retention_check_interval_ms": str(CHECK_MS), "log_initial_task_delay_ms": "1000"}
        await world.start(*followers, **given, **settings)
        await scenario(world)

    run_simulation(begin, 1)


async def begin(world: Leading, count: int = 5, *, replicas: tuple[int, ...] = (1,), **configs: str) -> Any:
    """A topic of segments with one record each, all from now; returns its log."""
    await world.create_topic("t", replicas, **({"internal_segment_bytes": "100"} | configs))
    await produce(world, count)
    return world.replicas.partitions[TOPIC].log


async def produce(world: Leading, count: int, age_ms: int = 0) -> None:
    for _ in range(count):
        batch = build_batch([(world.clock.wall_ms() - age_ms, None, b"v" * 10, ())])
        rows = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])]
        answer = await world.client.request(ProduceRequest(acks=1, timeout_ms=1000, topic_data=rows), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0


async def set_keys(world: Leading, **keys: str) -> None:
    configs = [
        AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value) for name, value in keys.items()
    ]
    resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=configs)
    answer = await world.client.request(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
    assert (answer.responses[0].error_code, answer.responses[0].error_message) == (0, None)


async def commit(world: Leading, group: str, offset: int) -> None:
    row = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=None
    )
    await world.client.request(FindCoordinatorRequest(key=group), 3)
    for _ in range(100):
        request = OffsetCommitRequest(
            group_id=group, member_id="", topics=[OffsetCommitRequestTopic(name="t", partitions=[row])]
        )
        answer = await world.client.request(request, 8)
        if answer.topics[0].partitions[0].error_code == 0:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(answer)


def deleted(world: Leading) -> dict[str, int]:
    assert world.broker is not None
    assert world.broker.serving.retention is not None
    return {reason.value: count.segments for (_, reason), count in world.broker.serving.retention.deleted.items()}


async def explained(world: Leading, *partitions: int) -> list[RetainedPartition]:
    topics = [DescribeRetentionTopic(name="t", partitions=list(partitions or (0,)))]
    answer = await world.client.request(DescribeRetentionRequest(topics=topics), 0)
    assert answer.error_code == 0
    assert 0 < answer.next_check_at_ms - answer.checked_at_ms <= CHECK_MS
    rows: list[RetainedPartition] = answer.topics[0].partitions
    return rows


async def next_pass() -> None:
    await asyncio.sleep(CHECK_MS / 1000 + 1)


def test_records_are_deleted_when_their_time_is_over_and_the_last_segment_is_rolled() -> None:
    async def scenario(world: Leading) -> None:
        log = await begin(world, retention_ms="100000")
        await next_pass()
        assert (log.log_start_offset, len(log.segments)) == (0, 5)
        await next_pass()
        assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (5, 5, 1)
        assert deleted(world) == {"time": 5}
        await asyncio.sleep(70)
        assert sorted(name for name in world.filesystem.listdir("/data/t-0") if name.endswith(".log")) == [
            f"{5:020d}.log"
        ]
        assert not [name for name in world.filesystem.listdir("/data/t-0") if name.endswith(".deleted")]
        await produce(world, 1)
        assert log.log_end_offset == 6

    play(scenario)


def test_every_deletion_is_counted_with_its_reason() -> None:
    async def scenario(world: Leading) -> None:
        log = await begin(world, count=4)
        size = log.segments[0].size
        await set_keys(world, log_retention_min_timestamp=str(world.clock.wall_ms() + 10_000))
        await asyncio.sleep(20)
        await produce(world, 4)
        await set_keys(world, retention_bytes=str(2 * size))
        await next_pass()
        assert log.log_start_offset == 6
        assert world.broker is not None
        assert world.broker.serving.retention is not None
        assert world.broker.serving.retention.deleted == {
            ("t", Reason.MIN_TIMESTAMP): DeletedCount(4, 4 * size, 4),
            ("t", Reason.SIZE): DeletedCount(2, 2 * size, 2),
        }

    play(scenario)


@pytest.mark.parametrize(("kind", "start"), [("CreateTime", 3), ("LogAppendTime", 0)])
def test_the_minimum_timestamp_uses_the_timestamp_type_of_the_topic(kind: str, start: int) -> None:
    """KIP-47."""

    async def scenario(world: Leading) -> None:
        log = await begin(world, 0, message_timestamp_type=kind)
        await produce(world, 3, age_ms=1000)
        await produce(world, 1)
        await set_keys(world, log_retention_min_timestamp=str(world.clock.wall_ms() - 500))
        await next_pass()
        assert log.log_start_offset == start

    play(scenario)


def test_a_log_start_is_durable_before_it_is_seen() -> None:
    """As after a client's delete: a power cut does not restore deleted records."""

    async def scenario(world: Leading) -> None:
        log = await begin(world, retention_bytes="1")
        while log.log_start_pending == 0:
            await asyncio.sleep(0.5)
        assert (log.log_start_offset, len(log.segments)) == (0, 5)
        await asyncio.sleep(10)
        assert (log.log_start_offset, len(log.segments)) == (4, 1)

    play(scenario, commit_ms=(5000, 5000))


def test_nothing_is_deleted_that_followers_do_not_have() -> None:
    async def scenario(world: Leading) -> None:
        log = await begin(world, replicas=(1, 2), retention_ms="0")
        await next_pass()
        assert (log.high_watermark, log.log_start_offset) == (0, 0)

    play(scenario, 2, replica_lag_time_max_ms="100000000")


def test_a_follower_deletes_nothing_by_itself() -> None:
    async def scenario(world: Leading) -> None:
        log = await begin(world, replicas=(1, 2), retention_ms="0")
        await world.change(leader=2, leader_epoch=1)
        await next_pass()
        assert log.log_start_offset == 0

    play(scenario, 2)


def test_a_broker_that_must_not_lead_deletes_nothing() -> None:
    async def scenario(world: Leading) -> None:
        log = await begin(world, retention_ms="0")
        world.replicas.is_fenced = lambda: True
        await next_pass()
        assert log.log_start_offset == 0

    play(scenario)


def test_compacted_topics_keep_all_that_is_not_deleted_by_clients() -> None:
    """KAFKA-7400."""

    async def scenario(world: Leading) -> None:
        await world.create_topic("t", (1,), cleanup_policy="compact", retention_ms="0", retention_bytes="0")
        log = world.replicas.partitions[TOPIC].log
        batch = build_batch([(1, b"k", b"v", ())])
        rows = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])]
        await world.client.request(ProduceRequest(acks=1, timeout_ms=1000, topic_data=rows), 9)
        await next_pass()
        assert (log.log_start_offset, log.log_end_offset) == (0, 1)

    play(scenario)


def test_what_all_groups_have_consumed_is_deleted_before_its_time() -> None:
    """KIP-68: the slowest group keeps records, as does a topic without groups; without the rule none is deleted."""

    async def scenario(world: Leading) -> None:
        log = await begin(world, retention_commitoffset_ms="1000")
        await next_pass()
        assert log.log_start_offset == 0, "no group has consumed anything"
        await commit(world, "fast", 5)
        await commit(world, "slow", 2)
        await next_pass()
        assert log.log_start_offset == 2
        await commit(world, "slow", 4)
        await next_pass()
        assert log.log_start_offset == 4
        assert deleted(world) == {"consumed": 4}

    play(
        scenario,
        log_retention_commitoffset_enable="true",
        offsets_topic_num_partitions="3",
        offsets_topic_replication_factor="1",
    )


def test_consumed_records_stay_where_that_is_not_switched_on() -> None:
    async def scenario(world: Leading) -> None:
        log = await begin(world, retention_commitoffset_ms="1000")
        await commit(world, "g", 5)
        await next_pass()
        assert log.log_start_offset == 0

    play(scenario, offsets_topic_num_partitions="3", offsets_topic_replication_factor="1")


def test_a_full_disk_does_not_keep_what_would_free_it() -> None:
    """The last segment cannot be rolled then; all before it are deleted."""

    async def scenario(world: Leading) -> None:
        log = await begin(world, retention_ms="0")
        world.filesystem.fail_next("create", errno.ENOSPC, path_contains=f"{5:020d}.log")
        await asyncio.sleep(5)
        assert (log.log_start_offset, log.offline) == (4, False)
        await next_pass()
        assert log.log_start_offset == 5

    play(scenario)


def test_a_delete_of_a_client_is_counted_as_one() -> None:
    async def scenario(world: Leading) -> None:
        log = await begin(world, retention_ms="-1")
        size = log.segments[0].size
        await world.delete(2)
        assert world.broker is not None
        assert world.broker.serving.retention is not None
        retention = world.broker.serving.retention
        assert len(retention.ledger.uncounted) == 1, "no delete waits until it is counted"
        assert retention.deleted == {("t", Reason.REQUEST): DeletedCount(2, 2 * size, 2)}
        await world.delete(3)
        await asyncio.sleep(COUNTED_AFTER_S)
        assert retention.ledger.uncounted == []

    play(scenario)


def test_what_keeps_the_oldest_segment_is_explained_by_the_rules_that_delete() -> None:
    """The leader answers, and asks the groups."""

    async def scenario(world: Leading) -> None:
        await begin(world, retention_commitoffset_ms="1000", retention_ms="100000")
        await commit(world, "fast", 5)
        await commit(world, "slow", 1)
        await next_pass()
        (row,) = await explained(world)
        assert (row.log_start_offset, row.segment_start, row.segment_end, row.segment_count) == (1, 1, 2, 4)
        consumed, time = row.rules
        assert consumed == RetentionRule(reason="consumed", consumed_offset=1, group_id="slow")
        assert (time.reason, row.hold, row.is_active) == ("time", "", False)
        await commit(world, "slow", 2)
        (row,) = await explained(world)
        assert row.rules[0].goes_at_ms <= world.clock.wall_ms()
        await asyncio.sleep((time.goes_at_ms - world.clock.wall_ms()) / 1000)
        await next_pass()
        (row,) = await explained(world)
        assert (row.hold, row.log_start_offset, row.segment_count) == ("empty", 5, 1)

    play(
        scenario,
        log_retention_commitoffset_enable="true",
        offsets_topic_num_partitions="3",
        offsets_topic_replication_factor="1",
    )


def test_a_partition_that_cannot_be_explained_has_an_error() -> None:
    async def scenario(world: Leading) -> None:
        await begin(world, replicas=(1, 2))
        await world.change(leader=2, leader_epoch=1)
        rows = await explained(world, 0, 1)
        assert [row.error_code for row in rows] == [
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        topics = [DescribeRetentionTopic(name="t", partitions=list(range(1001)))]
        answer = await world.client.request(DescribeRetentionRequest(topics=topics), 0)
        assert answer.error_code == ErrorCode.INVALID_REQUEST

    play(scenario, 2)


def test_groups_of_a_coordinator_that_is_unavailable_keep_all() -> None:
    """An unreachable broker leads half of the groups' topic: the offsets of the local groups are not enough."""

    async def scenario(world: Leading) -> None:
        await world.create_topic("__consumer_offsets", (1,), (2,), cleanup_policy="compact")
        log = await begin(world, retention_commitoffset_ms="1000")
        group = next(name for name in "abcdef" if java_hash(name) % 2 == 0)
        await commit(world, group, 5)
        await next_pass()
        assert log.log_start_offset == 0
        (row,) = await explained(world)
        assert "broker 2" in (row.rules[0].doubt or "")

    play(scenario, 2, log_retention_commitoffset_enable="true")


def test_deletions_of_many_partitions_reach_the_disk_a_few_at_a_time() -> None:
    """A fast disk completes all in one turn of the loop; a slow one delays the rest, but not indefinitely."""

    async def scenario(world: Leading) -> None:
        count = DELETIONS_AT_ONCE + 20
        await world.create_topic("t", *[(1,)] * count, retention_bytes="0", internal_segment_bytes="100")
        for number in range(count):
            for _ in range(2):
                await world.send_produce(number=number, acks=1)
        logs = [world.replicas.partitions[("t", number)].log for number in range(count)]
        while not any(log.log_start_pending for log in logs):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert sum(log.log_start_pending > 0 for log in logs) == DELETIONS_AT_ONCE
        while not all(log.log_start_offset for log in logs):
            await asyncio.sleep(0.1)

    play(scenario, commit_ms=(900, 900))
