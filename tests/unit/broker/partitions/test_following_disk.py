"""A follower's disk: log starts, flushes, full and failing disks. Only reports of affected partitions wait for it."""

from __future__ import annotations

import asyncio
import errno

import pytest
from msgspec.structs import replace

from lowtide.protocol.api_keys import ApiKey
from lowtide.runtime.filesystem.tree import files_below

from .following import Following, offsets, records, row, simulate

# Log starts


def test_a_log_start_is_durable_before_it_is_reported_and_reported_at_once() -> None:
    """DR1 and DR5: the next request waits for a quick commit, and then reports it."""

    async def run(world: Following) -> None:
        log = await world.filled(0, 0, 0, high_watermark=3)
        asked = await world.next()
        world.answer(asked, row(high_watermark=3, log_start_offset=2))
        answered = world.loop.time()
        asked = await world.next()
        assert asked.at_s - answered < 0.005
        assert [(each.log_start_offset, each.fetch_offset) for each in asked.rows] == [(2, 3)]
        assert asked.message.max_wait_ms == 500
        assert offsets(log) == (2, 3, 3)

    simulate(run)


def test_a_slow_commit_makes_the_wait_short_until_the_log_start_is_reported() -> None:
    async def run(world: Following) -> None:
        log = await world.filled(0, 0, 0, high_watermark=3)
        asked = await world.next()
        world.set_commit_ms(40)
        world.answer(asked, row(high_watermark=3, log_start_offset=2))
        answered = world.loop.time()
        asked = await world.next()
        assert 0.005 <= asked.at_s - answered < 0.008, "the request is held for this time"
        assert (asked.rows, asked.message.max_wait_ms) == ([], 10), (
            "the old log start is reported already, and the new one may not be"
        )
        assert offsets(log) == (0, 3, 3)
        while not asked.rows:
            world.answer(asked)
            asked = await world.next()
        assert asked.at_s - answered >= 0.04
        assert (asked.rows[0].log_start_offset, asked.message.max_wait_ms) == (2, 500)

    simulate(run)


def test_a_delete_is_answered_when_the_log_start_from_the_leader_is_durable() -> None:
    """DR4: it waits for the broker's own log start, whichever event raised it."""

    async def run(world: Following) -> None:
        log = await world.filled(0, 0, 0, high_watermark=3)
        asked = await world.next()
        world.set_commit_ms(40)
        world.answer(asked, row(high_watermark=3, log_start_offset=2))
        await asyncio.sleep(0.005)
        asked_at = world.loop.time()
        await world.change(leader=1, leader_epoch=1)
        assert offsets(log) == (0, 3, 3)
        answer = await world.delete(2, leader_only=True)
        assert (answer.error_code, answer.leader_log_start_offset) == (0, 2)
        assert world.loop.time() - asked_at < 0.05, "it needs no second commit"

    simulate(run)


def test_whole_segments_below_a_received_log_start_are_removed() -> None:
    async def run(world: Following) -> None:
        log = await world.begin()
        log.configure(replace(log.config, segment_bytes=100))
        await world.fetched(row(records=records(0) + records(1) + records(2), high_watermark=3))
        assert len(log.segments) == 3
        await world.fetched(row(high_watermark=3, log_start_offset=2))
        await world.next()
        assert [segment.base_offset for segment in log.segments] == [2]

    simulate(run)


@pytest.mark.parametrize("leader_start", [3, 7])
def test_a_log_that_ends_at_or_below_the_leaders_start_restarts_there(leader_start: int) -> None:
    async def run(world: Following) -> None:
        log = await world.filled(0, 0, 0, high_watermark=1)
        asked = await world.new_leader_epoch(1)
        world.answer(asked, row(high_watermark=9, log_start_offset=leader_start))
        asked = await world.next()
        assert offsets(log) == (leader_start,) * 3
        assert [(each.fetch_offset, each.last_fetched_epoch, each.log_start_offset) for each in asked.rows] == [
            (leader_start, 1, leader_start)
        ]
        world.answer(
            asked, row(records=records(leader_start, epoch=1), high_watermark=9, log_start_offset=leader_start)
        )
        await world.next()
        assert offsets(log) == (leader_start, leader_start + 1, leader_start + 1)

    simulate(run)


def test_a_log_that_is_known_to_match_is_only_emptied() -> None:
    """If the leader compared the last record in this leader epoch, producers and the last epoch stay."""

    async def run(world: Following) -> None:
        log = await world.filled(0, 0, 0, high_watermark=1)
        await world.fetched(row(high_watermark=3, log_start_offset=3))
        asked = await world.next()
        assert offsets(log) == (3, 3, 3)
        assert [(each.fetch_offset, each.last_fetched_epoch, each.log_start_offset) for each in asked.rows] == [
            (3, 0, 3)
        ]

    simulate(run)


def test_a_first_batch_that_straddles_the_start_is_appended() -> None:
    """KAFKA-6975."""

    async def run(world: Following) -> None:
        log = await world.begin()
        await world.fetched(row(log_start_offset=5, high_watermark=9))
        asked = await world.next()
        assert asked.rows[0].fetch_offset == 5
        world.answer(asked, row(records=records(3, 6), log_start_offset=5, high_watermark=9))
        await world.next()
        assert offsets(log) == (5, 9, 9)

    simulate(run)


# The disk


def test_with_a_flush_for_each_record_only_flushed_records_are_reported() -> None:
    async def run(world: Following) -> None:
        log = await world.begin(configs={"flush.messages": "1"})
        asked = await world.next()
        world.set_commit_ms(3)
        world.answer(asked, row(records=records(0), high_watermark=1))
        answered = world.loop.time()
        asked = await world.next()
        assert asked.at_s - answered >= 0.003
        assert [each.fetch_offset for each in asked.rows] == [1]
        assert log.recovery_point == 1
        world.set_commit_ms(30)
        world.answer(asked, row(records=records(1), high_watermark=2))
        await world.nothing_asked(0.02)
        asked = await world.next()
        assert [each.fetch_offset for each in asked.rows] == [2]
        assert log.recovery_point == 2

    simulate(run)


@pytest.mark.parametrize("lacks_descriptors", [False, True])
def test_what_is_not_flushed_yet_is_not_reported_in_the_next_leader_epoch_either(lacks_descriptors: bool) -> None:
    """The next leader would count it, and acknowledge what a power cut can take from this replica."""

    async def run(world: Following) -> None:
        log = await world.begin(configs={"flush.messages": "1"})
        log.files.make()
        asked = await world.next()
        if lacks_descriptors:
            world.filesystem.open_files_max = 0
        else:
            world.set_commit_ms(40)
        world.answer(asked, row(records=records(0)))
        await asyncio.sleep(0.002)
        await world.change(leader_epoch=1)
        assert (log.log_end_offset, log.recovery_point) == (1, 0)
        await world.nothing_asked(2.0 if lacks_descriptors else 0.02)
        if lacks_descriptors:
            assert (log.log_end_offset, log.recovery_point) == (1, 0)
            world.filesystem.open_files_max = None
        asked = await world.next()
        assert [(each.current_leader_epoch, each.fetch_offset) for each in asked.rows] == [(1, 1)]
        assert log.recovery_point == 1

    simulate(run)


def test_what_was_flushed_in_part_and_is_no_longer_due_is_reported() -> None:
    """A flush that was under way ends below the log's end, and fewer records than `flush.messages` are left."""

    async def run(world: Following) -> None:
        log = await world.begin(configs={"flush.messages": "3"})
        asked = await world.next()
        world.set_commit_ms(20)
        world.answer(asked, row(records=records(0, 2)))
        asked = await world.next()
        world.replicas.log_manager.flush(log)
        world.answer(asked, row(records=records(2, 2)))
        asked = await world.next()
        assert [each.fetch_offset for each in asked.rows] == [4]
        assert log.recovery_point == 2

    simulate(run)


def test_a_full_disk_is_waited_for_and_other_partitions_continue() -> None:
    async def run(world: Following) -> None:
        log = await world.begin((2, 1), (2, 1))
        asked = await world.next()
        world.filesystem.capacity_bytes = 0
        world.answer(asked, row(records=records(0), high_watermark=1), row(partition_index=1))
        asked = await world.next()
        assert log.log_end_offset == 0
        assert asked.message.forgotten_topics_data[0].partitions == [0]
        world.filesystem.capacity_bytes = None
        started = world.loop.time()
        while not asked.rows:
            world.answer(asked)
            asked = await world.next()
        assert 0.9 < world.loop.time() - started < 1.6
        world.answer(asked, row(records=records(0), high_watermark=1))
        await world.next()
        assert log.log_end_offset == 1

    simulate(run)


def test_a_full_disk_accepts_log_starts_and_reports_them() -> None:
    """Deletes free space, so they must not wait for records that there is no space for."""

    async def run(world: Following) -> None:
        log = await world.begin()
        log.configure(replace(log.config, segment_bytes=100))
        await world.fetched(row(records=records(0) + records(1) + records(2), high_watermark=2))
        asked = await world.next()
        world.filesystem.capacity_bytes = 0
        world.answer(asked, row(records=records(3), high_watermark=3, log_start_offset=2))
        answered = world.loop.time()
        asked = await world.next()
        assert asked.at_s - answered < 0.02
        assert [(each.log_start_offset, each.fetch_offset) for each in asked.rows] == [(2, 3)]
        assert offsets(log) == (2, 3, 3)
        assert [segment.base_offset for segment in log.segments] == [2]
        world.answer(asked, row(records=records(3), high_watermark=3, log_start_offset=2))
        refused = world.loop.time()
        await world.nothing_asked(0.5)
        world.filesystem.capacity_bytes = None
        asked = await world.next()
        assert 0.9 < asked.at_s - refused < 1.1, "the follower backs off while nothing new is deleted"
        world.answer(asked, row(records=records(3), high_watermark=4, log_start_offset=2))
        await world.next()
        assert offsets(log) == (2, 4, 4)

    simulate(run)


def test_records_appended_on_a_full_disk_are_flushed_before_it_is_reported() -> None:
    async def run(world: Following) -> None:
        log = await world.begin(configs={"flush.messages": "1"})
        log.files.make()
        asked = await world.next()
        world.set_commit_ms(30)
        first = records(0)
        world.filesystem.capacity_bytes = (
            sum(node.size for node in files_below(world.filesystem.root)) + len(first) + 10
        )
        world.answer(asked, row(records=first + records(1, 9), high_watermark=2))
        asked = await world.next()
        assert offsets(log) == (0, 1, 1)
        assert log.recovery_point == 1

    simulate(run)


def test_a_failed_log_directory_ends_only_its_own_partitions() -> None:
    async def run(world: Following) -> None:
        log = await world.begin((2, 1), (2, 1), log_dirs="/data,/other")
        other = world.partition(1).log
        asked = await world.next()
        failing = log if log.directory.startswith("/other") else other
        world.filesystem.fail_next("write", errno.EIO, path_contains="/other/")
        world.answer(
            asked,
            row(records=records(0), high_watermark=1),
            row(partition_index=1, records=records(0), high_watermark=1),
        )
        asked = await world.next()
        assert failing.offline
        healthy = other if failing is log else log
        assert (healthy.log_end_offset, failing.log_end_offset) == (1, 0)
        assert [each.partition for each in asked.rows] == [healthy.topic_partition.partition]

    simulate(run)


def test_a_truncation_that_lacks_descriptors_is_repeated() -> None:
    """The log stays as it is; a follower that waited for that truncation for ever would never be in sync again."""

    async def run(world: Following) -> None:
        log = await world.filled(0, 0, 3, 3, high_watermark=4)
        await world.fetched(row(log_start_offset=2, high_watermark=4))
        await world.fetched()
        asked = await world.new_leader_epoch(5)
        world.filesystem.open_files_max = 0
        world.answer(asked, row(diverging=(1, 1), log_start_offset=0))
        answered = world.loop.time()
        asked = await world.next()
        assert asked.at_s - answered > 0.9, "it rests"
        assert [each.fetch_offset for each in asked.rows] == [4]
        assert offsets(log) == (2, 4, 4)
        world.filesystem.open_files_max = None
        world.answer(asked, row(diverging=(1, 1), log_start_offset=0))
        asked = await world.next()
        assert offsets(log) == (1, 1, 1)
        assert [each.fetch_offset for each in asked.rows] == [1]

    simulate(run)


def test_an_old_broker_asks_again_where_to_truncate_when_it_lacked_descriptors() -> None:
    """A Fetch without an epoch would get the records behind those to be truncated, as if nothing diverged."""

    async def run(world: Following) -> None:
        log, asked = await world.asks_for_an_epoch()
        world.filesystem.open_files_max = 0
        world.answer_epoch(asked, 0, 2)
        answered = world.loop.time()
        asked = await world.next(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        assert asked.at_s - answered > 0.9, "it rests"
        assert offsets(log) == (0, 1, 3)
        world.filesystem.open_files_max = None
        world.answer_epoch(asked, 0, 2)
        asked = await world.asks_again(2)
        assert offsets(log) == (0, 1, 2)
        assert [each.fetch_offset for each in asked.rows] == [2]

    simulate(run)
