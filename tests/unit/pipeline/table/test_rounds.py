"""Where a round begins and ends, and how its ranges become tasks."""

from __future__ import annotations

import pytest

from lowtide.pipeline.ranges import ReadRange
from lowtide.pipeline.table.progress import ProgressError, TableProgress
from lowtide.pipeline.table.rounds import (
    BYTES_PER_RECORD,
    SMALL_BYTES,
    LogBounds,
    bytes_per_record,
    check_topic_id,
    packed,
    plan_round,
    task_count,
)
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_round_begins_at_the_progress_and_new_partitions_at_their_start():
    plan = plan_round({P0: 5}, {P0: LogBounds(3, 10), P1: LogBounds(2, 4)}, 100)
    assert plan.ranges == [ReadRange(P0, 5, 10), ReadRange(P1, 2, 4)]
    assert plan.until == {P0: 10, P1: 4}
    assert (plan.size, plan.losses) == (7, ())


def test_a_round_has_about_as_many_records_as_it_may():
    plan = plan_round({}, {P0: LogBounds(0, 900), P1: LogBounds(0, 100)}, 100)
    assert plan.until == {P0: 90, P1: 10}


def test_what_was_lost_is_said():
    plan = plan_round({P0: 5}, {P0: LogBounds(7, 10)}, 100)
    assert plan.start == {P0: 7}
    (loss,) = plan.losses
    assert loss.startswith("t-0 begins at offset 7 now, but the table has it up to offset 5")


@pytest.mark.parametrize(
    ("positions", "words"),
    [
        ({P0: 12}, "t-0 ends at offset 10, but the table has it up to offset 12"),
        ({P0: 7, P1: 1}, "t-1 does not exist any more"),
    ],
)
def test_a_topic_that_is_shorter_than_the_table_is_refused(positions, words):
    with pytest.raises(ProgressError, match=words):
        plan_round(positions, {P0: LogBounds(7, 10)}, 100)


def test_a_trimmed_topic_without_new_records_is_no_loss():
    plan = plan_round({P0: 10}, {P0: LogBounds(10, 10)}, 100)
    assert (plan.losses, plan.size) == ((), 0)


def test_another_topic_id_is_refused_if_both_are_known():
    before = TableProgress("t", b"a" * 16, {P0: 1}, "r", 1, 0)
    check_topic_id(before, "t", b"a" * 16)
    check_topic_id(before, "t", ZERO_TOPIC_ID)
    check_topic_id(None, "t", b"b" * 16)
    with pytest.raises(ProgressError, match="topic t was deleted and created again"):
        check_topic_id(before, "t", b"b" * 16)


def test_the_size_of_rows_comes_from_the_table():
    assert bytes_per_record({"total-records": "10", "total-files-size": "1000"}) == 100
    assert bytes_per_record({"total-records": "0", "total-files-size": "0"}) == BYTES_PER_RECORD
    assert bytes_per_record({}) == BYTES_PER_RECORD


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, 1), (SMALL_BYTES, 1), (2 * SMALL_BYTES, 2), (64 << 20, 4), (100 << 20, 4), (1 << 30, 8)],
)
def test_one_task_for_each_file_and_more_if_the_work_is_worth_it(size: int, expected: int):
    assert task_count(size, 1, 128 << 20, 4) == expected


def test_small_ranges_share_a_task_and_large_ones_are_cut():
    ranges = [ReadRange(TopicPartition("t", number), 0, 10) for number in range(4)]
    assert [[one.partition.partition for one in task] for task in packed(ranges, 2)] == [[0, 1], [2, 3]]
    assert packed([ReadRange(P0, 0, 10)], 3) == [
        [ReadRange(P0, 0, 4)],
        [ReadRange(P0, 4, 8)],
        [ReadRange(P0, 8, 10)],
    ]
    assert packed([ReadRange(P0, 0, 1)], 3) == [[ReadRange(P0, 0, 1)]]
    assert packed([], 3) == []


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_offset_is_in_one_task(count: int):
    ranges = [ReadRange(P0, 3, 20), ReadRange(P1, 0, 5), ReadRange(TopicPartition("t", 2), 9, 10)]
    tasks = packed(ranges, count)
    offsets = [(one.partition, n) for task in tasks for one in task for n in range(one.start, one.until)]
    assert offsets == [(one.partition, n) for one in ranges for n in range(one.start, one.until)]
    assert len(tasks) <= count
