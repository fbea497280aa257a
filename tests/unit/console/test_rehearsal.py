"""A delete shows in advance what it will free.

Whole segments are freed. A segment with remaining records keeps its bytes, and so does the active one.
"""

from __future__ import annotations

import pytest

from lowtide.admin.observation import PartitionSegments
from lowtide.console.answers import RefusedError
from lowtide.console.insight import quantile_ms
from lowtide.console.rehearsal import freed_by, target_of
from lowtide.protocol.messages.describe_health import LagBucket, LoopLagHistogram
from lowtide.protocol.messages.describe_retention import RetainedPartition
from lowtide.protocol.messages.describe_segments import DescribedReplica, DescribedSegment, SegmentsOfPartition


def segment(base: int, end: int, *, active: bool = False) -> DescribedSegment:
    return DescribedSegment(
        base_offset=base,
        end_offset=end,
        size_bytes=1000,
        bytes_below_start=0,
        first_timestamp=1,
        largest_timestamp=2,
        is_active=active,
    )


def replica(broker_id: int, *, live: bool = True) -> DescribedReplica:
    return DescribedReplica(
        broker_id=broker_id,
        is_leader=broker_id == 1,
        is_in_sync=live,
        is_live=live,
        log_start_offset=0,
        log_end_offset=30,
        silent_ms=0,
    )


PARTITION = PartitionSegments(
    leader=1,
    checked_at_ms=0,
    next_check_at_ms=-1,
    described=SegmentsOfPartition(
        partition_index=0,
        error_code=0,
        retained=RetainedPartition(partition_index=0, error_code=0),
        segments=[segment(0, 10), segment(10, 20), segment(20, 30, active=True)],
        replicas=[replica(1), replica(2), replica(3, live=False)],
    ),
)


@pytest.mark.parametrize(
    ("offset", "freed", "words"),
    [
        (0, 0, "There are no records below that offset."),
        (5, 0, "A segment with other records, offsets 0 to 9, keeps 1.00 kB until all of it is deleted."),
        (10, 1000, "1 file is removed at once."),
        (
            15,
            1000,
            (
                "1 file is removed at once; a segment with other records, offsets 10 to 19, keeps 1.00 kB until all of "
                "it is deleted."
            ),
        ),
        (
            30,
            2000,
            (
                "2 files are removed at once; the active segment, offsets 20 to 29, keeps 1.00 kB until all of it is "
                "deleted."
            ),
        ),
    ],
)
def test_whole_segments_are_freed(offset: int, freed: int, words: str):
    found = freed_by(PARTITION, offset, 0)
    assert (found["bytes"], found["on_all_disks"], found["text"]) == (freed, 2 * freed, words)


def test_a_delay_of_files_is_said():
    assert freed_by(PARTITION, 10, 60_000)["text"] == "1 file is removed 1 min after the delete."


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"to": "somewhere"},
        {"to": "offset"},
        {"to": "offset", "value": "-1"},
        {"to": "offset", "value": "1e3"},
        {"to": "time", "value": "yesterday"},
        {"to": "time", "value": "2026-01-01T00:00:00"},
        {"to": "committed"},
        {"to": "committed", "groups": []},
        {"to": "committed", "groups": [""]},
        {"to": "committed", "groups": ["g"] * 21},
    ],
)
def test_a_target_that_cannot_be_meant_is_refused(given: dict[str, object]):
    with pytest.raises(RefusedError):
        target_of(given)


def test_a_quantile_is_the_bound_of_its_bucket():
    buckets = [LagBucket(up_to_ms=1.0, count=98), LagBucket(up_to_ms=10.0, count=1), LagBucket(up_to_ms=-1.0, count=1)]
    lag = LoopLagHistogram(count=100, sum_ms=1.0, max_ms=500.0, buckets=buckets)
    assert [quantile_ms(lag, share) for share in (0.5, 0.99, 1.0)] == [1.0, 10.0, 500.0]
    assert quantile_ms(LoopLagHistogram(count=0, sum_ms=0.0, max_ms=0.0, buckets=[]), 0.99) is None
