"""A table's progress is found in its snapshots."""

from __future__ import annotations

import pytest

from lowtide.pipeline.table.committing import TableChange, commit_change
from lowtide.pipeline.table.progress import (
    OFFSETS,
    ProgressError,
    carried,
    history_of,
    progress_in,
    progress_of,
)
from lowtide.protocol.types import TopicPartition

from .tables import TOPIC_ID, files_of, progress, rows_of


def commit(table, properties: dict[str, str]):
    return commit_change(table, TableChange(properties=properties))


def test_a_new_table_has_no_progress(table):
    assert progress_of(table.metadata) is None
    assert progress_in(table, "numbers") is None
    assert carried(table.metadata) == {}
    assert history_of(table.metadata) == []


def test_the_newest_snapshot_with_the_property_counts(table):
    commit(table, progress({0: 1}, "a"))
    made = commit(table, progress({0: 2, 1: 5}, "b"))
    table.append(rows_of(9, 0, 1))
    found = progress_in(table, "numbers")
    assert found.positions == {TopicPartition("numbers", 0): 2, TopicPartition("numbers", 1): 5}
    assert (found.topic_id, found.round_id, found.snapshot_id) == (TOPIC_ID, "b", made.snapshot_id)
    assert [one.round_id for one in history_of(table.metadata)] == ["a", "b"]


def test_snapshots_off_the_branch_do_not_count(table):
    first = commit(table, progress({0: 1}, "a"))
    commit(table, progress({0: 2}, "b"))
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert progress_of(table.refresh().metadata).round_id == "a"


def test_a_table_of_another_topic_is_refused(table):
    commit(table, progress({0: 1}, topic="others"))
    with pytest.raises(ProgressError, match=r"table db\.numbers has the topic others, not numbers"):
        progress_in(table, "numbers")


def test_rows_without_progress_are_refused(table):
    table.append(rows_of(0, 0, 3))
    with pytest.raises(ProgressError, match=r"table db\.numbers has rows, but no snapshot of it says"):
        progress_in(table, "numbers")


def test_an_empty_table_with_a_snapshot_is_like_a_new_one(table):
    table.append(rows_of(0, 0, 0))
    assert progress_in(table, "numbers") is None


def test_expired_snapshots_take_no_progress_with_them_if_later_ones_carry_it_on(table):
    commit_change(table, TableChange(added=files_of(table, rows_of(0, 0, 3)), properties=progress({0: 3}, "a")))
    commit(table, carried(table.metadata))
    table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[0].snapshot_id).commit()
    assert progress_in(table.refresh(), "numbers").round_id == "a"


@pytest.mark.parametrize("text", ["", "no json", '{"numbers": 3}', "{}", '{"a": {"0": 1}, "b": {"0": 1}}', "[]"])
def test_an_unreadable_property_is_an_error(table, text: str):
    snapshot = commit(table, {OFFSETS: text})
    with pytest.raises(ProgressError, match=f"snapshot {snapshot.snapshot_id} has an unreadable property"):
        progress_of(table.metadata)
