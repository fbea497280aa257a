"""Ranges of records in one state each: what comes out is what a dictionary of offsets says."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from lowtide.broker.coordinator.share_state.state_batches import combine
from lowtide.protocol.messages.read_share_group_state import ShareStateBatch
from lowtide.protocol.share_state_records import UNKNOWN_START

BATCHES = st.lists(
    st.builds(
        lambda first, size, state, count: ShareStateBatch(
            first_offset=first, last_offset=first + size, delivery_state=state, delivery_count=count
        ),
        st.integers(0, 30),
        st.integers(0, 8),
        st.sampled_from([0, 2, 4]),
        st.integers(1, 3),
    ),
    max_size=12,
)


def by_offset(batches: list[ShareStateBatch], start_offset: int) -> dict[int, tuple[int, int]]:
    """Of each record the state that is furthest on."""
    found: dict[int, tuple[int, int]] = {}
    for batch in batches:
        for offset in range(max(batch.first_offset, start_offset), batch.last_offset + 1):
            found[offset] = max(found.get(offset, (0, 0)), (batch.delivery_count, batch.delivery_state))
    return found


@given(batches=BATCHES, start_offset=st.integers(UNKNOWN_START, 35))
def test_each_record_has_the_state_that_is_furthest_on(batches, start_offset) -> None:
    """And ranges are in order, overlap nowhere, and are as few as can be."""
    combined = combine(batches, start_offset)
    assert by_offset(combined, UNKNOWN_START) == by_offset(batches, start_offset)
    for before, after in itertools.pairwise(combined):
        assert before.last_offset < after.first_offset
        same = (before.delivery_count, before.delivery_state) == (after.delivery_count, after.delivery_state)
        assert not (same and before.last_offset + 1 == after.first_offset)


def test_the_same_in_two_steps() -> None:
    """Combining in several steps equals combining at once: an update may be folded in at any time."""
    first = ShareStateBatch(first_offset=0, last_offset=10, delivery_state=0, delivery_count=1)
    later = ShareStateBatch(first_offset=3, last_offset=5, delivery_state=2, delivery_count=1)
    last = ShareStateBatch(first_offset=5, last_offset=20, delivery_state=0, delivery_count=2)
    expected = [(0, 2, 0, 1), (3, 4, 2, 1), (5, 20, 0, 2)]
    for batches in (combine([first, later, last], -1), combine([*combine([first, later], -1), last], -1)):
        rows = [
            (batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count) for batch in batches
        ]
        assert rows == expected


def test_ranges_with_a_gap_stay_apart() -> None:
    """Nothing is known of the records between."""
    parts = [
        ShareStateBatch(first_offset=first, last_offset=first + 1, delivery_state=2, delivery_count=1)
        for first in (0, 2, 5)
    ]
    assert [(batch.first_offset, batch.last_offset) for batch in combine(parts, UNKNOWN_START)] == [(0, 3), (5, 6)]
