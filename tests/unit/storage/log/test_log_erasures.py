"""What a log remembers of its erasures."""

from __future__ import annotations

from uuid import UUID

from lowtide.protocol.erasure_record import ErasureRecord
from lowtide.protocol.offset_ranges import OffsetRange, OffsetRanges
from lowtide.storage.log.log_erasures import KEPT_MAX, LogErasures


def test_finished_erasures_are_remembered_up_to_a_bound() -> None:
    """Protects a log from which one person a minute is erased: neither memory nor its file grows without bound."""
    erasures = LogErasures()
    for number in range(KEPT_MAX + 50):
        record = ErasureRecord(UUID(int=number), (OffsetRange(2 * number, 2 * number),))
        erasures.note(record, 2 * number + 1, 0)
        if number != 7:  # It waits for its segment.
            erasures.on_rewritten(OffsetRanges([(2 * number, 2 * number)]))
    finished = [each.offset for each in erasures.known if not each.left]
    assert len(finished) == KEPT_MAX
    assert finished[-1] == erasures.known[-1].offset
    assert [each.offset for each in erasures.pending] == [15]
