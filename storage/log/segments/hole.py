"""A hole: the beginning of a segment whose records are all deleted, without its bytes.

In the `.log` file it is an empty record batch (no records, as compaction leaves them) that begins at byte 0, with the
segment's base offset, and ends where the first kept batch begins. Behind its header lie zeros, for which the file
system keeps no blocks. Each reader of the format, including Kafka's tools, skips a hole by one header.

Its CRC is that of a batch with all those zeros. After a power cut some blocks may still have old bytes: then the
checksum of the bytes is wrong, but that of header and zeros is right, and that makes a batch a hole here. The inside is
never looked at.

    >>> hole = Hole(base_offset=100, next_offset=250, size=4096, leader_epoch=3)
    >>> decode_hole(hole.encode(), 100) == hole
    True
    >>> decode_hole(hole.encode(), 101) is None
    True

`directory_holes.py` decides which bytes become one, and when.

Source: Kafka's DefaultRecordBatch.writeEmptyHeader; "How does one combine CRCs", zlib's crc32_combine (Mark Adler), for
checksums of zeros.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Final

import msgspec

from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.records import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER_STRUCT,
    CURRENT_MAGIC,
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
)
from lowtide.protocol.types import LeaderEpoch, Offset
from lowtide.runtime.filesystem import File, FileSystem

HOLE_HEADER_BYTES: Final = RECORD_BATCH_OVERHEAD
"""The part of a hole that isn't zeros."""

_CRC_POSITION: Final = 17
_NONE: Final = -1
_BITS: Final = 32
_POLYNOMIAL: Final = 0x82F63B78
"""CRC-32C's, reflected."""


class Hole(msgspec.Struct, frozen=True, gc=False):
    """The first `size` bytes of a segment, with the offsets from `base_offset` up to `next_offset` (exclusive)."""

    base_offset: Offset
    next_offset: Offset
    size: int
    leader_epoch: LeaderEpoch
    """Of the first batch behind it, or else the log's latest."""
    gap: int = 0
    """How many offsets are missing before the first batch behind it, as compaction leaves them. Only notes have it."""

    def encode(self) -> bytes:
        """Returns the header of the empty batch."""
        assert self.size >= HOLE_HEADER_BYTES, self
        assert self.next_offset > self.base_offset, self
        last_delta = self.next_offset - self.base_offset - 1
        length = self.size - LOG_OVERHEAD
        fields = (self.base_offset, length, self.leader_epoch, CURRENT_MAGIC)
        rest = (0, last_delta, _NONE, _NONE, _NONE, _NONE, _NONE, 0)
        covered = BATCH_HEADER_STRUCT.pack(*fields, 0, *rest)[ATTRIBUTES_POSITION:]
        return BATCH_HEADER_STRUCT.pack(*fields, crc_with_zeros(crc32c(covered), self.size - HOLE_HEADER_BYTES), *rest)


def decode_hole(head: bytes, base_offset: Offset) -> Hole | None:
    """Returns the hole at the beginning of the segment at `base_offset`; None if there is none."""
    if len(head) < HOLE_HEADER_BYTES:
        return None
    found, length, epoch, magic, _crc, _attributes, delta, *_rest, count = BATCH_HEADER_STRUCT.unpack_from(head)
    if (
        found != base_offset
        or magic != CURRENT_MAGIC
        or count
        or delta < 0
        or length + LOG_OVERHEAD < HOLE_HEADER_BYTES
    ):
        return None
    hole = Hole(found, found + delta + 1, length + LOG_OVERHEAD, epoch)
    return hole if hole.encode() == head[:HOLE_HEADER_BYTES] else None


def crc_with_zeros(crc: int, count: int) -> int:
    """Returns the CRC-32C of bytes with the CRC `crc` and `count` zeros after them.

    >>> crc_with_zeros(crc32c(b"tide"), 5000) == crc32c(b"tide" + bytes(5000))
    True
    """
    register = crc ^ 0xFFFFFFFF
    power = 0
    while count:
        if count & 1:
            register = _times(_zeros_operator(power), register)
        count >>= 1
        power += 1
    return register ^ 0xFFFFFFFF


@functools.cache
def _zeros_operator(power: int) -> tuple[int, ...]:
    """Returns what 2 ** `power` zero bytes do to the register: a matrix over GF(2), by columns."""
    if power:
        half = _zeros_operator(power - 1)
        return tuple(_times(half, column) for column in half)
    columns = []
    for bit in range(_BITS):
        register = 1 << bit
        for _ in range(8):
            register = register >> 1 ^ (_POLYNOMIAL if register & 1 else 0)
        columns.append(register)
    return tuple(columns)


def _times(matrix: tuple[int, ...], vector: int) -> int:
    product = 0
    for column in matrix:
        if vector & 1:
            product ^= column
        vector >>= 1
    return product


_LARGEST_BLOCK: Final = 1 << 16
"""A hole that grows begins with the block in which it ended, of which it had only a part."""


class PendingHole:
    """A hole to be made in the `.log` file at `path`. A lock lets the loop give it up while a worker makes it."""

    __slots__ = ("_is_wanted", "_lock", "_path", "hole", "is_half_made", "readers", "start")

    def __init__(self, path: str, hole: Hole, start: int, readers: tuple[weakref.ref[File], ...]) -> None:
        """The bytes before `start` are zeros already."""
        self._path = path
        self._lock = threading.Lock()
        self._is_wanted = True
        self.hole = hole
        self.start = start
        self.readers = readers
        self.is_half_made = False
        """Whether the bytes are gone and the header is still missing."""

    def is_read(self) -> bool:
        """Returns whether a read that began before the delete may still need these bytes."""
        return any(file() is not None for file in self.readers)

    def make(self, filesystem: FileSystem) -> None:
        """Makes the hole, in a worker; it may be repeated.

        Errors: OSError, CannotPunchError; after one that passes it is called again.
        """
        with self._lock:
            if not self._is_wanted:
                return
            file = filesystem.open(self._path, write=True)
            begin = max(self.start - self.start % _LARGEST_BLOCK, HOLE_HEADER_BYTES)
            if begin < self.hole.size:
                file.punch(begin, self.hole.size - begin)
                self.is_half_made = True
            file.pwritev([self.hole.encode()], 0)
            self.is_half_made = False

    def stop(self) -> bool:
        """Gives the hole up, unless it is half made. Returns whether it was given up."""
        with self._lock:
            self._is_wanted = self.is_half_made
            return not self._is_wanted

    def abandon(self) -> None:
        """Gives the hole up. Waits for a worker that is making it."""
        with self._lock:
            self._is_wanted = False
