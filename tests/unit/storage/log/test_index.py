"""The index files: Kafka's bytes, and checks against damage by a crash or a bit flip."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.storage.log.segments.index import OffsetIndex, TimeIndex

LOG_SIZE = 1 << 20


def offset_index(*entries: tuple[int, int], base_offset: int = 100) -> OffsetIndex:
    index = OffsetIndex(base_offset)
    for last_offset, position in entries:
        index.append(last_offset, position)
    return index


def test_an_offset_index_has_kafkas_bytes() -> None:
    """Eight bytes an entry, big-endian: relative last offset, position of the batch."""
    content = offset_index((115, 4160), (131, 8320)).encode()
    assert content == pack(">iiii", 15, 4160, 31, 8320)
    again = OffsetIndex.decode(content, 100, LOG_SIZE)
    assert again is not None
    assert again.encode() == content
    assert (again.last_offset, again.last_position, len(again)) == (131, 8320, 2)


def test_a_time_index_has_kafkas_bytes() -> None:
    """Twelve bytes an entry, big-endian: timestamp, relative offset."""
    index = TimeIndex(100)
    assert index.maybe_append(1000, 115)
    assert not index.maybe_append(1000, 120)
    assert index.maybe_append(2000, 131)
    content = index.encode()
    assert content == pack(">qiqi", 1000, 15, 2000, 31)
    again = TimeIndex.decode(content, 100)
    assert again is not None
    assert again.encode() == content
    assert again.last_entry == (2000, 131)


@pytest.mark.parametrize(
    ("offset", "position", "around"),
    [
        (100, 0, (99, 0, 4160)),
        (114, 0, (99, 0, 4160)),
        (115, 4160, (115, 4160, 8320)),
        (130, 4160, (115, 4160, 8320)),
        (131, 8320, (131, 8320, -1)),
        (999, 8320, (131, 8320, -1)),
    ],
)
def test_a_lookup_finds_the_last_entry_at_or_before_an_offset(
    offset: int, position: int, around: tuple[int, int, int]
) -> None:
    index = offset_index((115, 4160), (131, 8320))
    assert index.lookup(offset) == position
    assert index.around(offset) == around


def test_a_time_lookup_begins_before_the_first_record_that_may_match() -> None:
    """An entry is the largest timestamp up to its offset: equal ones are behind it only if it is strictly older."""
    index = TimeIndex(100)
    index.maybe_append(1000, 115)
    index.maybe_append(2000, 131)
    assert [index.entry_below(timestamp)[1] for timestamp in (0, 1000, 1001, 2000, 2001)] == [100, 100, 115, 115, 131]


@pytest.mark.parametrize(("end", "left"), [(99, 0), (115, 0), (116, 1), (131, 1), (132, 2)])
def test_a_truncation_drops_the_entries_above_it(end: int, left: int) -> None:
    index = offset_index((115, 4160), (131, 8320))
    index.truncate(end)
    assert len(index) == left
    times = TimeIndex(100)
    times.maybe_append(1, 115)
    times.maybe_append(2, 131)
    times.truncate(end)
    assert len(times) == left


def test_the_zeros_of_a_preallocated_file_are_no_entries() -> None:
    """Kafka trims its preallocated ten megabytes only at a clean stop."""
    zeros = bytes(10 << 20)
    index = OffsetIndex.decode(offset_index((115, 4160), (131, 8448)).encode() + zeros, 100, LOG_SIZE)
    assert index is not None
    assert len(index) == 2
    assert index.last_position == 8448
    times = TimeIndex.decode(pack(">qi", 256, 256) + bytes(12 * 1000), 100)
    assert times is not None
    assert times.last_entry == (256, 356)


@pytest.mark.parametrize(
    "content",
    [
        pack(">iiii", 15, 4160, 15, 8320),
        pack(">iiii", 31, 4160, 15, 8320),
        pack(">iiii", 15, 8320, 31, 4160),
        pack(">ii", -1, 4160),
        pack(">ii", 15, -4),
        pack(">ii", 15, LOG_SIZE),
        pack(">iii", 15, 4160, 31),
    ],
)
def test_an_offset_index_that_cannot_be_right_is_refused(content: bytes) -> None:
    assert OffsetIndex.decode(content, 100, LOG_SIZE) is None


@pytest.mark.parametrize(
    "content",
    [pack(">qiqi", 5, 1, 5, 2), pack(">qiqi", 5, 2, 6, 1), pack(">qi", -5, 1), pack(">qi", 5, -1), b"\x01" * 13],
)
def test_a_time_index_that_cannot_be_right_is_refused(content: bytes) -> None:
    assert TimeIndex.decode(content, 100) is None


@given(st.binary(max_size=200))
def test_no_bytes_make_reading_an_index_fail(content: bytes) -> None:
    """Any file contents are either a valid index or rebuilt."""
    for decoded in (OffsetIndex.decode(content, 0, LOG_SIZE), TimeIndex.decode(content, 0)):
        assert decoded is None or decoded.encode() == content[: decoded.size_bytes]
