"""The frames of the journal of log start offsets: their bytes, and what they say. `journal_image` has the whole file.

Pure functions over bytes. All integers are big-endian. From byte 512 of the file on, each frame lies right behind the
one before:

    0    4   mark 4C 53 46 31 ("LSF1")
    4    4   number of entries, at least 1
    8    4   CRC-32C of the whole frame without the mark and this field
    12   8   sequence: one more than the frame before
    20   28n entries: topic id (16 bytes, not zero), partition (4), log start offset (8); offset -1 removes the entry
    20+28n 4 end mark 4C 53 46 2E ("LSF.")

>>> encode_frame(7, [(b"0123456789abcdef", 2, 300)]).hex(" ", 4)
'4c534631 00000001 5549716f 00000000 00000007 30313233 34353637 38396162 63646566 00000002 00000000 0000012c 4c53462e'
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.types import ZERO_TOPIC_ID, Offset, TopicId

LogStartEntry: TypeAlias = tuple[TopicId, int, Offset]
"""Topic id, partition, log start offset; the offset `REMOVED` removes the entry."""

REMOVED: Offset = -1

OnDurable: TypeAlias = Callable[[OSError | None], None]

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


class RequestedEntries(NamedTuple):
    """The entries of one caller, and what it wants called when they are durable."""

    entries: Sequence[LogStartEntry]
    on_durable: OnDurable


def entries_of(batch: Sequence[RequestedEntries]) -> Sequence[LogStartEntry]:
    """Returns the entries of several callers together."""
    return batch[0].entries if len(batch) == 1 else [entry for accepted in batch for entry in accepted.entries]


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
