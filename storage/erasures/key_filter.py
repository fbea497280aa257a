"""The filter of the keys of a segment, which spares a search from reading what has none of its keys.

A filter covers a segment from its beginning to the end of a batch; a search reads what was appended since. What it
covers has up to 64 sections, each of whole batches. The filter has a table of entries: the hash of a key chooses a
bucket of the table, and an entry there has other bits of the hash and the section that has the key. A key in many
sections has one entry for all of them, with more bits. The hash is keyed with a secret of the file, so clients can't
choose keys that collide. The file `<base offset>.keyfilter` is, big-endian:

| at        | bytes | content |
| --------- | ----- | ------- |
| 0         | 4     | "LTKF" |
| 4         | 2     | version, 2 |
| 6         | 16    | secret |
| 22        | 8     | bytes of the segment that it covers |
| 30        | 8     | position of the last batch that it covers |
| 38        | 61    | header of that batch |
| 99        | 1     | number of sections, s |
| 100       | 4     | number of buckets, b |
| 104       | 12    | each section: position of its first batch (8), CRC-32C of the header of that batch (4) |
| 104 + 12s | 4     | CRC-32C of what precedes |
| 108 + 12s | 4     | each page of 64 buckets: where it ends, from the end of this list on |
|           |       | each page: 64 numbers of entries (1 each), entries (12 bits each), CRC-32C (4) |

The hash is the lower 32 bits of SipHash-1-3. Its product with b, divided by 2**32, is the bucket. The upper bit of an
entry is 1 if the key may be in all sections; then the lower 11 bits of the hash follow. Otherwise the number of the
section has as many bits as s - 1 has, and as many of the lower bits of the hash as are left precede it. Two entries are
three bytes, of which the last one has the upper bits; one entry alone is two. A bucket with 255 for its number has no
entries, and may have every key. The CRC of a page is continued from the number of the page.

Two keys in three sections, the first one in all, the second one in section 1:

    >>> header, often, once = bytes(61), bytes.fromhex("00000040"), bytes.fromhex("12345678")
    >>> hashes = [often, often + once, often]
    >>> sections = [Section(2048 * number, header, bytearray(each)) for number, each in enumerate(hashes)]
    >>> encoded = encode_filter(bytes(16), SegmentEnd(6144, 4096, header), sections)
    >>> head = bytes.fromhex("4c544b46 0002") + bytes(16) + bytes.fromhex("0000000000001800 0000000000001000") + header
    >>> table = bytes.fromhex(
    ...     "03 00000001 0000000000000000 90af92e6 0000000000000800 90af92e6 0000000000001000 90af92e6 55f5ef0e"
    ... )
    >>> page = bytes.fromhex("02") + bytes(63) + bytes.fromhex("009804 c9a7596f")
    >>> encoded in (None, head + table + bytes.fromhex("00000047") + page)  # None without the compiled module
    True

Guards: it never says that a present key is absent. It counts only if the last batch that it covers is there, and a
section only if its first batch has that header: otherwise the whole segment is read. A damaged page may have
every key. A header has the CRC, the offset and the leader epoch: with the CRC alone, a producer that sends its last
batch again after a truncation could make an old filter valid. A missing or invalid filter, also one of another version,
means that the segment is read. A batch of the same offset and leader epoch
follows the same batches in every log, so that a segment which was cut and continued has another last batch. After a
segment was written again, its filter is invalid; it still attests erased keys, so `segment_swap.py` removes it together
with the old segment.

Only the compiled module has the hash: without it no filter is built or used.
"""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from lowtide.protocol import native
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, read_batch_header
from lowtide.storage.log.segments.segment_names import KEY_FILTER_SUFFIX, offset_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lowtide.protocol.primitives import Buffer
    from lowtide.protocol.records import BatchHeader
    from lowtide.protocol.types import FilePosition, Offset
    from lowtide.runtime.filesystem import File, FileSystem

SECRET_BYTES: Final = 16

_MAGIC: Final = b"LTKF"
_VERSION: Final = 2
_HEAD: Final = struct.Struct(f">4sh16sqq{RECORD_BATCH_OVERHEAD}sBI")
_SECTION: Final = struct.Struct(">qI")
_NUMBER: Final = struct.Struct(">I")
_CRC_BYTES: Final = _NUMBER.size

_SECTIONS_MAX: Final = 64
_EVERYWHERE: Final = 1 << 11
_PAGE_BUCKETS: Final = 64
_BUCKET_FULL: Final = 255
_PAGE_BYTES_MAX: Final = _PAGE_BUCKETS * (1 + _BUCKET_FULL * 3 // 2) + _CRC_BYTES

_SECTION_BYTES_MIN: Final = 1 << 20
_ENTRIES_PER_KEY: Final = 3
"""On average. If more were needed, the keys in most sections get one entry for all of them: then a filter has at most
39 bits for a key."""

_HASH_BYTES: Final = 4
_HASH_MASK: Final = (1 << 32) - 1
_HASHES_MAX: Final = 12 << 20
"""Of all sections together: 48 MiB."""
_UNSORTED_MAX: Final = 1 << 20
"""So many hashes are added to a section before it is sorted, and keys that are there twice are dropped."""


def key_filter_path(directory: str, base_offset: Offset) -> str:
    """Returns the path of a segment's filter."""
    return f"{directory}/{offset_name(base_offset)}{KEY_FILTER_SUFFIX}"


class Section(NamedTuple):
    """Some batches of a segment."""

    position: FilePosition
    """Of the first batch."""
    first: bytes
    """The header of that batch."""
    hashes: bytearray
    """Of the keys, as the compiled module writes them."""


class SegmentEnd(NamedTuple):
    """The end of what a filter covers, by which it is known to be of this segment."""

    size: int
    """The bytes of the segment that it covers."""
    position: FilePosition
    """Of the last batch."""
    last: bytes
    """The header of that batch."""


class KeyFilterBuilder:
    """Collects the keys of a segment's batches, which are added in their order."""

    def __init__(self, secret: bytes, segment_bytes: int) -> None:
        """`secret` has `SECRET_BYTES` and belongs to this file only."""
        assert len(secret) == SECRET_BYTES, len(secret)
        self._secret = secret
        self._section_bytes = max(_SECTION_BYTES_MIN, -(-segment_bytes // _SECTIONS_MAX))
        self._sections: list[Section] = []
        self._sorted = 0
        """The hashes of the last section that are sorted."""
        self._total = 0
        """The hashes of all sections, without those of the last section that aren't sorted."""
        self._is_whole = native.compiled is not None

    def add(self, position: FilePosition, header: BatchHeader, first: bytes, records: Buffer) -> None:
        """Adds the keys of a batch's uncompressed records. `first`: the bytes of its header."""
        if not self._is_whole:
            return
        assert native.compiled is not None
        if not self._sections or position - self._sections[-1].position >= self._section_bytes:
            self._sort()
            self._sorted = 0
            self._sections.append(Section(position, first, bytearray()))
        hashes = self._sections[-1].hashes
        added = native.compiled.add_hashes(hashes, self._secret, records, header.record_count)
        self._is_whole = self._is_whole and bool(added)
        if len(hashes) // _HASH_BYTES - self._sorted >= _UNSORTED_MAX:
            self._sort()

    def _sort(self) -> None:
        if not self._is_whole or not self._sections:
            return
        assert native.compiled is not None
        count = native.compiled.sort_hashes(self._sections[-1].hashes)
        if count is None:
            self._is_whole = False
            return
        self._total += count - self._sorted
        self._sorted = count
        if self._total > _HASHES_MAX:
            self._is_whole = False
            self._sections.clear()

    def encode(self, end: SegmentEnd) -> bytes | None:
        """Returns the file; None if a batch couldn't be read, or if there are too many keys."""
        self._sort()
        return encode_filter(self._secret, end, self._sections) if self._is_whole else None


def encode_filter(secret: bytes, end: SegmentEnd, sections: Sequence[Section]) -> bytes | None:
    """Returns the file of sections whose hashes are sorted; None without the compiled module."""
    if native.compiled is None:
        return None
    encoded = native.compiled.filter_pages(tuple(section.hashes for section in sections), _ENTRIES_PER_KEY)
    if encoded is None:
        return None
    buckets, pages = encoded
    head = _HEAD.pack(_MAGIC, _VERSION, secret, end.size, end.position, end.last, len(sections), buckets)
    head += b"".join(_SECTION.pack(section.position, crc32c(section.first)) for section in sections)
    ends = accumulate(len(page) + _CRC_BYTES for page in pages)
    parts = [head, _NUMBER.pack(crc32c(head)), *map(_NUMBER.pack, ends)]
    for number, page in enumerate(pages):
        parts += (page, _page_crc(number, page))
    return b"".join(parts)


def _page_crc(number: int, page: bytes) -> bytes:
    return _NUMBER.pack(crc32c(page, number))


class KeyFilter:
    """The valid filter of a segment."""

    def __init__(
        self,
        file: File,
        secret: bytes,
        buckets: int,
        sections: list[tuple[FilePosition, int]],
        sizes: tuple[int, int],
    ) -> None:
        """`sizes`: the bytes that it covers, and those of the segment."""
        self._file = file
        self._secret = secret
        self._buckets = buckets
        self._sections = sections
        """Position and CRC of each."""
        self._section_bits = max(len(sections) - 1, 0).bit_length()
        self.covered_bytes, self._segment_bytes = sizes
        self._pages_at = _HEAD.size + _SECTION.size * len(sections) + _CRC_BYTES

    def possible(
        self, keys: Iterable[bytes], log_file: File, floor: FilePosition = 0
    ) -> list[tuple[FilePosition, FilePosition]]:
        """Returns the parts of the segment that may have one of the keys, from a batch to where another begins.

        What it doesn't cover is one. `floor`: where the first batch begins that is still there. Errors: OSError.
        """
        uncovered = len(self._sections)
        numbers = self._numbers(keys) | {uncovered}
        bounds = [*(position for position, _ in self._sections), self.covered_bytes, self._segment_bytes]
        parts: list[tuple[FilePosition, FilePosition]] = []
        for number, (begin, end) in enumerate(pairwise(bounds)):
            if number not in numbers or end <= max(begin, floor):
                continue
            is_section = number < uncovered and begin >= floor
            if is_section and not _begins_with(log_file, begin, self._sections[number][1]):
                return [(floor, self._segment_bytes)]
            if parts and parts[-1][1] == begin:
                parts[-1] = (parts[-1][0], end)
            else:
                parts.append((max(begin, floor), end))
        return parts

    def _numbers(self, keys: Iterable[bytes]) -> set[int]:
        """Returns the numbers of the sections that may have one of the keys."""
        assert native.compiled is not None
        hashes = sorted({native.compiled.hash_key(self._secret, key)[0] & _HASH_MASK for key in keys})
        found: set[int] = set()
        number = -1
        page: bytes | None = None
        for hashed in hashes:
            bucket = hashed * self._buckets >> 32
            if bucket // _PAGE_BUCKETS != number:
                number = bucket // _PAGE_BUCKETS
                page = self._page(number)
            entries = None if page is None else _entries_in(page, bucket % _PAGE_BUCKETS)
            if entries is None or _EVERYWHERE | hashed & (_EVERYWHERE - 1) in entries:
                return set(range(len(self._sections)))
            first = hashed << self._section_bits & (_EVERYWHERE - 1)
            found.update(entry - first for entry in entries if first <= entry < first + len(self._sections))
        return found

    def _page(self, number: int) -> bytes | None:
        """Returns a page without its CRC; None if it is damaged."""
        ends = self._file.pread(2 * _NUMBER.size, self._pages_at + _NUMBER.size * (number - 1))
        if len(ends) < 2 * _NUMBER.size:
            return None
        begin, end = _NUMBER.unpack_from(ends)[0] if number else 0, _NUMBER.unpack_from(ends, _NUMBER.size)[0]
        if not _PAGE_BUCKETS + _CRC_BYTES <= end - begin <= _PAGE_BYTES_MAX:
            return None
        first = self._pages_at + _NUMBER.size * -(-self._buckets // _PAGE_BUCKETS)
        content = self._file.pread(end - begin, first + begin)
        page = content[:-_CRC_BYTES]
        return page if content[-_CRC_BYTES:] == _page_crc(number, page) else None

    def close(self) -> None:
        self._file.close()


def _entries_in(page: bytes, bucket: int) -> list[int] | None:
    """Returns the entries of a bucket; None if it may have every key."""
    if page[bucket] == _BUCKET_FULL:
        return None
    begin = sum(count for count in page[:bucket] if count != _BUCKET_FULL)
    return [_entry(page, number) for number in range(begin, begin + page[bucket])]


def _entry(page: bytes, number: int) -> int:
    at = _PAGE_BUCKETS + number * 3 // 2
    both = page[at] | page[at + 1] << 8
    return both >> 4 if number % 2 else both & 0xFFF


def open_key_filter(filesystem: FileSystem, path: str, log_file: File, segment_bytes: int) -> KeyFilter | None:
    """Returns the filter at `path` for a segment's `.log`; None if it is missing or was built for other bytes.

    It may cover less than the segment, to which more was appended.

    Errors: OSError.
    """
    if native.compiled is None:
        return None
    try:
        file = filesystem.open(path)
    except FileNotFoundError:
        return None
    head = file.pread(_HEAD.size + _SECTIONS_MAX * _SECTION.size + _CRC_BYTES, 0)
    if len(head) >= _HEAD.size:
        magic, version, secret, size, position, last, count, buckets = _HEAD.unpack_from(head)
        end = _HEAD.size + count * _SECTION.size
        if (
            (magic, version) == (_MAGIC, _VERSION)
            and size <= segment_bytes
            and head[end : end + _CRC_BYTES] == _NUMBER.pack(crc32c(head[:end]))
            and buckets > 0
            and _ends_with(log_file, size, position, last)
        ):
            sections = list(_SECTION.iter_unpack(head[_HEAD.size : end]))
            return KeyFilter(file, secret, buckets, sections, (size, segment_bytes))
    file.close()
    return None


def _begins_with(log_file: File, position: FilePosition, crc: int) -> bool:
    """Returns whether the header of the batch at `position` is that of the section that begins there."""
    return crc32c(log_file.pread(RECORD_BATCH_OVERHEAD, position)) == crc


def _ends_with(log_file: File, covered_bytes: int, position: FilePosition, last: bytes) -> bool:
    """Returns whether the last covered batch begins at `position` and has this header."""
    if not 0 <= position <= covered_bytes - RECORD_BATCH_OVERHEAD:
        return False
    is_last = position + read_batch_header(last).size_bytes == covered_bytes
    return is_last and log_file.pread(RECORD_BATCH_OVERHEAD, position) == last
