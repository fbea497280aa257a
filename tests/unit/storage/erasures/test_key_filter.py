"""The filter of a segment's keys: a present key is never called absent, and a filter of other bytes doesn't count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol import native
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, read_batch_header
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.erasures.key_filter import (
    KeyFilter,
    KeyFilterBuilder,
    key_filter_path,
    open_key_filter,
    remove_key_filter,
)

pytestmark = pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")

FOLDER = "/disk/t-0"
SECRET = bytes(range(16))
PATH = key_filter_path(FOLDER, 0)
BLOCKS_AT = 107


class FilteredSegment:
    """A segment on a memory disk with its filter."""

    def __init__(self, batches: list[list[bytes | None]], secret: bytes = SECRET, size: int = 1000) -> None:
        self.filesystem = MemoryFileSystem()
        self.filesystem.make_directories(FOLDER)
        builder, content, position = KeyFilterBuilder(secret, size), b"", 0
        for keys in batches:
            batch = build_batch([(1, key, b"value", ()) for key in keys], base_offset=0)
            builder.add(read_batch_header(batch), batch[RECORD_BATCH_OVERHEAD:])
            position, content = len(content), content + batch
        encoded = builder.encode(len(content), position, content[position : position + RECORD_BATCH_OVERHEAD])
        assert encoded is not None
        self.size = len(content)
        self.filesystem.write_bytes(f"{FOLDER}/0.log", content)
        self.filesystem.write_bytes(PATH, encoded)

    def open(self, size: int | None = None) -> KeyFilter | None:
        log_file = self.filesystem.open(f"{FOLDER}/0.log")
        return open_key_filter(self.filesystem, PATH, log_file, self.size if size is None else size)

    def change(self, path: str, position: int, byte: int | None = None) -> None:
        content = bytearray(self.filesystem.read_bytes(path))
        content[position] = content[position] ^ 0x41 if byte is None else byte
        self.filesystem.write_bytes(path, bytes(content))


@given(st.lists(st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=50), min_size=1, max_size=20))
def test_a_present_key_is_never_absent(batches: list[list[bytes | None]]) -> None:
    """Protects a person whose records would stay if the filter were wrong."""
    key_filter = FilteredSegment(batches).open()
    assert key_filter is not None
    keys = {key for batch in batches for key in batch if key is not None}
    assert key_filter.possible(keys) == keys


def test_most_absent_keys_are_told_apart() -> None:
    """Protects the gain: at most 3 % of other keys cause a segment to be read."""
    batches = [[b"person-%d" % number for number in range(start, start + 100)] for start in range(0, 20_000, 100)]
    segment = FilteredSegment(list(batches), size=1 << 20)
    key_filter = segment.open()
    assert key_filter is not None
    others = [b"other-%d" % number for number in range(10_000)]
    assert len(key_filter.possible(others)) < 300
    assert len(segment.filesystem.read_bytes(PATH)) < 20_000 * 4


def test_a_filter_counts_only_for_its_segment() -> None:
    """Protects against a stale filter: after a truncation or a rewrite other records are in a segment of that name."""
    segment = FilteredSegment([[b"one"], [b"two"]])
    assert segment.open() is not None
    assert segment.open(size=segment.size - 1) is None
    for field in (7, 15, 17):  # The offset, the leader epoch and the CRC of the last batch.
        segment = FilteredSegment([[b"one"], [b"two"]])
        segment.change(f"{FOLDER}/0.log", segment.size // 2 + field)
        assert segment.open() is None


def test_a_damaged_filter_says_nothing_or_that_all_is_present() -> None:
    """Protects against bits that the disk has lost."""
    for position in range(BLOCKS_AT):
        segment = FilteredSegment([[b"one"]])
        segment.change(PATH, position)
        assert segment.open() is None, position
    size = len(FilteredSegment([[b"one"]]).filesystem.read_bytes(PATH))
    for position in range(BLOCKS_AT, size):
        segment = FilteredSegment([[b"one"]])
        segment.change(PATH, position)
        key_filter = segment.open()
        assert key_filter is not None
        assert key_filter.possible([b"one"]) == {b"one"}, position
    segment = FilteredSegment([[b"one"]])
    segment.filesystem.write_bytes(PATH, segment.filesystem.read_bytes(PATH)[: BLOCKS_AT + 10])
    key_filter = segment.open()
    assert key_filter is not None
    assert key_filter.possible([b"one"]) == {b"one"}


def test_bits_depend_on_the_secret() -> None:
    """Protects against clients that choose keys which collide, and files that could be compared with each other."""
    one = FilteredSegment([[b"person"]]).filesystem.read_bytes(PATH)
    other = FilteredSegment([[b"person"]], secret=bytes(16)).filesystem.read_bytes(PATH)
    assert one[BLOCKS_AT:] != other[BLOCKS_AT:]


def test_too_many_keys_make_no_filter() -> None:
    """Protects the disk: a filter that calls nearly everything present is useless."""
    builder = KeyFilterBuilder(SECRET, 1000)
    batch = build_batch([(1, b"%d" % number, b"", ()) for number in range(30_000)], base_offset=0)
    header = read_batch_header(batch)
    builder.add(header, batch[RECORD_BATCH_OVERHEAD:])
    assert builder.encode(len(batch), 0, batch[:RECORD_BATCH_OVERHEAD]) is None


def test_a_filter_is_removed() -> None:
    """Protects erased keys, which an old filter still attests."""
    segment = FilteredSegment([[b"one"]])
    remove_key_filter(segment.filesystem, FOLDER, 0)
    assert segment.open() is None
    remove_key_filter(segment.filesystem, FOLDER, 0)
