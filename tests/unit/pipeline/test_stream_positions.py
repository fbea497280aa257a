"""A stream's answers to Spark.

Stable starts, ends within limits, and what may be deleted, without Spark or a cluster.
"""

from __future__ import annotations

import pytest

from lowtide.pipeline.planning import Planner, ReadTarget
from lowtide.pipeline.read_options import read_options
from lowtide.pipeline.stream_positions import LATEST_FOR_MS, SELECTED_FOR_MS, StreamPositions
from lowtide.pipeline.tasks import DataLossError
from lowtide.protocol.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ID, OTHER_ID = b"i" * 16, b"j" * 16


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


class BlockingCluster(Planner):
    """A planner that has the offsets without a request."""

    def __init__(self, options) -> None:
        super().__init__(None, options)
        self.begins, self.ends, self.topic_id, self.questions = {T0: 0, T1: 0}, {T0: 5, T1: 5}, ID, 0

    def select(self):
        return ReadTarget(tuple(sorted(self.ends)), {"t": self.topic_id})

    def earliest(self, partitions):
        return {one: self.begins[one] for one in partitions}

    def latest(self, partitions):
        self.questions += 1
        return {one: self.ends[one] for one in partitions}

    def resolve(self, bound, partitions, side):
        return self.earliest(partitions) if bound.is_earliest else self.latest(partitions)


class Trimmer:
    def __init__(self) -> None:
        self.offered: list[dict] = []
        self.ids: list[dict] = []
        self.finished = 0

    def offer(self, consumed) -> None:
        self.offered.append(consumed.positions)
        self.ids.append(consumed.topic_ids)

    def finish(self, timeout_ms: int) -> bool:
        self.finished += 1
        return True


class Stream:
    """A stream with all the objects that it uses."""

    def __init__(self, **given: str) -> None:
        options = read_options({"kafka.bootstrap.servers": "b:1", "subscribe": "t", **given}, is_stream=True)
        self.clock, self.cluster, self.trimmer = Clock(), BlockingCluster(options), Trimmer()
        self.run = StreamPositions(self.cluster, options, self.trimmer, self.clock)

    def later(self, ms: int = SELECTED_FOR_MS) -> None:
        self.clock.now_ms += ms


EARLIEST = {"startingOffsets": "earliest"}


def test_the_start_is_the_same_for_every_call():
    stream = Stream(startingOffsets="latest")
    first = stream.run.initial()
    stream.cluster.ends = {T0: 9, T1: 9}
    assert stream.run.initial() == first == {"t": {"0": 5, "1": 5}}


def test_a_first_batch_that_is_repeated_begins_where_it_began():
    stream = Stream()
    start = stream.run.initial()
    stream.cluster.ends = {T0: 9, T1: 5}
    end = stream.run.latest(start)
    again = Stream()
    again.cluster.ends = {T0: 20, T1: 20}
    planned = again.run.planned(again.run.initial(), end)
    assert [one.offsets[:] for one in planned] == [(T0, 5, 9)]


def test_without_new_records_the_start_is_returned_unchanged():
    """It may have notes that a new answer would not have, and Spark compares texts."""
    stream = Stream()
    start = {"t": {"0": 5, "1": 5}, "@startedAt": {"t": {"0": 1, "1": 1}}}
    assert stream.run.latest(start) == start


def test_an_idle_query_rarely_asks_the_cluster():
    stream = Stream(**EARLIEST)
    end = stream.run.latest(stream.run.initial())
    before = stream.cluster.questions
    for _ in range(20):
        stream.later(LATEST_FOR_MS // 10)
        assert stream.run.latest(end) == end
    assert stream.cluster.questions - before == 2


def test_an_eager_query_deletes_a_batch_when_the_next_is_requested_but_nothing_below_its_start():
    stream = Stream(trim="eager", **EARLIEST)
    start = stream.run.initial()
    end = stream.run.latest(start)
    assert stream.trimmer.offered == []
    stream.run.latest(end)
    assert (stream.trimmer.offered, stream.trimmer.ids) == ([{T0: 5, T1: 5}], [{"t": ID}])


def test_a_restarted_query_deletes_at_once_what_its_checkpoint_has_as_done():
    stream = Stream(trim="eager", **EARLIEST)
    stream.run.latest({"t": {"0": 2, "1": 0}})
    assert stream.trimmer.offered == [{T0: 2, T1: 0}]


def test_a_query_that_trims_by_commits_waits_for_them():
    stream = Stream(trim="commit", **EARLIEST)
    end = stream.run.latest(stream.run.initial())
    stream.run.latest(end)
    assert stream.trimmer.offered == []
    stream.run.committed(end)
    assert stream.trimmer.offered == [{T0: 5, T1: 5}]
    stream.run.latest(end)
    assert stream.trimmer.offered[1:] == [{T0: 5, T1: 5}], (
        "offered again: a lag may have passed, or the last try failed"
    )


@pytest.mark.parametrize("mode", ["commit", "eager"])
def test_a_run_that_ends_by_itself_deletes_its_last_batch_before_it_ends(mode):
    stream = Stream(trim=mode, **EARLIEST)
    stream.run.prepare_available_now()
    stream.cluster.ends = {T0: 99, T1: 99}
    end = stream.run.latest(stream.run.initial())
    assert stream.trimmer.finished == 0
    assert stream.run.latest(end) == end
    assert (stream.trimmer.offered, stream.trimmer.finished) == ([{T0: 5, T1: 5}], 1)


def test_a_re_created_topic_ends_the_query_or_is_read_from_its_start():
    for lossy in (False, True):
        stream = Stream(trim="eager", failOnDataLoss=str(not lossy), **EARLIEST)
        start = stream.run.latest(stream.run.initial())
        stream.cluster.topic_id, stream.cluster.ends = OTHER_ID, {T0: 7, T1: 7}
        stream.later()
        if not lossy:
            with pytest.raises(DataLossError, match="topic t was deleted and created again"):
                stream.run.latest(start)
            continue
        end = stream.run.latest(start)
        assert [one.offsets[:] for one in stream.run.planned(start, end)] == [(T0, 0, 7), (T1, 0, 7)]
        assert {one.topic_id for one in stream.run.planned(start, end)} == {OTHER_ID}


def test_switching_trimming_off_or_on_changes_no_position():
    """The notes are missing in the old checkpoint, or in the new one."""
    stream = Stream(**EARLIEST)
    with_ids = {"t": {"0": 2, "1": 2}, "@topicIds": {"t": "aWlpaWlpaWlpaWlpaWlpaQ"}}
    end = stream.run.latest(with_ids)
    assert [one.offsets[:] for one in stream.run.planned(with_ids, end)] == [(T0, 2, 5), (T1, 2, 5)]


def test_a_partition_that_is_new_should_begin_at_zero():
    stream = Stream(**EARLIEST)
    start = {"t": {"0": 5}}
    end = stream.run.latest(start)
    assert [one.offsets[:] for one in stream.run.planned(start, end)] == [(T1, 0, 5)]
    stream.cluster.begins[T1] = 3
    with pytest.raises(DataLossError, match="the new partition t-1 begins at offset 3 instead of 0"):
        stream.run.planned(start, end)


def test_a_partition_that_is_gone_is_a_loss():
    stream = Stream(**EARLIEST)
    with pytest.raises(DataLossError, match="t-2 cannot be read any further"):
        stream.run.planned({"t": {"0": 5, "1": 5, "2": 5}}, {"t": {"0": 5, "1": 5}})


def test_an_end_before_its_start_is_a_loss_and_not_an_unnamed_error():
    """This also holds if the start is requested again, and the first batch is repeated."""
    stream = Stream(**EARLIEST)
    with pytest.raises(DataLossError, match="t-0 was to be read from offset 9 on, but ends at 5"):
        stream.run.planned({"t": {"0": 9, "1": 5}}, {"t": {"0": 5, "1": 5}})
    lossy = Stream(failOnDataLoss="false", **EARLIEST)
    assert lossy.run.planned({"t": {"0": 9, "1": 5}}, {"t": {"0": 5, "1": 5}}) == []


def test_a_batch_waits_until_there_is_enough_or_it_is_late():
    stream = Stream(minOffsetsPerTrigger="10", maxTriggerDelay="1h", **EARLIEST)
    end = stream.run.latest(stream.run.initial(), rows_min=10)
    assert end == {"t": {"0": 5, "1": 5}}, "the first batch never waits"
    stream.cluster.ends = {T0: 12, T1: 5}
    stream.later()
    assert stream.run.latest(end, rows_min=10) == end
    stream.later(3_600_000)
    assert stream.run.latest(end, rows_min=10) == {"t": {"0": 12, "1": 5}}
    stream.run.prepare_available_now()
    assert stream.run.latest(end, rows_min=10) == {"t": {"0": 12, "1": 5}}, "a run that must end does not wait"
