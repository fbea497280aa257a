"""The order of a log's offsets: every change keeps the order, and offsets that must move together do (D5, D6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.storage.log.offsets import LogOffsets


def offsets(log_start: int = 10, high_watermark: int = 20, log_end: int = 30, recovery_point: int = 15) -> LogOffsets:
    return LogOffsets(
        log_start_offset=log_start, log_end_offset=log_end, high_watermark=high_watermark, recovery_point=recovery_point
    )


def test_loading_bounds_the_checkpoints_by_log_start_and_log_end() -> None:
    """KAFKA-8306, KAFKA-10101: checkpoints that are behind or ahead of the data."""
    behind = offsets(high_watermark=0, recovery_point=0)
    assert (behind.high_watermark, behind.recovery_point) == (10, 10)
    ahead = offsets(high_watermark=99, recovery_point=99)
    assert (ahead.high_watermark, ahead.recovery_point) == (30, 30)


def test_a_log_start_above_the_log_end_is_our_own_bug() -> None:
    with pytest.raises(AssertionError):
        offsets(log_start=31)


def test_a_rise_of_the_log_start_lifts_high_watermark_and_recovery_point() -> None:
    log = offsets()
    assert log.move_log_start(25)
    assert (
        log.log_start_offset,
        log.log_start_pending,
        log.high_watermark,
        log.recovery_point,
        log.last_stable_offset,
    ) == (25,) * 5


@pytest.mark.parametrize("offset", [0, 9, 10])
def test_a_delete_at_or_below_the_log_start_changes_nothing(offset: int) -> None:
    """D12."""
    log = offsets()
    before = log.describe()
    assert not log.move_log_start(offset)
    assert log.describe() == before


def test_an_accepted_log_start_is_not_visible() -> None:
    log = offsets()
    assert log.request_log_start(18)
    assert not log.request_log_start(12)
    assert (log.log_start_offset, log.log_start_pending, log.high_watermark) == (10, 18, 20)


def test_a_cut_above_the_log_start_lowers_all_ends_and_ends_a_rise_above_it() -> None:
    log = offsets()
    log.request_log_start(20)
    log.cut(12)
    assert (
        log.log_start_offset,
        log.log_start_pending,
        log.high_watermark,
        log.recovery_point,
        log.log_end_offset,
    ) == (10, 10, 12, 12, 12)


def test_a_cut_below_the_log_start_lowers_the_log_start() -> None:
    """D5: the only case in which a log start falls; it then equals the log end."""
    log = offsets()
    log.cut(4)
    assert (
        log.log_start_offset,
        log.log_start_pending,
        log.high_watermark,
        log.recovery_point,
        log.log_end_offset,
    ) == (4,) * 5


def test_the_high_watermark_stops_at_the_log_end_and_never_falls() -> None:
    log = offsets()
    assert not log.advance_high_watermark(19)
    assert log.advance_high_watermark(99)
    assert log.high_watermark == 30


def test_a_log_with_a_new_start_has_nothing_uncommitted() -> None:
    """KAFKA-9491: a full truncation moved the log start and not the high watermark."""
    log = offsets()
    log.restart(log_start_offset=500, log_end_offset=500)
    assert (log.log_start_offset, log.high_watermark, log.recovery_point, log.log_end_offset) == (500,) * 4


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "advance_high_watermark",
                    "move_log_start",
                    "raise_recovery_point",
                    "request_log_start",
                    "cut",
                    "move_log_end",
                ]
            ),
            st.integers(0, 60),
        ),
        max_size=30,
    )
)
def test_any_row_of_changes_keeps_the_order(changes: list[tuple[str, int]]) -> None:
    """The log start falls only by a cut below it."""
    log = offsets()
    for name, offset in changes:
        before = log.log_start_offset
        if name == "move_log_end":
            offset += log.log_end_offset + 1
        elif name != "advance_high_watermark":
            offset = min(offset, log.log_end_offset)
        getattr(log, name)(offset)
        log.check_order()
        if log.log_start_offset < before:
            assert name == "cut"
            assert log.log_start_offset == log.log_end_offset == offset
