"""What a log remembers of its erasures."""

from __future__ import annotations

from uuid import UUID

import pytest

from lowtide.protocol.erasure_record import ErasureRecord, ReplicaSearch
from lowtide.protocol.offset_ranges import OffsetRange, OffsetRanges
from lowtide.storage.log.log_erasures import KEPT_MAX, SEARCHES_KEPT, LogErasures, decode_erasures


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


BROKER, SEARCH = 2, UUID(int=99)


def searched(*brokers: int, search_id: UUID = SEARCH) -> ErasureRecord:
    return ErasureRecord(UUID(int=7), (OffsetRange(0, 1),), ReplicaSearch(search_id, brokers))


@pytest.mark.parametrize(
    ("record", "notes", "copied_at", "expected"),
    [
        (searched(1, BROKER), [SEARCH], 0, False),
        (searched(1, BROKER), [], 0, True),
        (searched(1, BROKER), [UUID(int=1)], 0, True),
        (searched(1), [SEARCH], 0, True),
        (searched(1), [], 10, True),
        (searched(1), [], 11, False),
        (ErasureRecord(UUID(int=7), (OffsetRange(0, 1),)), [], 0, False),
    ],
    ids=[
        "took part",
        "was away",
        "took part in another attempt",
        "its answer was lost",
        "copied before the commit",
        "copied after the commit",
        "never compacted",
    ],
)
def test_a_replica_that_was_not_searched_starts_over(
    record: ErasureRecord, notes: list[UUID], copied_at: int, expected: bool
) -> None:
    """Protects a person whose old record only this replica has (ADR 24)."""
    erasures = LogErasures()
    for search_id in notes:
        erasures.note_search(search_id)
    erasures.copied_at = copied_at
    assert erasures.must_start_over(record, 10, BROKER) is expected


def test_searches_are_durable_with_the_file_and_gone_when_the_log_starts_over() -> None:
    """Protects a replica that has lost its log: it isn't taken for one that was searched."""
    erasures = LogErasures()
    change = erasures.note_search(SEARCH)
    assert erasures.dirty
    assert not erasures.is_durable(change)
    assert erasures.note_search(SEARCH) == change, "it is noted once"
    erasures.note_durable(change)
    assert erasures.is_durable(change)
    known, noted = decode_erasures("lowtide-erasures", erasures.encode())
    assert (known, noted) == ([], [SEARCH])
    erasures.start_over()
    assert decode_erasures("lowtide-erasures", erasures.encode()) == ([], [])
    assert erasures.must_start_over(searched(1, BROKER), 10, BROKER)


def test_a_bounded_number_of_searches_is_noted() -> None:
    """Protects the disk; a leader searches for one erasure at a time."""
    erasures = LogErasures()
    for number in range(3 * SEARCHES_KEPT):
        erasures.note_search(UUID(int=number))
    assert erasures.searches == [UUID(int=number) for number in range(2 * SEARCHES_KEPT, 3 * SEARCHES_KEPT)]
