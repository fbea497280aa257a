"""The whole file of the journal of log start offsets: its header, and a new one that begins with a snapshot.

Pure functions over bytes. `journal_reading` reads them. All integers are big-endian. The file has its full size
(`capacity`) from its first moment, zeros where nothing was written.

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

Frames follow from byte 512 on: see `journal_format`. A new layout gets a new version and keeps the magic; version 1
must then still be read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.types import FilePosition, Offset, TopicId
from lowtide.storage.log_start.journal_format import LogStartEntry, encode_frame

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
