"""A sweep's state and rate: a saved state is restored, another file is refused, and the rate is never exceeded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.cli.sweeping import (
    CHUNK,
    DONE,
    PENDING,
    StateError,
    Sweep,
    SweepPace,
    SweptPartition,
    check_same,
    decode_sweep,
)
from lowtide.protocol.types import TopicPartition

FIRST, SECOND, THIRD = (TopicPartition("t", number) for number in range(3))


def sweep() -> Sweep:
    partitions = {FIRST: SweptPartition(3, 10), SECOND: SweptPartition(None, 7), THIRD: SweptPartition(0, 5)}
    return Sweep(request="t: all", cluster_id="c", topic_ids={"t": bytes(range(16))}, partitions=partitions)


def test_a_saved_state_is_restored():
    """Offsets, ids, and the result of each."""
    begun = sweep()
    begun.note({FIRST: None, THIRD: "no leader"})
    again = decode_sweep(begun.encode(), "state")
    assert again == begun
    assert again.pending() == [SECOND]
    assert again.failures() == {THIRD: "no leader"}
    assert (again.count(DONE), again.count(PENDING)) == (1, 1)


def test_failed_partitions_are_tried_again_and_done_ones_are_not():
    begun = sweep()
    begun.note({FIRST: None, THIRD: "no leader"})
    begun.retry_failed()
    assert begun.pending() == [SECOND, THIRD]


def test_records_are_counted_where_the_start_is_known():
    assert [each.records for each in sweep().partitions.values()] == [7, 0, 5]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 1}',
        sweep().encode()[:-3],
        sweep().encode().replace(b'"version":1', b'"version":2'),
        sweep().encode().replace(b'"version":1', b'"version":1,"more":1'),
        sweep().encode().replace(b'["t",1,', b'["t",0,'),
        sweep().encode().replace(b'["t",1,', b'["t",-1,'),
        sweep().encode().replace(b"AAECAw", b"AAEC"),
        b'{"partitions": [{"topic": "t", "partition": 0, "offset": 5}]}',
    ],
)
def test_an_invalid_state_is_refused(content):
    """A sweep never continues from a truncated or foreign file."""
    with pytest.raises(StateError, match="^state "):
        decode_sweep(content, "state")


def test_another_sweep_is_not_continued():
    check_same(sweep(), "t: all", "c", "state")
    check_same(sweep(), "t: all", None, "state")
    with pytest.raises(StateError, match="belongs to another sweep"):
        check_same(sweep(), "t: some", "c", "state")
    with pytest.raises(StateError, match="belongs to cluster c: this is d"):
        check_same(sweep(), "t: all", "d", "state")


def test_without_a_rate_nothing_waits():
    pace = SweepPace(None, 0)
    assert pace.chunk() == CHUNK
    assert [pace.wait_ms(CHUNK, 0) for _ in range(3)] == [0, 0, 0]


@given(st.floats(0.1, 100_000), st.lists(st.integers(0, 5000), max_size=50))
def test_the_rate_is_not_exceeded(rate: float, delays_ms: list[int]) -> None:
    """The chunks may take any time.

    Between any two chunks, no more partitions begin than the rate allows, except for the last chunk.
    """
    pace, now_ms, begun = SweepPace(rate, 0), 0, []
    for delay_ms in delays_ms:
        now_ms += pace.wait_ms(pace.chunk(), now_ms)
        begun.append(now_ms)
        now_ms += delay_ms
    for first in range(len(begun)):
        for last in range(first + 1, len(begun)):
            allowed = rate * (begun[last] - begun[first] + last - first + 1) / 1000
            assert (last - first) * pace.chunk() <= allowed + 1e-6
