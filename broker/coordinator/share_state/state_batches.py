"""Combines ranges of records with one state each. If several have the same record, the state that is further on wins.

Pure. Guards: the result is in order, without overlaps, begins at the start offset or later, and has no two ranges that
could be one.

Source: Kafka's `PersisterStateBatchCombiner`, with its order of states: first the delivery count, then the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import TypeAlias

from lowtide.protocol.messages.read_share_group_state import ShareStateBatch
from lowtide.protocol.types import Offset

Rank: TypeAlias = tuple[int, int]
"""Delivery count and state. The greater one wins."""


def combine(batches: Iterable[ShareStateBatch], start_offset: Offset) -> list[ShareStateBatch]:
    """Returns the states of all records at or above `start_offset` (inclusive) in any batch; -1 is no start."""
    pieces = sorted(
        (max(batch.first_offset, start_offset), batch.last_offset, (batch.delivery_count, batch.delivery_state))
        for batch in batches
        if batch.last_offset >= max(start_offset, batch.first_offset)
    )
    combined: list[ShareStateBatch] = []
    open_pieces: list[tuple[int, int, Offset]] = []
    """The pieces at the current offset, the winner first: negated rank, last offset."""
    at = 0
    index = 0
    while index < len(pieces) or open_pieces:
        if not open_pieces:
            at = max(at, pieces[index][0])
        while index < len(pieces) and pieces[index][0] <= at:
            _, last_offset, (count, state) = pieces[index]
            heappush(open_pieces, (-count, -state, last_offset))
            index += 1
        count, state, last_offset = open_pieces[0]
        if last_offset < at:
            heappop(open_pieces)
            continue
        stop = last_offset if index == len(pieces) else min(last_offset, pieces[index][0] - 1)
        _extend(combined, at, stop, (-count, -state))
        at = stop + 1
    return combined


def _extend(combined: list[ShareStateBatch], first_offset: Offset, last_offset: Offset, rank: Rank) -> None:
    before = combined[-1] if combined else None
    if (
        before is not None
        and before.last_offset + 1 == first_offset
        and (before.delivery_count, before.delivery_state) == rank
    ):
        before.last_offset = last_offset
        return
    count, state = rank
    combined.append(
        ShareStateBatch(first_offset=first_offset, last_offset=last_offset, delivery_state=state, delivery_count=count)
    )


def check_batches(batches: Sequence[ShareStateBatch]) -> bool:
    """Returns whether each batch is a valid range of offsets."""
    return all(0 <= batch.first_offset <= batch.last_offset for batch in batches)
