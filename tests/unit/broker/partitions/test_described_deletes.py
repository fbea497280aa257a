"""DescribeDeletes and DescribeSegments at a leader with followers: waiting deletes, their outcome, and the segments."""

from __future__ import annotations

import asyncio
from typing import Any

from lowtide.broker.observation.described_deletes import Viewer, finished
from lowtide.broker.partitions.deletes.delayed_delete import (
    CLIENT_ID_KEPT,
    ROWS_KEPT,
    DeleteRequest,
    DeleteRow,
    RecentDeletes,
)
from lowtide.broker.security.principal import KafkaPrincipal
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_deletes import DescribeDeletesRequest, DescribeDeletesResponse
from lowtide.protocol.messages.describe_health import DescribeHealthRequest
from lowtide.protocol.messages.describe_history import DescribeHistoryRequest, DescribeHistoryTopic
from lowtide.protocol.messages.describe_segments import (
    DescribeSegmentsRequest,
    DescribeSegmentsTopic,
    ProposedConfig,
    SegmentsOfPartition,
)
from lowtide.protocol.types import TopicPartition

from .leading import LAG_MS, NONE, Leading, simulate
from .test_leading_deletes import begin, parked


async def described(world: Leading, **fields: Any) -> DescribeDeletesResponse:
    answer: DescribeDeletesResponse = await world.client.request(DescribeDeletesRequest(**fields), 0)
    return answer


async def segments(world: Leading, delete_offsets: tuple[int, ...] = (), **fields: Any) -> SegmentsOfPartition:
    topic = DescribeSegmentsTopic(name="t", partitions=[0], delete_offsets=list(delete_offsets))
    request = DescribeSegmentsRequest(topics=[topic], **fields)
    answer = await world.client.request(request, 0)
    row: SegmentsOfPartition = answer.topics[0].partitions[0]
    return row


def test_a_delete_that_waits_names_the_followers_that_it_waits_for() -> None:
    async def run(world: Leading) -> None:
        second, third = await begin(world)
        delete = await parked(world)
        second.start = 2
        await second.fetch()
        answer = await described(world)
        (row,) = answer.waiting
        assert (answer.waiting_count, row.topic, row.partition_index, row.offset) == (1, "t", 0, 2)
        assert (row.log_start_offset, row.low_watermark) == (2, 0)
        assert [(each.broker_id, each.log_start_offset, each.is_in_sync) for each in row.followers] == [(3, 0, True)]
        assert row.followers[0].silent_ms >= 20
        assert (
            answer.described_at_ms - 1000
            < row.asked_at_ms
            <= row.durable_at_ms
            < answer.described_at_ms
            < row.ends_at_ms
        )
        assert row.origin is not None
        assert row.origin.principal == "User:ANONYMOUS"
        assert answer.finished == []
        third.start = 2
        await third.fetch()
        await delete
        answer = await described(world)
        assert (answer.waiting_count, answer.waiting, answer.last_number) == (0, [], 1)
        (done,) = answer.finished
        assert (done.number, done.error_code, done.offset, done.old_log_start_offset, done.log_start_offset) == (
            1,
            NONE,
            2,
            0,
            2,
        )
        assert done.asked_at_ms == row.asked_at_ms
        assert (
            done.asked_at_ms
            <= done.durable_at_ms
            < done.replicated_at_ms
            == done.answered_at_ms
            <= answer.described_at_ms
        )
        assert (await described(world, after_number=1)).finished == []

    simulate(run)


def test_a_broker_that_is_no_replica_any_more_is_named_while_it_is_awaited() -> None:
    """It has reported log starts, and none of them counts.

    It doesn't answer here, so the delete waits until it is silent for too long.
    """

    async def run(world: Leading) -> None:
        second, third = await begin(world)
        delete = await parked(world, timeout_ms=60_000)
        second.start = third.start = 2
        mine = world.image().isr_epochs[0]
        await world.change(replicas=(1, 2), isr=(1, 2), isr_epochs=(mine, world.epochs[2]))
        await second.fetch()
        (row,) = (await described(world)).waiting
        assert row.low_watermark == -1
        assert [(each.broker_id, each.log_start_offset, each.is_in_sync) for each in row.followers] == [(3, -1, False)]
        assert 0 <= row.followers[0].silent_ms < LAG_MS
        await asyncio.sleep(LAG_MS / 1000 + 0.05)
        assert delete.done()
        assert (await delete).error_code == NONE

    simulate(run)


def test_a_follower_outside_the_isr_is_awaited_while_it_is_live() -> None:
    async def run(world: Leading) -> None:
        second, third = await begin(world, isr=(1, 2))
        second.start = 2
        await third.fetch()
        delete = await parked(world, timeout_ms=60_000)
        await second.fetch()
        (row,) = (await described(world)).waiting
        assert [(each.broker_id, each.is_in_sync) for each in row.followers] == [(3, False)]
        await asyncio.sleep(LAG_MS / 1000 + 3)
        answer = await described(world)
        assert (answer.waiting, answer.finished[0].error_code) == ([], NONE)
        assert (await delete).error_code == NONE

    simulate(run)


def test_what_was_refused_timed_out_or_given_up_is_told_with_its_result() -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        assert (await world.delete(99)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await world.delete(2, timeout_ms=10)).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert (await world.delete(3, leader_only=True)).error_code == NONE
        rows = (await described(world)).finished
        assert [(row.number, row.error_code, row.leader_only) for row in rows] == [
            (3, NONE, True),
            (2, ErrorCode.REQUEST_TIMED_OUT, False),
            (1, ErrorCode.OFFSET_OUT_OF_RANGE, False),
        ]
        late, slow, refused = rows
        assert (late.old_log_start_offset, late.log_start_offset, late.replicated_at_ms) == (2, 3, -1)
        assert (slow.old_log_start_offset, slow.log_start_offset, slow.replicated_at_ms) == (0, 2, -1)
        assert slow.durable_at_ms > 0
        assert (refused.offset, refused.durable_at_ms) == (-1, -1)

    simulate(run)


def test_only_as_many_rows_as_are_wanted_and_kept() -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        for _ in range(ROWS_KEPT + 5):
            await world.delete(99)
        answer = await described(world, finished_max=3)
        assert [row.number for row in answer.finished] == [ROWS_KEPT + 5, ROWS_KEPT + 4, ROWS_KEPT + 3]
        answer = await described(world, finished_max=10_000)
        assert len(answer.finished) == ROWS_KEPT
        assert (await described(world, finished_max=-1)).error_code == ErrorCode.INVALID_REQUEST

    simulate(run)


def test_the_segments_of_a_partition_with_its_replicas_and_boundaries() -> None:
    async def run(world: Leading) -> None:
        second, _third = await begin(world)
        world.partition().log.roll(1)
        await world.produce(2, acks=1)
        second.start = 1
        await second.fetch()
        assert (await world.delete(1, leader_only=True)).error_code == NONE
        row = await segments(world)
        assert (row.error_code, row.leader_epoch, row.retained.log_start_offset, row.retained.log_end_offset) == (
            NONE,
            0,
            1,
            5,
        )
        closed, active = row.segments
        assert (closed.base_offset, closed.end_offset, closed.is_active) == (0, 3, False)
        assert (active.base_offset, active.end_offset, active.is_active, active.bytes_below_start) == (3, 5, True, 0)
        assert closed.bytes_below_start == closed.size_bytes // 3
        assert (closed.first_timestamp, closed.largest_timestamp) == (1, 1)
        assert [(each.broker_id, each.is_leader, each.log_start_offset) for each in row.replicas] == [
            (1, True, 1),
            (2, False, 1),
            (3, False, 0),
        ]
        assert {each.reason for each in row.boundaries} == {"time"}
        (time,) = row.boundaries
        assert time.offset == 3, "the closed segment, from 1970, goes; the other one is not replicated"
        assert [each.base_offset for each in (await segments(world, first_offset=3)).segments] == [3]
        assert [each.base_offset for each in (await segments(world, segments_max=1)).segments] == [0]
        assert row.freed == []
        (freed,) = (await segments(world, (4,))).freed
        assert (freed.file_count, freed.file_bytes) == (1, closed.size_bytes)
        assert row.forecast == []
        uneven = DescribeSegmentsTopic(name="t", partitions=[0], delete_offsets=[1, 2])
        answer = await world.client.request(DescribeSegmentsRequest(topics=[uneven]), 0)
        assert answer.error_code == ErrorCode.INVALID_REQUEST

    simulate(run)


def test_a_forecast_is_what_the_next_pass_deletes_with_other_settings() -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        log = world.partition().log
        log.roll(1)

        async def forecast(**settings: str | None) -> Any:
            proposed = [ProposedConfig(name=name.replace("_", "."), value=value) for name, value in settings.items()]
            topic = DescribeSegmentsTopic(name="t", partitions=[0], proposed=proposed)
            answer = await world.client.request(DescribeSegmentsRequest(topics=[topic]), 0)
            row = answer.topics[0].partitions[0]
            return row.error_code or row.forecast[0]

        kept = await forecast(retention_ms="-1")
        assert (kept.proposed, [(each.reason, each.segment_count) for each in kept.present]) == ([], [("time", 1)])
        sized = await forecast(retention_ms="-1", retention_bytes="0")
        assert [(each.reason, each.segment_count, each.end_offset) for each in sized.proposed] == [("size", 1, 3)]
        assert sized.proposed[0].size_bytes == log.segments[0].size
        assert (await forecast(retention_bytes=None)).proposed == kept.present, "its default is no limit"
        assert (await forecast(cleanup_policy="compact")).proposed == []
        assert await forecast(retention_ms="soon") == ErrorCode.INVALID_CONFIG
        assert await forecast(no_such_key="1") == ErrorCode.INVALID_CONFIG
        assert log.log_start_offset == 0, "nothing is deleted"

    simulate(run)


def test_a_client_sees_deletes_of_topics_that_it_may_describe_and_whose_they_are_if_they_are_its_own() -> None:
    alice, bob, recent = KafkaPrincipal("User", "alice"), KafkaPrincipal("User", "bob"), RecentDeletes()

    def note(principal: KafkaPrincipal, *rows: DeleteRow) -> None:
        request = DeleteRequest(
            rows=list(rows),
            leader_only=False,
            timeout_ms=1,
            asked_ms=5,
            principal=principal,
            client_address="a",
            client_id="x" * 9999,
        )
        recent.note(request, 7, 1007, ErrorCode.REQUEST_TIMED_OUT)

    def seen(viewer: Viewer) -> list[tuple[int, str, str | None]]:
        steps = finished(recent, viewer, after_number=0, rows_max=10)
        try:
            while True:
                next(steps)
        except StopIteration as end:
            return [(row.number, row.topic, row.origin and row.origin.principal) for row in end.value]

    open_topic, secret = TopicPartition("open", 0), TopicPartition("secret", 0)
    note(alice, DeleteRow(key=open_topic, offset=1), DeleteRow(key=secret, offset=1))
    note(bob, DeleteRow(key=open_topic, offset=1))
    for error in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        note(bob, DeleteRow(key=TopicPartition("n" * 32_000, 0), error_code=error, done=True))
    assert seen(Viewer(lambda name: name == "open", False, alice)) == [(3, "open", None), (1, "open", "User:alice")]
    assert seen(Viewer(lambda _: True, True, alice)) == [
        (3, "open", "User:bob"),
        (2, "secret", "User:alice"),
        (1, "open", "User:alice"),
    ]
    assert {len(request.client_id or "") for request in recent} == {CLIENT_ID_KEPT}


def test_the_history_and_the_disks_of_a_broker() -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        world.partition().log.roll(1)
        await world.produce(1, acks=1)
        await asyncio.sleep(2)
        request = DescribeHistoryRequest(topics=[DescribeHistoryTopic(name="t", partitions=[0, 7])])
        answer = await world.client.request(request, 0)
        there, unknown = answer.topics[0].partitions
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        before = there.samples[-1]
        assert (before.log_start_offset, answer.interval_ms) == (0, 10_000)
        await world.delete(3, leader_only=True)
        await asyncio.sleep(10)
        after = (await world.client.request(request, 0)).topics[0].partitions[0].samples[-1]
        assert (after.log_start_offset, after.log_end_offset) == (3, 4)
        assert after.size_bytes == world.partition().log.size_bytes < before.size_bytes
        health = await world.client.request(DescribeHealthRequest(), 0)
        (disk,) = health.log_dirs
        assert (disk.path, disk.error_code, disk.live_bytes) == ("/data", NONE, after.size_bytes)
        assert disk.deleted_bytes == 0, "nothing reads it, so its room is given back at once"
        assert health.connections >= 2
        assert health.lag.count == sum(each.count for each in health.lag.buckets) > 100

    simulate(run)
