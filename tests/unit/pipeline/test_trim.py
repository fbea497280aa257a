"""A trimmer deletes only consumed records, keeps the lag and what groups need.

And logs its failures instead of raising them.
"""

from __future__ import annotations

import logging

import pytest

from lowtide.admin.deletion import DeletedRecords, DeleteFacts, DeleteRecordsError, DeleteStage
from lowtide.admin.errors import BrokerAnsweredError
from lowtide.admin.group_offsets import CommittedOffset
from lowtide.admin.offsets import ListedOffset, Timestamp
from lowtide.pipeline.ranges import QueryProgress
from lowtide.pipeline.trim import REPEAT_MS, Trimmer
from lowtide.pipeline.trim_options import TrimOptions
from lowtide.protocol.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
IDS = {"t": b"i" * 16}


class Admin:
    """Deletes at once, or fails as a test sets it."""

    def __init__(self) -> None:
        self.deletes: list[dict] = []
        self.ids: list[dict] = []
        self.leader_only: list[bool] = []
        self.failures: dict[TopicPartition, DeleteRecordsError] = {}
        self.error: Exception | None = None
        self.moments: list[Timestamp] = []
        self.at_moment: dict[TopicPartition, object] = {}
        self.groups: dict[str, object] = {}
        self.published: list[tuple[str, dict]] = []
        self.is_closed = False

    def delete_records(self, targets, *, leader_only=False, timeout=None, topic_ids=None):
        if self.error is not None:
            raise self.error
        self.deletes.append(dict(targets))
        self.ids.append(dict(topic_ids))
        self.leader_only.append(leader_only)
        return {one: self.failures.get(one, DeletedRecords(offset)) for one, offset in targets.items()}

    def list_offsets(self, places, *, timeout=None):
        self.moments += places.values()
        return {one: self.at_moment[one] for one in places}

    def list_group_offsets(self, groups, *, timeout=None):
        return {group: self.groups[group] for group in groups}

    def alter_group_offsets(self, group, committed, *, timeout=None):
        self.published.append((group, dict(committed)))
        return dict.fromkeys(committed)

    def close(self):
        self.is_closed = True


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return 1_000_000 + self.now_ms


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def trimmer(admin: Admin, clock: Clock, **options: object) -> Trimmer:
    return Trimmer(TrimOptions(**{"mode": "commit", "interval_ms": 0, **options}), lambda: admin, clock)  # type: ignore[return-value]


def refused(partition: TopicPartition, code: int, leader_done: bool | None = False) -> DeleteRecordsError:
    return DeleteRecordsError(
        partition, DeleteStage.ANSWERED, "no", DeleteFacts(offset=5, code=code, leader_done=leader_done)
    )


def test_each_offset_is_deleted_to_once(admin, clock):
    trims = trimmer(admin, clock, leader_only=True)
    trims.trim(QueryProgress({T0: 5, T1: 0}, IDS))
    trims.trim(QueryProgress({T0: 5, T1: 3}, IDS))
    trims.trim(QueryProgress({T0: 4, T1: 3}, IDS))
    assert admin.deletes == [{T0: 5}, {T1: 3}]
    assert admin.ids == [IDS, IDS]
    assert admin.leader_only == [True, True]


def test_a_failed_delete_is_repeated_with_the_next_positions_and_logged_once_a_minute(admin, clock, caplog):
    trims = trimmer(admin, clock)
    admin.failures = {T0: refused(T0, 29)}
    for _ in range(3):
        trims.trim(QueryProgress({T0: 5, T1: 5}, IDS))
    assert admin.deletes == [{T0: 5, T1: 5}, {T0: 5}, {T0: 5}]
    assert len(caplog.records) == 1
    clock.now_ms = REPEAT_MS
    trims.trim(QueryProgress({T0: 5, T1: 5}, IDS))
    assert len(caplog.records) == 2
    assert "not trimmed: t-0: can't delete up to 5" in caplog.text


def test_a_delete_that_the_leader_has_executed_is_done(admin, clock):
    """A slow replica does not cause repeated requests."""
    trims = trimmer(admin, clock)
    admin.failures = {T0: refused(T0, 7, leader_done=True)}
    trims.trim(QueryProgress({T0: 5}, IDS))
    trims.trim(QueryProgress({T0: 5}, IDS))
    assert admin.deletes == [{T0: 5}]


def test_nothing_is_raised_and_a_new_client_is_tried(admin, clock, caplog):
    trims = trimmer(admin, clock)
    admin.error = RuntimeError("the cluster is gone")
    trims.trim(QueryProgress({T0: 5}, IDS))
    assert "trimming failed and is tried again with the next batch: the cluster is gone" in caplog.text
    assert admin.is_closed
    admin.error = None
    trims.trim(QueryProgress({T0: 5}, IDS))
    assert admin.deletes == [{T0: 5}]


def test_a_number_of_records_is_kept(admin, clock):
    trims = trimmer(admin, clock, lag_rows=3)
    trims.trim(QueryProgress({T0: 5, T1: 3}, IDS))
    assert admin.deletes == [{T0: 2}]


def test_young_records_are_kept_and_deleted_when_they_are_old(admin, clock, caplog):
    trims = trimmer(admin, clock, lag_ms=60_000)
    listed = ListedOffset(offset=2, timestamp_ms=1, leader_epoch=0)
    admin.at_moment = {T0: listed, T1: BrokerAnsweredError(6, "no")}
    trims.trim(QueryProgress({T0: 5, T1: 5}, IDS))
    assert admin.moments == [Timestamp(940_000)] * 2
    assert admin.deletes == [{T0: 2}]
    assert "t-1 is not trimmed: the age of its records is not known" in caplog.text
    admin.at_moment = dict.fromkeys((T0, T1), ListedOffset(offset=-1, timestamp_ms=-1, leader_epoch=-1))
    trims.trim(QueryProgress({T0: 5, T1: 5}, IDS))
    assert admin.deletes[1:] == [{T0: 5, T1: 5}]


def test_what_a_group_still_needs_is_kept_and_doubt_means_keep(admin, clock, caplog):
    trims = trimmer(admin, clock, groups=("a", "b"))
    admin.groups = {
        "a": {T0: CommittedOffset(offset=4), T1: CommittedOffset(offset=9)},
        "b": {T0: CommittedOffset(offset=3)},
    }
    trims.trim(QueryProgress({T0: 5, T1: 5}, IDS))
    assert admin.deletes == [{T0: 3}]
    assert "t-1 is not trimmed: group b has committed nothing there" in caplog.text
    admin.groups["b"] = BrokerAnsweredError(30, "not allowed")
    trims.trim(QueryProgress({T0: 6, T1: 6}, IDS))
    assert admin.deletes == [{T0: 3}]
    assert "nothing is trimmed: the offsets of group b are not known" in caplog.text


def test_positions_are_published_even_where_nothing_is_trimmed(admin, clock):
    trims = trimmer(admin, clock, mode="off", commit_group="g")
    trims.trim(QueryProgress({T0: 5, T1: 0}, IDS))
    trims.trim(QueryProgress({T0: 6, T1: 0}, IDS))
    assert admin.published == [("g", {T0: 5, T1: 0}), ("g", {T0: 6})]
    assert admin.deletes == []


def test_the_first_id_of_a_topic_is_the_one_to_trim(admin, clock):
    """This is for queries whose offsets do not have the topic id."""
    found = iter([{"t": b"1" * 16}, {"t": b"2" * 16}])
    trims = Trimmer(TrimOptions(mode="commit"), lambda: admin, clock, find_ids=lambda topics: next(found))
    trims.trim(QueryProgress({T0: 5}, {}))
    trims.trim(QueryProgress({T0: 6}, {}))
    assert admin.ids == [{"t": b"1" * 16}] * 2


def test_offers_are_handled_in_a_thread_and_the_last_one_counts(admin, clock, caplog):
    trims = trimmer(admin, clock, interval_ms=3_600_000)
    with caplog.at_level(logging.WARNING):
        for offset in range(1, 50):
            trims.offer(QueryProgress({T0: offset}, IDS))
        assert trims.finish(30_000)
    assert admin.deletes[-1] == {T0: 49}
    trims.offer(QueryProgress({T0: 49}, IDS))
    assert trims.finish(0)
    assert caplog.records == []
