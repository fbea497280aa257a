"""A delete shows in advance what it will free.

The leader computes it. The console only says it.
"""

from __future__ import annotations

import pytest

from lowtide.admin.observation import PartitionSegments
from lowtide.admin.retained import waits_for
from lowtide.console.answers import RefusedError
from lowtide.console.insight import quantile_ms
from lowtide.console.rehearsal import freed_value, target_of
from lowtide.protocol.messages.describe_health import LagBucket, LoopLagHistogram
from lowtide.protocol.messages.describe_retention import RetainedPartition
from lowtide.protocol.messages.describe_segments import DescribedReplica, FreedByDelete, SegmentsOfPartition


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


def freed_by(*freed: FreedByDelete) -> dict[str, object] | None:
    row = SegmentsOfPartition(
        partition_index=0,
        error_code=0,
        retained=RetainedPartition(partition_index=0, error_code=0),
        replicas=[replica(1), replica(2), replica(3, live=False)],
        freed=list(freed),
    )
    return freed_value(PartitionSegments(leader=1, checked_at_ms=0, next_check_at_ms=-1, described=row))


def planned(**given: object) -> FreedByDelete:
    nothing = {"file_count": 0, "file_bytes": 0, "delay_ms": 0, "hole_bytes": 0, "kept_bytes": 0, "waits_for": ""}
    return FreedByDelete(**{**nothing, **given})


@pytest.mark.parametrize(
    ("freed", "total", "words"),
    [
        ({}, 0, "There are no records below that offset."),
        ({"file_count": 1, "file_bytes": 1000}, 1000, "1 file is removed at once."),
        ({"file_count": 2, "file_bytes": 9, "delay_ms": 60_000}, 9, "2 files are removed 1 min after the delete."),
        ({"hole_bytes": 8000}, 8000, "8.00 kB of the next file are freed within seconds."),
        (
            {"file_count": 1, "file_bytes": 1000, "kept_bytes": 2000, "waits_for": "compacted"},
            1000,
            f"1 file is removed at once; about 2.00 kB stay in it for now: {waits_for('compacted')}.",
        ),
    ],
)
def test_a_rehearsal_says_what_the_leader_computed(freed: dict[str, object], total: int, words: str):
    found = freed_by(planned(**freed))
    assert found is not None
    assert (found["bytes"], found["on_all_disks"], found["text"]) == (total, 2 * total, words)


def test_an_older_broker_computes_nothing():
    assert freed_by() is None


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
