"""The filter of a segment's keys: a present key is never called absent, and a filter of other bytes doesn't count."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol import native
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, read_batch_header
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.erasures import key_filter
from lowtide.storage.erasures.key_filter import (
    KeyFilterBuilder,
    SegmentEnd,
    key_filter_path,
    open_key_filter,
)

pytestmark = pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")

FOLDER = "/disk/t-0"
SECRET = bytes(range(16))
PATH = key_filter_path(FOLDER, 0)
LOG = f"{FOLDER}/0.log"
HEAD_BYTES, SECTION_BYTES = 104, 12
VERSION_AT = 4


@pytest.fixture(autouse=True)
def _small_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_filter, "_SECTION_BYTES_MIN", 1)


class FilteredSegment:
    """A segment on a memory disk with its filter; each batch is a section if there are at most 64."""

    def __init__(self, batches: list[list[bytes | None]], secret: bytes = SECRET) -> None:
        self.filesystem = MemoryFileSystem()
        self.filesystem.make_directories(FOLDER)
        made = [build_batch([(1, key, b"value", ()) for key in keys], base_offset=0) for keys in batches]
        self.starts, self.size = [], 0
        for batch in made:
            self.starts.append(self.size)
            self.size += len(batch)
        builder = KeyFilterBuilder(secret, self.size)
        for position, batch in zip(self.starts, made, strict=True):
            header, records = read_batch_header(batch), batch[RECORD_BATCH_OVERHEAD:]
            builder.add(position, header, batch[:RECORD_BATCH_OVERHEAD], records)
        self.encoded = builder.encode(SegmentEnd(self.size, self.starts[-1], made[-1][:RECORD_BATCH_OVERHEAD]))
        self.filesystem.write_bytes(LOG, b"".join(made))
        if self.encoded is not None:
            self.filesystem.write_bytes(PATH, self.encoded)

    def parts(self, keys: list[bytes], size: int | None = None, floor: int = 0) -> list[tuple[int, int]] | None:
        """Returns what the filter says; None if it is invalid."""
        log_file = self.filesystem.open(LOG)
        opened = open_key_filter(self.filesystem, PATH, log_file, self.size if size is None else size)
        return None if opened is None else opened.possible(keys, log_file, floor)

    def batches(self, keys: list[bytes]) -> set[int]:
        """Returns the numbers of the batches that may have one of the keys."""
        parts = self.parts(keys)
        assert parts is not None
        return {number for number, start in enumerate(self.starts) if any(begin <= start < end for begin, end in parts)}

    def change(self, path: str, position: int, byte: int | None = None) -> None:
        content = bytearray(self.filesystem.read_bytes(path))
        content[position] = content[position] ^ 0x41 if byte is None else byte
        self.filesystem.write_bytes(path, bytes(content))


KEYS = st.sampled_from([b"%d" % number for number in range(12)])


@given(st.lists(st.lists(st.none() | KEYS | st.binary(max_size=20), min_size=1, max_size=30), min_size=1, max_size=80))
def test_a_present_key_is_never_absent(batches: list[list[bytes | None]]) -> None:
    """Protects a person whose records would stay if the filter were wrong: in each section that has the key."""
    segment = FilteredSegment(batches)
    keys = {key for batch in batches for key in batch if key is not None}
    for key in keys:
        assert segment.batches([key]) >= {number for number, batch in enumerate(batches) if key in batch}
    assert segment.batches(sorted(keys)) >= {number for number, batch in enumerate(batches) if set(batch) != {None}}


def persons(sections: int, each: int) -> list[list[bytes | None]]:
    return [[b"person-%d" % (number * each + row) for row in range(each)] for number in range(sections)]


def test_a_rare_key_chooses_its_section() -> None:
    """Protects the gain: a key in one section of 60 doesn't cause the others to be read, even if they share keys."""
    batches = persons(60, 200)
    for number, batch in enumerate(batches):
        batch += [b"common-%d" % row for row in range(200)]
        batch += [b"parity-%d-%d" % (number % 2, row) for row in range(200)]
    batches[17].append(b"rare")
    batches[43].append(b"rare")
    segment = FilteredSegment(batches)
    chosen = segment.batches([b"rare"])
    assert chosen >= {17, 43}
    assert len(chosen) < 6
    assert len(segment.batches([b"common-1"])) == 60
    chosen = [len(segment.batches([b"person-%d" % number])) for number in range(0, 12_000, 12)]
    assert sum(chosen) < 1.5 * len(chosen)


def test_most_absent_keys_are_told_apart() -> None:
    """Protects the gain: for an absent key at most a half percent of a segment is read, with 13 bits for each key."""
    segment = FilteredSegment(persons(60, 300))
    others = [len(segment.batches([b"other-%d" % number])) for number in range(10_000)]
    assert sum(others) / 60 < 10_000 * 0.005
    assert segment.encoded is not None
    assert len(segment.encoded) * 8 < 18_000 * 14
    small = FilteredSegment(persons(1, 300))
    assert sum(len(small.batches([b"other-%d" % number])) for number in range(10_000)) < 10_000 * 0.2


@pytest.mark.parametrize("kinds", [1, 5, 30, 64])
def test_a_filter_is_bounded_however_often_keys_repeat(kinds: int) -> None:
    """Protects the disk: at most 39 bits for each different key, and the gain for a rare one remains."""
    batches: list[list[bytes | None]] = [[] for _ in range(64)]
    for number in range(3_000):
        for each in range(kinds):
            batches[(number + each) % 64].append(b"person-%d" % number)
    batches[9].append(b"rare")
    segment = FilteredSegment(batches)
    assert segment.encoded is not None
    assert len(segment.encoded) * 8 < 3_000 * 40 + 8 * 1000
    assert 9 in segment.batches([b"rare"])
    assert len(segment.batches([b"rare"])) < 9


def test_a_filter_counts_only_for_its_segment() -> None:
    """Protects against a stale filter: after a truncation or a rewrite other records are in a segment of that name."""
    segment = FilteredSegment([[b"one"], [b"two"]])
    assert segment.parts([b"two"]) == [(segment.starts[1], segment.size)]
    assert segment.parts([b"two"], size=segment.size - 1) is None
    for field in (7, 15, 17):  # The offset, the leader epoch and the CRC of the last batch.
        segment = FilteredSegment([[b"one"], [b"two"]])
        segment.change(LOG, segment.starts[1] + field)
        assert segment.parts([b"one"]) is None


def test_a_section_counts_only_if_its_first_batch_is_the_same() -> None:
    """Protects against a file whose end is the same: then all of it is read, never from where no batch begins."""
    for field in (7, 15, 17):
        segment = FilteredSegment([[b"one"], [b"two"], [b"three"]])
        segment.change(LOG, segment.starts[1] + field)
        assert segment.parts([b"two"]) == [(0, segment.size)]


def test_what_is_below_the_floor_is_not_read() -> None:
    """Protects against bytes that retention has freed: a search begins at the first batch that is still there."""
    segment = FilteredSegment([[b"one"], [b"two", b"x"], [b"three"], [b"two"]])
    second, third, fourth = segment.starts[1:]
    assert segment.parts([b"one"], floor=second) == []
    assert segment.parts([b"two"], floor=second) == [(second, third), (fourth, segment.size)]
    assert segment.parts([b"two"], floor=second + 5) == [(second + 5, third), (fourth, segment.size)]
    assert segment.parts([b"one", b"two", b"three"], floor=third) == [(third, segment.size)]


def test_a_damaged_filter_says_nothing_or_that_all_is_present() -> None:
    """Protects against bits that the disk has lost, anywhere, and against a file that was written in part."""
    batches = persons(3, 300)
    batches[0][0] = batches[2][0] = b"one"
    segment = FilteredSegment(batches)
    encoded, expected = segment.encoded, segment.parts([b"one"])
    assert encoded is not None
    pages_at = HEAD_BYTES + 3 * SECTION_BYTES + 4
    for position in range(len(encoded)):
        segment.filesystem.write_bytes(PATH, encoded)
        segment.change(PATH, position)
        parts = segment.parts([b"one"])
        assert parts is None if position < pages_at else parts in (expected, [(0, segment.size)]), position
    for size in range(0, len(encoded), 7):
        segment.filesystem.write_bytes(PATH, encoded[:size])
        assert segment.parts([b"one"]) in (None, expected, [(0, segment.size)])


def test_a_filter_of_another_version_does_not_count() -> None:
    """Protects a person after an upgrade or its return: version 1 had one table of bits for a segment."""
    for version in (1, 3):
        segment = FilteredSegment([[b"one"]])
        assert segment.encoded is not None
        segment.change(PATH, VERSION_AT + 1, version)
        assert segment.parts([b"one"]) is None
        end = HEAD_BYTES + SECTION_BYTES
        content = segment.filesystem.read_bytes(PATH)
        sealed = content[:end] + key_filter.crc32c(content[:end]).to_bytes(4, "big") + content[end + 4 :]
        segment.filesystem.write_bytes(PATH, sealed)
        assert segment.parts([b"one"]) is None
        segment.change(PATH, VERSION_AT + 1, 2)
        segment.filesystem.write_bytes(PATH, segment.encoded)
        assert segment.parts([b"one"]) == [(0, segment.size)]


def test_bits_depend_on_the_secret() -> None:
    """Protects against clients that choose keys which collide, and files that could be compared with each other."""
    one = FilteredSegment([[b"person"]]).encoded
    other = FilteredSegment([[b"person"]], secret=bytes(16)).encoded
    assert one is not None
    assert other is not None
    assert one[-10:-4] != other[-10:-4]


def test_too_many_keys_make_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the memory of a search, also if a section has many records; keys that repeat count once in it."""
    monkeypatch.setattr(key_filter, "_HASHES_MAX", 500)
    monkeypatch.setattr(key_filter, "_UNSORTED_MAX", 100)
    assert FilteredSegment([[b"%d" % row for row in range(501)]]).encoded is None
    assert FilteredSegment([[b"%d" % row for row in range(500)] * 3]).encoded is not None
    assert FilteredSegment(persons(3, 200)).encoded is None
    assert FilteredSegment(persons(2, 250)).encoded is not None


def test_a_bucket_with_too_many_entries_has_every_key() -> None:
    """Protects a key whose bucket is full, which only a forged filter of equal hashes shows."""
    hashes = bytearray(b"".join(number.to_bytes(4, sys.byteorder) for number in range(256)))
    section = key_filter.Section(0, bytes(RECORD_BATCH_OVERHEAD), hashes)
    encoded = key_filter.encode_filter(SECRET, SegmentEnd(1, 0, bytes(RECORD_BATCH_OVERHEAD)), [section] * 2)
    assert encoded is not None
    page = encoded[HEAD_BYTES + 2 * SECTION_BYTES + 4 + 4 :]
    assert page[0] == 255
    assert len(page) == 64 + 4


def test_what_was_appended_since_is_always_read() -> None:
    """Protects a person whose record is behind what the filter of the active segment covers."""
    segment = FilteredSegment([[b"one"], [b"two"]])
    end = segment.size + 700
    segment.filesystem.write_bytes(LOG, segment.filesystem.read_bytes(LOG) + bytes(700))
    assert segment.parts([b"nobody"], size=end) == [(segment.size, end)]
    assert segment.parts([b"one"], size=end) == [(0, segment.starts[1]), (segment.size, end)]
    assert segment.parts([b"two"], size=end) == [(segment.starts[1], end)]
    assert segment.parts([b"nobody"], size=end, floor=segment.size + 9) == [(segment.size + 9, end)]
    segment.change(LOG, segment.starts[1] + 17)
    assert segment.parts([b"one"], size=end) is None, "the last batch that it covers was replaced"


def sections_of(segment: FilteredSegment) -> int:
    assert segment.encoded is not None
    return segment.encoded[99]


def test_a_segment_has_a_bounded_number_of_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the size of a filter, and the gain: a section is no smaller than it must be, nor larger."""
    batches: list[list[bytes | None]] = [[b"%03d" % number] for number in range(200)]
    size = FilteredSegment(batches[:1]).size
    assert 40 < sections_of(FilteredSegment(batches)) <= 64
    most = FilteredSegment(batches[:64])
    assert sections_of(most) == 64
    assert most.parts([b"000"]) == [(0, most.starts[1])]
    for minimum, expected in ((size, 20), (size + 1, 10), (2 * size, 10), (20 * size, 1), (1 << 20, 1)):
        monkeypatch.setattr(key_filter, "_SECTION_BYTES_MIN", minimum)
        assert sections_of(FilteredSegment(batches[:20])) == expected


def test_a_batch_that_can_not_be_read_makes_no_filter() -> None:
    """Protects a person whose key is in it, also when other batches follow."""
    batch = build_batch([(1, b"person", b"value", ())])
    header, records = read_batch_header(batch), batch[RECORD_BATCH_OVERHEAD:]
    for damaged in (records[:-1], records[:3]):
        builder = KeyFilterBuilder(SECRET, 1_000)
        builder.add(0, header, batch[:RECORD_BATCH_OVERHEAD], records)
        builder.add(100, header, batch[:RECORD_BATCH_OVERHEAD], damaged)
        builder.add(200, header, batch[:RECORD_BATCH_OVERHEAD], records)
        assert builder.encode(SegmentEnd(300, 200, batch[:RECORD_BATCH_OVERHEAD])) is None


def test_the_keys_of_all_sections_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_filter, "_HASHES_MAX", 500)
    monkeypatch.setattr(key_filter, "_UNSORTED_MAX", 100)
    for counts, is_built in (((250, 250), True), ((250, 251), False), ((1, 1, 499), False), ((166, 167, 167), True)):
        batches = [[b"%d-%d" % (number, row) for row in range(count)] for number, count in enumerate(counts)]
        assert (FilteredSegment(list(batches)).encoded is not None) == is_built, counts


def test_without_memory_or_the_compiled_form_there_is_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the segment is read."""
    whole = FilteredSegment([[b"one"], [b"two"]])
    genuine = native.compiled
    for missing in ("sort_hashes", "filter_pages"):
        names = {name: getattr(genuine, name) for name in ("add_hashes", "sort_hashes", "filter_pages")}
        stub = type("Stub", (), {name: staticmethod(each) for name, each in names.items()})
        setattr(stub, missing, staticmethod(lambda *_: None))
        monkeypatch.setattr(native, "compiled", stub)
        assert FilteredSegment([[b"one"], [b"two"]]).encoded is None
    monkeypatch.setattr(native, "compiled", None)
    assert FilteredSegment([[b"one"], [b"two"]]).encoded is None
    assert key_filter.encode_filter(SECRET, SegmentEnd(1, 0, bytes(RECORD_BATCH_OVERHEAD)), []) is None
    assert whole.parts([b"one"]) is None


def test_a_section_whose_beginning_was_freed_is_read_from_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first header is gone, so it can't be compared; the other sections still can."""
    size = FilteredSegment([[b"one"]]).size
    monkeypatch.setattr(key_filter, "_SECTION_BYTES_MIN", 2 * size)
    segment = FilteredSegment([[b"one"], [b"two"], [b"six"], [b"ten"]])
    content = segment.filesystem.read_bytes(LOG)
    segment.filesystem.write_bytes(LOG, bytes(size) + content[size:])
    assert segment.parts([b"two"], floor=size) == [(size, 2 * size)]
    assert segment.parts([b"ten"], floor=size) == [(2 * size, 4 * size)]
    assert segment.parts([b"ten"], floor=2 * size) == [(2 * size, 4 * size)]
    segment.change(LOG, 2 * size + 17)
    assert segment.parts([b"ten"], floor=2 * size) == [(2 * size, 4 * size)], "all that is left"
    assert segment.parts([b"ten"], floor=size) == [(size, 4 * size)]


def test_also_the_first_section_is_compared() -> None:
    segment = FilteredSegment([[b"one"], [b"two"]])
    segment.change(LOG, 17)
    assert segment.parts([b"one"]) == [(0, segment.size)]


def test_a_segment_without_keys_is_not_read() -> None:
    """Its pages have no entries."""
    assert FilteredSegment([[None], [None]]).parts([b"one"]) == []


def test_entries_are_read_as_they_are_written() -> None:
    """Two entries are three bytes, one alone is two; a full bucket has none, and may have every key."""
    counts = bytearray(64)
    counts[0], counts[1], counts[5], counts[6] = 255, 2, 1, 2
    page = bytes(counts) + bytes.fromhex("236145 89970c bc0d")
    found = [key_filter._entries_in(page, bucket) for bucket in range(7)]
    assert found == [None, [0x123, 0x456], [], [], [], [0x789], [0x0C9, 0xDBC]]


def test_a_full_bucket_may_have_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a forged filter has one. Other buckets of the page are read as before."""
    segment = FilteredSegment([[b"one"], [b"two"]])
    assert segment.parts([b"nobody"]) == []
    monkeypatch.setattr(key_filter, "_entries_in", lambda *_: None)
    assert segment.parts([b"nobody"]) == [(0, segment.size)]
