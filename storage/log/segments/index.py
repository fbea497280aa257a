"""The two sparse indexes of a segment, in memory: offset -> byte place, and timestamp -> offset.

They only save scanning: everything in them can be rebuilt from the batches, and a reader checks what it finds at the
place they name. They hold one entry for each `index.interval.bytes` of batches or so. The files have no checksum.

`<base>.index`, entries of 8 bytes, big-endian:

    0  int32  last offset of a batch, minus the segment's base offset
    4  int32  byte place of that batch in the .log file

`<base>.timeindex`, entries of 12 bytes, big-endian:

    0  int64  largest timestamp in the segment up to and with that batch
    8  int32  last offset of the batch that has this timestamp, minus the base offset

Valid: whole entries; offsets (and places, and timestamps) strictly rise, offsets of a time index may stay equal.
Trailing zeros are no entries: Kafka preallocates these files and trims them only at a clean stop. A file that isn't
valid is rebuilt, never an error.

>>> index = OffsetIndex(base_offset=100)
>>> index.append(115, 4160)
>>> index.append(131, 8320)
>>> index.encode().hex()
'0000000f000010400000001f00002080'
>>> index.lookup(120)
4160

Sources: Kafka's OffsetIndex, TimeIndex, AbstractIndex.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from operator import lt
from struct import Struct

from lowtide.protocol.types import NO_TIMESTAMP, FilePosition, Offset
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.errors import storage_error
from lowtide.storage.log.segments.segment_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX

MAX_RELATIVE_OFFSET = 2**31 - 1
OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12

_TIME_ENTRY = Struct(">qi")
_SWAP = sys.byteorder == "little"


class OffsetIndex:
    """Offset -> byte place for one segment."""

    __slots__ = ("_positions", "base_offset", "relative_offsets")

    def __init__(self, base_offset: Offset) -> None:
        self.base_offset = base_offset
        self.relative_offsets = array("i")
        self._positions = array("i")

    def __len__(self) -> int:
        return len(self.relative_offsets)

    @property
    def size_bytes(self) -> int:
        """The length of the encoded file."""
        return len(self.relative_offsets) * OFFSET_ENTRY_BYTES

    @property
    def last_offset(self) -> Offset:
        """The last offset with an entry; the base offset if there is none."""
        return self.base_offset + self.relative_offsets[-1] if self.relative_offsets else self.base_offset

    @property
    def last_position(self) -> FilePosition:
        """The byte place of the last entry, 0 if there is none."""
        return self._positions[-1] if self._positions else 0

    def append(self, last_offset: Offset, position: FilePosition) -> None:
        """Adds the batch at `position` whose last offset is `last_offset`; both are above all that is there."""
        self.relative_offsets.append(last_offset - self.base_offset)
        self._positions.append(position)

    def lookup(self, offset: Offset) -> FilePosition:
        """Returns a place from which a forward scan meets the batch that holds `offset` (or the first one after it)."""
        found = bisect_right(self.relative_offsets, offset - self.base_offset)
        return self._positions[found - 1] if found else 0

    def around(self, offset: Offset) -> tuple[Offset, FilePosition, FilePosition]:
        """Returns the last entry that ends at or before `offset`, and the byte place of the next one.

        As (last offset, byte place, next byte place): before the first entry the first two are the base offset minus
        one and 0; after the last entry the third is -1.
        """
        relative = offset - self.base_offset
        found = bisect_right(self.relative_offsets, relative)
        after = self._positions[found] if found < len(self._positions) else -1
        if found == 0:
            return self.base_offset - 1, 0, after
        return self.base_offset + self.relative_offsets[found - 1], self._positions[found - 1], after

    def place_before(self, position: FilePosition, entries: int) -> FilePosition:
        """Returns the byte place this many entries before `position`, or 0: a batch begins there."""
        found = bisect_left(self._positions, position) - entries
        return self._positions[found] if found > 0 else 0

    def offset_at(self, position: FilePosition) -> Offset | None:
        """Returns an offset above all that lies before `position`, by the first entry from there on, if any."""
        found = bisect_left(self._positions, position)
        return self.base_offset + self.relative_offsets[found] if found < len(self.relative_offsets) else None

    def drop_before(self, position: FilePosition) -> None:
        """Drops the entries of batches that begin before `position`: they are in a hole."""
        gone = bisect_left(self._positions, position)
        del self.relative_offsets[:gone], self._positions[:gone]

    def move(self, moves: Sequence[tuple[FilePosition, int]], gone: AbstractSet[FilePosition] = frozenset()) -> None:
        """Moves batches in the file and drops the entries of those that are gone.

        `moves` are old byte places in rising order; from each of them on, up to the next one, batches move by so many
        bytes. `gone` are old byte places.
        """
        offsets, positions = array("i"), array("i")
        ends = [bisect_left(self._positions, place) for place, _ in moves] + [len(self._positions)]
        for (_, by), begin, end in zip(moves, ends[:-1], ends[1:], strict=True):
            old = self._positions[begin:end]
            offsets.extend(
                offset for offset, place in zip(self.relative_offsets[begin:end], old, strict=True) if place not in gone
            )
            positions.extend(place + by for place in old if place not in gone)
        self.relative_offsets, self._positions = offsets, positions

    def truncate(self, end_offset: Offset) -> None:
        """Drops the entries of batches that end at or after `end_offset` (exclusive end of what stays)."""
        keep = bisect_left(self.relative_offsets, end_offset - self.base_offset)
        del self.relative_offsets[keep:], self._positions[keep:]

    def encode(self) -> bytes:
        """Returns the file's bytes."""
        both = array("i", bytes(self.size_bytes))
        both[0::2] = self.relative_offsets
        both[1::2] = self._positions
        if _SWAP:
            both.byteswap()
        return both.tobytes()

    @classmethod
    def decode(cls, content: bytes, base_offset: Offset, log_size: int) -> OffsetIndex | None:
        """Returns the index in a file; None if it isn't valid for a `.log` file of `log_size` bytes."""
        if len(content) % OFFSET_ENTRY_BYTES:
            return None
        both = array("i", _without_trailing_zeros(content, OFFSET_ENTRY_BYTES))
        if _SWAP:
            both.byteswap()
        index = cls(base_offset)
        index.relative_offsets, index._positions = both[0::2], both[1::2]
        return index if index._is_valid(log_size) else None

    def _is_valid(self, log_size: int) -> bool:
        offsets, positions = self.relative_offsets, self._positions
        if not offsets:
            return True
        return (
            offsets[0] >= 0 and positions[0] >= 0 and positions[-1] < log_size and _rises(offsets) and _rises(positions)
        )


class TimeIndex:
    """Timestamp -> offset for one segment."""

    __slots__ = ("_timestamps", "base_offset", "relative_offsets")

    def __init__(self, base_offset: Offset) -> None:
        self.base_offset = base_offset
        self._timestamps = array("q")
        self.relative_offsets = array("i")

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def size_bytes(self) -> int:
        """The length of the encoded file."""
        return len(self._timestamps) * TIME_ENTRY_BYTES

    @property
    def last_entry(self) -> tuple[int, Offset]:
        """(timestamp, offset) of the last entry; (-1, base offset) if there is none."""
        if not self._timestamps:
            return NO_TIMESTAMP, self.base_offset
        return self._timestamps[-1], self.base_offset + self.relative_offsets[-1]

    def maybe_append(self, timestamp_ms: int, offset: Offset) -> bool:
        """Adds an entry if `timestamp_ms` is above all others. Returns whether it did."""
        if timestamp_ms <= (self._timestamps[-1] if self._timestamps else NO_TIMESTAMP):
            return False
        self._timestamps.append(timestamp_ms)
        self.relative_offsets.append(offset - self.base_offset)
        return True

    def clear(self) -> None:
        """Drops all entries."""
        del self._timestamps[:], self.relative_offsets[:]

    def entry_below(self, timestamp_ms: int) -> tuple[int, Offset]:
        """Returns the last entry whose timestamp is below `timestamp_ms`; (-1, base offset) if there is none.

        From its offset on a forward scan finds a timestamp of at least `timestamp_ms`.
        """
        found = bisect_left(self._timestamps, timestamp_ms)
        if not found:
            return NO_TIMESTAMP, self.base_offset
        return self._timestamps[found - 1], self.base_offset + self.relative_offsets[found - 1]

    def drop_before(self, offset: Offset) -> None:
        """Drops the entries for offsets before `offset`, which are in a hole.

        Their largest timestamp bounds the rest, and stays.
        """
        gone = bisect_left(self.relative_offsets, offset - self.base_offset)
        largest, _ = self.last_entry
        del self.relative_offsets[:gone], self._timestamps[:gone]
        if gone and not self._timestamps:
            self.maybe_append(largest, offset)

    def truncate(self, end_offset: Offset) -> None:
        """Drops the entries for offsets at or after `end_offset` (exclusive end of what stays)."""
        keep = bisect_left(self.relative_offsets, end_offset - self.base_offset)
        del self.relative_offsets[keep:], self._timestamps[keep:]

    def encode(self) -> bytes:
        """Returns the file's bytes."""
        return b"".join(map(_TIME_ENTRY.pack, self._timestamps, self.relative_offsets))

    @classmethod
    def decode(cls, content: bytes, base_offset: Offset) -> TimeIndex | None:
        """Returns the index in a file; None if it isn't valid."""
        if len(content) % TIME_ENTRY_BYTES:
            return None
        index = cls(base_offset)
        for timestamp_ms, relative in _TIME_ENTRY.iter_unpack(_without_trailing_zeros(content, TIME_ENTRY_BYTES)):
            index._timestamps.append(timestamp_ms)
            index.relative_offsets.append(relative)
        return index if index._is_valid() else None

    def _is_valid(self) -> bool:
        timestamps, offsets = self._timestamps, self.relative_offsets
        if not timestamps:
            return True
        return timestamps[0] >= 0 and offsets[0] >= 0 and _rises(timestamps) and list(offsets) == sorted(offsets)


def _without_trailing_zeros(content: bytes, entry_bytes: int) -> bytes:
    """Returns the entries up to the last one that isn't all zeros."""
    used = len(content.rstrip(b"\0"))
    return content[: -(-used // entry_bytes) * entry_bytes]


def _rises(values: array[int]) -> bool:
    return all(map(lt, values, values[1:]))


def read_indexes(
    filesystem: FileSystem, stem: str, base_offset: Offset, log_size: int
) -> tuple[OffsetIndex, TimeIndex] | None:
    """Reads the index files of a segment; None if one is missing or invalid. Errors: StorageError."""
    try:
        offsets = OffsetIndex.decode(filesystem.read_bytes(stem + INDEX_SUFFIX), base_offset, log_size)
        times = TimeIndex.decode(filesystem.read_bytes(stem + TIME_INDEX_SUFFIX), base_offset)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(stem, error) from error
    return None if offsets is None or times is None else (offsets, times)
