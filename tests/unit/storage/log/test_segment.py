"""One segment: finding batches with an index that is correct, missing or wrong, and Kafka's rules for index entries."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.records import read_batch_header
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.errors import DamagedSegmentError, StorageError
from lowtide.storage.log.opening.log_folder import next_offset
from lowtide.storage.log.segments.index import OffsetIndex, TimeIndex
from lowtide.storage.log.segments.new_segment import create_segment
from lowtide.storage.log.segments.segment import Segment
from lowtide.storage.log.segments.segment_file import size_at
from lowtide.storage.log.segments.segment_files import SegmentCache, load_timestamps
from tests.examples import examples

BASE = 1000


def segment_with(
    *batches: tuple[int, int, int], interval_bytes: int = 100, filesystem: MemoryFileSystem | None = None
) -> Segment:
    """A segment of batches given as (records, bytes of value, timestamp)."""
    filesystem = filesystem or MemoryFileSystem()
    filesystem.make_directories("/t-0")
    segment = create_segment(filesystem, "/t-0", BASE, now_ms=0)
    offset = BASE
    for records, size, timestamp in batches:
        content = build_batch([(timestamp, None, b"x" * size, ())] * records, base_offset=offset, leader_epoch=0)
        position = segment.size
        segment.write([content], len(content))
        offset += records
        segment.note_batch(offset - 1, position, len(content), timestamp, interval_bytes)
    return segment


def closed(segment: Segment, filesystem: MemoryFileSystem) -> Segment:
    """The same segment, as it is found on disk."""
    return Segment(filesystem, "/t-0", BASE, size=segment.size, created_ms=0)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.one_of(st.integers(0, 200), st.integers(5000, 9000)), st.integers(0, 9)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([0, 100, 4096, 1 << 30]),
)
def test_the_batch_of_every_offset_is_found(batches: list[tuple[int, int, int]], interval_bytes: int) -> None:
    """With a dense index, a sparse one and none: the position is that of the first batch at or after the offset."""
    segment = segment_with(*batches, interval_bytes=interval_bytes)
    offset = BASE
    for records, _, _ in batches:
        for wanted in range(offset, offset + records):
            place = segment.find(wanted)
            assert place is not None
            assert (place.base_offset, place.last_offset) == (offset, offset + records - 1)
            header = read_batch_header(segment.read_batch(place.position, place.size))
            assert (header.base_offset, header.size_bytes) == (offset, place.size)
            assert size_at(segment, place.position) == place.size
        offset += records
    assert segment.find(offset) is None
    assert next_offset(segment) == offset


def test_index_entries_follow_kafkas_rules() -> None:
    """LogSegment.append: an entry after more bytes than the interval; time entries only when the timestamp rises."""
    segment = segment_with((1, 40, 10), (1, 40, 50), (2, 40, 30), (1, 40, 20), (1, 40, 90))
    offsets, times = segment.indexes
    sizes = [header.size_bytes for _, header in segment.batches(0)]
    places = [sum(sizes[:number]) for number in range(5)]
    assert offsets.encode() == OffsetIndexOf(
        (BASE + 1, places[1]), (BASE + 3, places[2]), (BASE + 4, places[3]), (BASE + 5, places[4])
    )
    assert times.last_entry == (90, BASE + 5)
    assert len(times) == 2, "50 at the second batch, 90 at the last"


def OffsetIndexOf(*entries: tuple[int, int]) -> bytes:  # noqa: N802 - reads like the constructor it stands for
    index = OffsetIndex(BASE)
    for offset, position in entries:
        index.append(offset, position)
    return index.encode()


def test_a_written_index_ends_with_the_largest_timestamp() -> None:
    """Kafka reads a closed segment's largest timestamp from the last entry of its time index."""
    filesystem = MemoryFileSystem()
    segment = segment_with((1, 10, 500), (1, 10, 400), interval_bytes=1 << 20, filesystem=filesystem)
    segment.write_indexes()
    stored = TimeIndex.decode(filesystem.read_bytes("/t-0/00000000000000001000.timeindex"), BASE)
    assert stored is not None
    assert stored.last_entry == (500, BASE)
    again = closed(segment, filesystem)
    load_timestamps(again)
    assert (again.max_timestamp, again.max_timestamp_offset) == (500, BASE)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "cut", "zeros", "ones", "noise"])
def test_a_damaged_index_is_rebuilt(suffix: str, damage: str) -> None:
    """A lost or damaged index costs time, never a record."""
    filesystem = MemoryFileSystem()
    segment = segment_with(*[(1, 1500, number) for number in range(20)], filesystem=filesystem)
    segment.write_indexes()
    path = f"/t-0/{BASE:020d}{suffix}"
    good = filesystem.read_bytes(path)
    if damage == "missing":
        filesystem.unlink(path)
    else:
        bad = {
            "cut": good[:-3],
            "zeros": bytes(len(good)),
            "ones": b"\xff" * len(good),
            "noise": bytes(range(1, 200))[: len(good)],
        }[damage]
        filesystem.write_bytes(path, bad)
    again = closed(segment, filesystem)
    for offset in range(BASE, BASE + 20):
        place = again.find(offset)
        assert place is not None
        assert place.base_offset == offset
    load_timestamps(again)
    assert (again.max_timestamp, again.max_timestamp_offset) == (19, BASE + 19)


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 10_000), st.integers(0, 7))
def test_a_bit_flip_in_an_index_never_finds_a_wrong_batch(place: int, bit: int) -> None:
    """A wrong but well-formed entry is detected at the position it names, or only costs a longer scan."""
    filesystem = MemoryFileSystem()
    segment = segment_with(*[(2, 5000, 0) for number in range(20)], filesystem=filesystem)
    segment.write_indexes()
    path = f"/t-0/{BASE:020d}.index"
    content = bytearray(filesystem.read_bytes(path))
    content[place % len(content)] ^= 1 << bit
    filesystem.write_bytes(path, bytes(content))
    again = closed(segment, filesystem)
    for offset in range(BASE, BASE + 40):
        found = again.find(offset)
        assert found is not None
        assert found.base_offset <= offset <= found.last_offset


def test_a_damaged_segment_is_distinguished_from_a_damaged_index() -> None:
    """A batch header was overwritten: nothing is guessed, the partition returns an error."""
    filesystem = MemoryFileSystem()
    segment = segment_with(*[(1, 90, 0) for _ in range(5)], filesystem=filesystem)
    place = segment.find(BASE + 2)
    assert place is not None
    segment.file.pwritev([b"\xff" * 61], place.position)
    with pytest.raises(DamagedSegmentError, match="no record batch begins at byte"):
        segment.find(BASE + 2)


def test_offsets_of_batches_rise() -> None:
    """No CRC contains a base offset: a batch that would begin below the end of the one before it is damaged."""
    filesystem = MemoryFileSystem()
    segment = segment_with(*[(2, 90, 0) for _ in range(3)], filesystem=filesystem)
    third = segment.find(BASE + 4)
    assert third is not None
    segment.file.pwritev([(BASE + 3).to_bytes(8, "big")], third.position)
    with pytest.raises(DamagedSegmentError, match=f"no record batch begins at byte {third.position}"):
        segment.scan(BASE + 5, 0, None)
    with pytest.raises(DamagedSegmentError, match=f"no record batch begins at byte {third.position}"):
        list(segment.batches(0))


def test_a_failed_write_is_cut_back() -> None:
    filesystem = MemoryFileSystem()
    segment = segment_with((1, 10, 0), filesystem=filesystem)
    size = segment.size
    filesystem.capacity_bytes = size + 20
    with pytest.raises(OSError, match="No space"):
        segment.write([b"y" * 40], 40)
    assert (segment.size, segment.file.size()) == (size, size)


def test_a_write_that_cannot_be_cut_back_is_a_storage_error() -> None:
    filesystem = MemoryFileSystem()
    segment = segment_with((1, 10, 0), filesystem=filesystem)
    filesystem.fail_next("write", errno.EIO)
    filesystem.fail_next("truncate", errno.EIO)
    with pytest.raises(StorageError):
        segment.write([b"y" * 40], 40)


def test_a_file_left_behind_by_a_failed_roll_is_emptied() -> None:
    filesystem = MemoryFileSystem()
    segment_with((1, 10, 0), filesystem=filesystem)
    assert create_segment(filesystem, "/t-0", BASE, now_ms=0).file.size() == 0


def test_the_cache_forgets_what_was_used_longest_ago_and_counts_index_bytes() -> None:
    filesystem = MemoryFileSystem()
    segments = []
    for number in range(3):
        segment = create_segment(filesystem, "/", BASE + number * 10, now_ms=0)
        content = build_batch([(0, None, b"x", ())], base_offset=segment.base_offset)
        segment.write([content], len(content))
        segment.note_batch(segment.base_offset, 0, len(content), 5, 0)
        segment.write_indexes()
        segment.unpin()
        segments.append(segment)
    cache = SegmentCache(open_max=2)
    for segment in (segments[0], segments[1], segments[0], segments[2]):
        segment.find(segment.base_offset)
        cache.touch(segment)
    assert [segment.is_open for segment in segments] == [True, False, True]
    small = SegmentCache(index_bytes_max=segments[0].index_bytes)
    for segment in segments:
        segment.find(segment.base_offset)
        small.touch(segment)
    assert [segment.is_open for segment in segments] == [False, False, True]
