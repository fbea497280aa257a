"""Which versions of keys go with named records of a compacted log."""

from __future__ import annotations

from array import array

import pytest

from lowtide.broker.partitions.older_versions import ErasureTerms, both, ends_of, newest_named, up_to
from lowtide.protocol.offset_ranges import OffsetRange
from lowtide.protocol.types import Offset
from lowtide.storage.erasures.found_keys import NO_PRODUCER, FoundKeys
from lowtide.storage.erasures.log_search import SearchedLog
from lowtide.storage.erasures.record_search import FoundRecords, HeaderSelector, KeySelector, OffsetSelector

END = Offset(100)
A, B = b"a", b"b"


def searched(*records: tuple[int, bytes | None] | tuple[int, bytes | None, int]) -> SearchedLog:
    """Records by offset and key, and producer id if they are part of a transaction."""
    offsets = array("q", [each[0] for each in records])
    found = FoundRecords(offsets, array("q", (10 * each for each in offsets)), array("i", [1] * len(records)))
    keys = FoundKeys()
    for record in records:
        keys.add(record[1], record[2] if len(record) > 2 else NO_PRODUCER)
    return SearchedLog(Offset(0), END, found, keys)


def test_each_key_ends_at_its_highest_named_offset() -> None:
    assert ends_of(searched((1, A), (3, None), (5, B), (7, A))) == {A: 7, B: 5}


def test_newer_versions_stay() -> None:
    """Protects other people's records under the same key, and the current value."""
    found = up_to({A: Offset(4), B: Offset(9)}, searched((1, A), (4, A), (5, A), (6, B), (9, B), (10, B)))
    assert list(found.offsets) == [1, 4, 6, 9]
    assert list(found.timestamps) == [10, 40, 60, 90]


@pytest.mark.parametrize(
    ("versions", "newest"),
    [
        (((1, A), (4, A)), 4),
        (((4, A), (5, A)), None),
        (((4, A), (5, A, 7)), 4),
        (((4, A), (5, A, 7), (6, A)), None),
        (((4, A), (5, A, 8)), None),
        (((1, A),), None),
    ],
    ids=["none", "newer", "aborted", "another", "committed", "compacted away meanwhile"],
)
def test_the_newest_version_is_the_one_that_no_live_record_follows(
    versions: tuple[tuple[int, bytes], ...], newest: int | None
) -> None:
    """Protects the current value: an aborted record doesn't replace it."""
    assert newest_named({A: Offset(4)}, searched(*versions), lambda _offset, producer_id: producer_id != 7) == (
        [] if newest is None else [newest]
    )


def test_all_newest_versions_are_told_in_order() -> None:
    versions = searched((4, A), (6, B), (7, b"d"), (8, b"c"), (9, b"c"), (10, A))
    ends = {A: Offset(10), B: Offset(6), b"c": Offset(8), b"d": Offset(7)}
    assert newest_named(ends, versions, lambda *_: True) == [6, 7, 10]


def test_what_both_searches_have_found_is_there_once() -> None:
    found = both(searched((2, A), (9, A)).records, searched((1, A), (2, A)).records)
    assert (list(found.offsets), list(found.timestamps)) == ([1, 2, 9], [10, 20, 90])


@pytest.mark.parametrize(
    ("terms", "widens", "keeps_newest"),
    [
        (ErasureTerms(KeySelector(frozenset([A]))), False, False),
        (ErasureTerms(HeaderSelector(b"who", b"a")), True, False),
        (ErasureTerms(OffsetSelector((OffsetRange(Offset(1), Offset(1)),))), True, True),
        (ErasureTerms(OffsetSelector((OffsetRange(Offset(1), Offset(1)),)), force=True), True, False),
    ],
)
def test_only_offsets_need_force(terms: ErasureTerms, widens: bool, keeps_newest: bool) -> None:
    assert (terms.must_widen, terms.keeps_newest) == (widens, keeps_newest)
