"""The bytes of the journal of log start offsets: its header and its frames.

Pure functions over bytes. `journal_reading` reads them, `journal` moves them to and from the disk.

**Layout**, all integers big-endian. The file has its full size (`capacity`) from its first moment, zeros where nothing
was written.

    0    8   magic "LTLOGBEG"
    8    4   version, 1
    12   4   capacity: size of the file in bytes
    16   8   sequence of the first frame
    24   4   end of the snapshot: frames that begin below it were durable before the file got its name
    28   1   1 if the next field is set
    29   3   zeros
    32   4   CRC-32C of the `log-start-offset-checkpoint` that was exported or adopted last
    36   4   CRC-32C of bytes 0-35
    40  472  zeros, so that no frame shares a sector with the header

and from 512 on frames, each right behind the one before:

    0    4   mark 4C 53 46 31 ("LSF1")
    4    4   number of entries, at least 1
    8    4   CRC-32C of the whole frame without the mark and this field
    12   8   sequence: one more than the frame before
    20   28n entries: topic id (16 bytes, not zero), partition (4), log start offset (8); offset -1 removes the entry
    20+28n 4 end mark 4C 53 46 2E ("LSF.")

>>> encode_frame(7, [(b"0123456789abcdef", 2, 300)]).hex(" ", 4)
'4c534631 00000001 5549716f 00000000 00000007 30313233 34353637 38396162 63646566 00000002 00000000 0000012c 4c53462e'

Another layout gets another version and magic stays; version 1 must then still be read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec
from crc32c import crc32c

from lowtide.protocol.types import ZERO_TOPIC_ID, FilePosition, Offset, TopicId

LogStartEntry: TypeAlias = tuple[TopicId, int, Offset]
"""Topic id, partition, log start offset; the offset `REMOVED` removes the entry."""

REMOVED: Offset = -1

JOURNAL_NAME = "lowtide-log-start.journal"

SECTOR_BYTES = 512
HEADER_BYTES = SECTOR_BYTES
MINIMUM_CAPACITY = 1 << 20
MAXIMUM_CAPACITY = 1 << 30
"""A journal of 38 million partitions; a header with more is damaged."""
SNAPSHOT_FRAME_ENTRIES = 4096
"""Entries in one frame of a snapshot: 112 KiB with one CRC."""

MAGIC = b"LTLOGBEG"
VERSION = 1
HEADER_STRUCT = struct.Struct(">8sIIQIB3xI")
CRC = struct.Struct(">I")
FRAME_MARK = b"LSF1"
END_MARK = b"LSF."
FRAME_HEAD = struct.Struct(">4sIIQ")
_COUNT_AND_SEQUENCE = struct.Struct(">IQ")
_SEALED = struct.Struct(">IIQ")
ENTRY = struct.Struct(">16siq")
_SEALED_ENTRY = struct.Struct(">IQ16siq4s")
"""The bytes that the checksum of a frame of one entry covers."""
FRAME_OVERHEAD = FRAME_HEAD.size + len(END_MARK)
ENTRY_BYTES = ENTRY.size


class JournalHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first sector."""

    capacity: int
    first_sequence: int
    snapshot_end: FilePosition
    exported_crc: int | None
    """CRC-32C of Kafka's checkpoint as it was last exported or adopted; None before the first export."""


class JournalContent(msgspec.Struct, frozen=True, kw_only=True):
    """A journal without damage."""

    header: JournalHeader
    entries: dict[tuple[TopicId, int], Offset]
    """The log start offset of each live entry: the last frame that names a partition wins."""
    end: FilePosition
    """Where the next frame goes."""
    next_sequence: int
    torn: bool
    """Whether an incomplete frame lies behind `end`. It must be wiped before anything is written there."""


def frame_bytes(entry_count: int) -> int:
    """Returns the size of a frame of that many entries."""
    return FRAME_OVERHEAD + entry_count * ENTRY_BYTES


def encode_frame(sequence: int, entries: Sequence[LogStartEntry]) -> bytes:
    """Returns one frame. The entries take effect in order."""
    assert entries, "a frame has at least one entry"
    if len(entries) == 1:
        content = _SEALED_ENTRY.pack(1, sequence, *entries[0], END_MARK)
        return b"".join((FRAME_MARK, _SEALED.pack(1, crc32c(content), sequence), content[_COUNT_AND_SEQUENCE.size :]))
    pack = ENTRY.pack
    body = b"".join([pack(topic_id, partition, offset) for topic_id, partition, offset in entries])
    return b"".join((FRAME_MARK, sealed(len(entries), sequence, body), body, END_MARK))


def check_entries(entries: Iterable[LogStartEntry]) -> None:
    """Asserts what the format relies on: whole, non-zero topic ids and offsets not below `REMOVED`."""
    for topic_id, partition, offset in entries:
        assert len(topic_id) == len(ZERO_TOPIC_ID), (topic_id, partition, offset)
        assert topic_id != ZERO_TOPIC_ID, (topic_id, partition, offset)
        assert partition >= 0, (topic_id, partition, offset)
        assert offset >= REMOVED, (topic_id, partition, offset)


def encode_journal(
    entries: Sequence[LogStartEntry],
    *,
    first_sequence: int,
    exported_crc: int | None,
    minimum_capacity: int = MINIMUM_CAPACITY,
) -> tuple[bytes, JournalContent]:
    """Returns a new journal whose first frames are a snapshot of `entries`, and its content.

    Its capacity is the smallest power of two, at least `minimum_capacity`, of which the snapshot takes at most a
    quarter.
    """
    frames = []
    sequence = first_sequence
    for start in range(0, len(entries), SNAPSHOT_FRAME_ENTRIES):
        frames.append(encode_frame(sequence, entries[start : start + SNAPSHOT_FRAME_ENTRIES]))
        sequence += 1
    end = HEADER_BYTES + sum(map(len, frames))
    capacity = max(minimum_capacity, 1 << (4 * end - 1).bit_length())
    header = JournalHeader(
        capacity=capacity, first_sequence=first_sequence, snapshot_end=end, exported_crc=exported_crc
    )
    image = b"".join((_encode_header(header), *frames, bytes(capacity - end)))
    live = {(topic_id, partition): offset for topic_id, partition, offset in entries}
    return image, JournalContent(header=header, entries=live, end=end, next_sequence=sequence, torn=False)


def apply_entries(state: dict[tuple[TopicId, int], Offset], entries: Iterable[LogStartEntry]) -> None:
    """Applies entries to `state`: the last one wins, whether larger or smaller."""
    for topic_id, partition, offset in entries:
        if offset == REMOVED:
            state.pop((topic_id, partition), None)
        else:
            state[topic_id, partition] = offset


def sealed(count: int, sequence: int, body: bytes) -> bytes:
    """Returns count, checksum and sequence of a frame with these entries."""
    crc = crc32c(b"".join((_COUNT_AND_SEQUENCE.pack(count, sequence), body, END_MARK)))
    return _SEALED.pack(count, crc, sequence)


def _encode_header(header: JournalHeader) -> bytes:
    exported = header.exported_crc
    fields = HEADER_STRUCT.pack(
        MAGIC,
        VERSION,
        header.capacity,
        header.first_sequence,
        header.snapshot_end,
        exported is not None,
        exported or 0,
    )
    return (fields + CRC.pack(crc32c(fields))).ljust(HEADER_BYTES, b"\0")
