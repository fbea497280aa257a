"""Leader epochs: which leader wrote which offsets.

A wrong entry makes a follower truncate at the wrong offset (KIP-101, KIP-279).
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.storage.log import offsets
from lowtide.storage.log.offsets import LeaderEpochs


def epochs() -> LeaderEpochs:
    return LeaderEpochs([(2, 0), (3, 100), (7, 250)])


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),
        (-2, (-2, 0)),  # older than all known: that epoch ends where the first one begins, as in Kafka
        (0, (0, 0)),
        (2, (2, 100)),
        (3, (3, 250)),
        (5, (3, 250)),  # an epoch in which nothing was written: the one before it, and its end
        (7, (7, 300)),
        (8, (-1, -1)),
    ],
)
def test_the_end_of_an_epoch(asked: int, answer: tuple[int, int]) -> None:
    assert epochs().end_offset_for(asked, 300) == answer


def test_an_empty_log_has_no_epoch() -> None:
    empty = LeaderEpochs()
    assert empty.latest == -1
    assert empty.end_offset_for(0, 0) == (-1, -1)
    assert empty.epoch_at(0) == -1


def test_the_epoch_of_an_offset() -> None:
    known = LeaderEpochs([(3, 100), (7, 250)])
    assert [known.epoch_at(offset) for offset in (99, 100, 249, 250, 900)] == [-1, 3, 3, 7, 7]


def test_an_epoch_is_assigned_once_and_marks_the_file_as_outdated() -> None:
    known = epochs()
    assert not known.dirty
    assert not known.assign(7, 260)
    assert not known.assign(-1, 300)
    assert not known.dirty
    assert known.assign(8, 300)
    assert known.dirty
    assert known.entries()[-1] == (8, 300)


def test_a_new_epoch_drops_the_entries_that_contradict_it() -> None:
    """KAFKA-7415: entries that begin at or after the new one belong to records that were never committed."""
    known = epochs()
    known.assign(9, 100)
    assert known.entries() == [(2, 0), (9, 100)]


@pytest.mark.parametrize(
    ("log_start", "left"),
    [
        (0, [(2, 0), (3, 100), (7, 250)]),
        (40, [(2, 40), (3, 100), (7, 250)]),
        (100, [(3, 100), (7, 250)]),
        (300, [(7, 300)]),
    ],
)
def test_a_deleted_prefix_leaves_the_epoch_of_the_log_start(log_start: int, left: list[tuple[int, int]]) -> None:
    known = epochs()
    assert known.truncate_from_start(log_start) is (left != epochs().entries())
    assert known.entries() == left


@pytest.mark.parametrize(("end", "left"), [(300, 3), (251, 3), (250, 2), (100, 1), (1, 1), (0, 0)])
def test_a_truncation_drops_the_epochs_that_begin_at_or_above_it(end: int, left: int) -> None:
    known = epochs()
    assert known.truncate_from_end(end) is (left < 3)
    assert known.entries() == epochs().entries()[:left]
    assert known.latest == (known.entries()[-1][0] if left else -1)


def test_the_number_of_entries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An election storm must not fill the memory."""
    monkeypatch.setattr(offsets, "EPOCHS_MAX", 3)
    known = LeaderEpochs()
    for epoch in range(10):
        known.assign(epoch, epoch * 10)
    assert known.entries() == [(7, 70), (8, 80), (9, 90)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["assign", "truncate_from_end", "truncate_from_start"]),
            st.integers(0, 20),
            st.integers(0, 50),
        ),
        max_size=40,
    )
)
def test_entries_always_rise(changes: list[tuple[str, int, int]]) -> None:
    """P6, for any epochs of leaders in any order."""
    known = LeaderEpochs()
    for name, epoch, offset in changes:
        if name == "assign":
            known.assign(epoch, offset)
        else:
            getattr(known, name)(offset)
        entries = known.entries()
        assert all(before[0] < after[0] and before[1] < after[1] for before, after in itertools.pairwise(entries))
        assert known.latest == (entries[-1][0] if entries else -1)
        if name == "truncate_from_start" and entries:
            assert entries[0][1] >= offset
