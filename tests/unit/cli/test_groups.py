"""The lag of groups, and the offsets that a reset sets: within the log."""

from __future__ import annotations

import pytest

from lowtide.admin.errors import AdminError
from lowtide.admin.group_lags import Lag
from lowtide.admin.offset_reset import ResetTarget, new_offset
from lowtide.admin.offsets import ListedOffset
from lowtide.protocol.types import TopicPartition

KEY = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("committed", "start", "end", "behind"),
    [
        (3, 0, 10, 7),
        (3, 5, 10, 5),
        (10, 0, 10, 0),
        (12, 0, 10, 0),
        (3, 10, 10, 0),
        (3, None, 10, 7),
        (3, 0, None, None),
    ],
)
def test_deleted_records_do_not_count(committed, start, end, behind):
    """They cannot be read any more, so they are not part of the lag."""
    assert Lag(partition=KEY, committed=committed, log_start=start, log_end=end).records == behind


def listed(offset: int) -> ListedOffset:
    return ListedOffset(offset=offset, timestamp_ms=-1, leader_epoch=-1)


@pytest.mark.parametrize(
    ("wanted", "old", "at_time", "new"),
    [
        (ResetTarget(place="earliest"), 7, None, 5),
        (ResetTarget(place="latest"), None, None, 10),
        (ResetTarget(offset=8), None, None, 8),
        (ResetTarget(offset=1), 7, None, 5),
        (ResetTarget(offset=99), 7, None, 10),
        (ResetTarget(shift=-1), 7, None, 6),
        (ResetTarget(shift=-100), 7, None, 5),
        (ResetTarget(shift=100), 7, None, 10),
        (ResetTarget(time_ms=1), 7, listed(9), 9),
        (ResetTarget(time_ms=1), 7, listed(-1), 10),
    ],
)
def test_an_offset_is_set_within_the_log(wanted, old, at_time, new):
    planned = new_offset(KEY, old, wanted, (5, 10), at_time)
    assert (planned.old, planned.new, planned.reason) == (old, new, None)


def test_an_unknown_offset_is_not_set():
    """A partition without a leader, a time without an offset, a shift without a committed offset."""
    assert new_offset(KEY, 7, ResetTarget(offset=1), (None, 10), None).new is None
    assert new_offset(KEY, 7, ResetTarget(time_ms=1), (5, 10), AdminError("no leader")).reason == "no leader"
    assert (
        new_offset(KEY, None, ResetTarget(shift=1), (5, 10), None).reason
        == "the group has committed no offset that could be shifted"
    )


def test_exactly_one_target_is_given():
    assert ResetTarget.of("earliest", None, None) == ResetTarget(place="earliest")
    assert ResetTarget.of("12", None, None) == ResetTarget(offset=12)
    assert ResetTarget.of(None, "1793491200000", None) == ResetTarget(time_ms=1_793_491_200_000)
    assert ResetTarget.of(None, None, -5) == ResetTarget(shift=-5)
    for arguments in ((None, None, None), ("1", None, 0), ("first", None, None), (None, "noon", None)):
        with pytest.raises(ValueError):
            ResetTarget.of(*arguments)
