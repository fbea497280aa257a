"""The bytes of the journal of log start offsets: its header, its frames, and what each kind of damage to them means.

Pure functions over bytes; `journal.py` moves them to and from the disk.

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

**What a reader may conclude.** At most one frame is under way at a time, and a frame is acknowledged only once it is
durable. So only the last frame can be incomplete, and that one was never acknowledged. A disk writes sectors of 512
bytes each whole or not at all (a cut at any byte is understood too). The marks have no zero byte and the entries have
no zero topic id, so each sector's piece of a written frame holds something that isn't zero. Hence

- a bad frame with a good one anywhere behind it was acknowledged: damage;
- a bad last frame in which a piece is missing (zero) is a torn write: dropped;
- a bad last frame in which no piece is missing was written whole and changed later: damage.

Damage is never read as "no entry". One loss can't be seen, that of all sectors of the last frame together: it looks as
if it was never written.

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

_MAGIC = b"LTLOGBEG"
_VERSION = 1
_HEADER = struct.Struct(">8sIIQIB3xI")
_CRC = struct.Struct(">I")
_FRAME_MARK = b"LSF1"
_END_MARK = b"LSF."
_FRAME_HEAD = struct.Struct(">4sIIQ")
_COUNT_AND_SEQUENCE = struct.Struct(">IQ")
_SEALED = struct.Struct(">IIQ")
_ENTRY = struct.Struct(">16siq")
_SEALED_ENTRY = struct.Struct(">IQ16siq4s")
"""The bytes that the checksum of a frame of one entry covers."""
FRAME_OVERHEAD = _FRAME_HEAD.size + len(_END_MARK)
ENTRY_BYTES = _ENTRY.size


class JournalDamageError(Exception):
    """Bytes that no crash leaves behind; the text says where and what."""


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
        sealed = _SEALED_ENTRY.pack(1, sequence, *entries[0], _END_MARK)
        return b"".join((_FRAME_MARK, _SEALED.pack(1, crc32c(sealed), sequence), sealed[_COUNT_AND_SEQUENCE.size :]))
    pack = _ENTRY.pack
    body = b"".join([pack(topic_id, partition, offset) for topic_id, partition, offset in entries])
    return b"".join((_FRAME_MARK, _sealed(len(entries), sequence, body), body, _END_MARK))


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


def decode_journal(image: bytes) -> JournalContent:
    """Reads a whole journal file. Errors: JournalDamageError, except for a torn last frame."""
    header = _decode_header(image)
    entries: dict[tuple[TopicId, int], Offset] = {}
    position = HEADER_BYTES
    sequence = header.first_sequence
    while True:
        frame = _frame_at(image, position)
        if frame is None:
            break
        found, end, frame_entries = frame
        if found != sequence:
            message = f"the frame at byte {position} has sequence {found} where {sequence} follows"
            raise JournalDamageError(message)
        apply_entries(entries, frame_entries)
        position = end
        sequence += 1
    if position < header.snapshot_end:
        message = f"the frame at byte {position} can't be read, though it was durable before the file got its name"
        raise JournalDamageError(message)
    torn = _check_tail(image, position)
    return JournalContent(header=header, entries=entries, end=position, next_sequence=sequence, torn=torn)


def apply_entries(state: dict[tuple[TopicId, int], Offset], entries: Iterable[LogStartEntry]) -> None:
    """Applies entries to `state`: the last one wins, whether larger or smaller."""
    for topic_id, partition, offset in entries:
        if offset == REMOVED:
            state.pop((topic_id, partition), None)
        else:
            state[topic_id, partition] = offset


def salvage_frames(image: bytes) -> list[tuple[int, list[LogStartEntry]]]:
    """Returns every readable frame, wherever it lies, as (sequence, entries) in order of sequence. For repair only."""
    found: dict[int, list[LogStartEntry]] = {}
    position = image.find(_FRAME_MARK)
    while position >= 0:
        frame = _frame_at(image, position)
        if frame is not None:
            found[frame[0]] = frame[2]
        position = image.find(_FRAME_MARK, position + 1 if frame is None else frame[1])
    return sorted(found.items())


def _sealed(count: int, sequence: int, body: bytes) -> bytes:
    crc = crc32c(b"".join((_COUNT_AND_SEQUENCE.pack(count, sequence), body, _END_MARK)))
    return _SEALED.pack(count, crc, sequence)


def _frame_at(image: bytes, position: FilePosition) -> tuple[int, FilePosition, list[LogStartEntry]] | None:
    """Returns sequence, end (exclusive) and entries of the good frame at `position`; None if there is none."""
    if position + FRAME_OVERHEAD > len(image):
        return None
    mark, count, _crc, sequence = _FRAME_HEAD.unpack_from(image, position)
    end = position + frame_bytes(count)
    if mark != _FRAME_MARK or count == 0 or end > len(image):
        return None
    body = image[position + _FRAME_HEAD.size : end - len(_END_MARK)]
    head = image[position + len(_FRAME_MARK) : position + _FRAME_HEAD.size]
    if not image.startswith(_END_MARK, end - len(_END_MARK)) or _sealed(count, sequence, body) != head:
        return None
    return sequence, end, list(_ENTRY.iter_unpack(body))


def _check_tail(image: bytes, position: FilePosition) -> bool:
    """Returns whether an incomplete frame lies at `position`, behind the last good one.

    Errors: JournalDamageError if that can't be the remains of one torn write.
    """
    written_end = len(image.rstrip(b"\0"))
    if written_end <= position:
        return False
    later = image.find(_FRAME_MARK, position + 1)
    while later >= 0:
        if _frame_at(image, later) is not None:
            message = f"the frame at byte {position} can't be read, and a good one follows at byte {later}"
            raise JournalDamageError(message)
        later = image.find(_FRAME_MARK, later + 1)
    if not _is_torn(image, position, written_end):
        message = f"the last frame, at byte {position}, was written whole and has changed since"
        raise JournalDamageError(message)
    return True


def _is_torn(image: bytes, position: FilePosition, written_end: FilePosition) -> bool:
    """Returns whether a frame with a missing piece lies from `position` to `written_end` (exclusive; then zeros)."""
    first_end = _sector_end(position)
    ends = image.endswith(_END_MARK, position, written_end)
    fits = (written_end - position - FRAME_OVERHEAD) % ENTRY_BYTES == 0
    if not any(image[position:first_end]):
        # The first sector's piece is missing. Unless the rest is the end of a frame that began here, older frames are
        # missing too.
        return fits or not ends
    present = image[position : min(written_end, first_end)]
    if not present.startswith(_FRAME_MARK[: len(present)]):
        return False
    count_end = position + len(_FRAME_MARK) + _CRC.size
    if written_end < count_end or (first_end < count_end and not any(image[first_end:count_end])):
        return True  # Cut within mark or count, or the second sector, with the rest of them, is missing.
    mark, count = (
        _FRAME_HEAD.unpack_from(image, position)[:2] if position + _FRAME_HEAD.size <= len(image) else (b"", 0)
    )
    frame_end = position + frame_bytes(count)
    if mark != _FRAME_MARK or count == 0 or frame_end > len(image) or written_end > frame_end:
        return False
    if fits and ends and not _has_zero_piece(image, position, written_end):
        return False  # Its count has changed: it ends, with its end mark, before the count says.
    return written_end < frame_end or _has_zero_piece(image, position, frame_end)


def _has_zero_piece(image: bytes, start: FilePosition, end: FilePosition) -> bool:
    """Returns whether one of the pieces into which sectors cut [start, end) is all zeros."""
    while start < end:
        piece_end = min(_sector_end(start), end)
        if not any(image[start:piece_end]):
            return True
        start = piece_end
    return False


def _sector_end(position: FilePosition) -> FilePosition:
    return (position // SECTOR_BYTES + 1) * SECTOR_BYTES


def _encode_header(header: JournalHeader) -> bytes:
    exported = header.exported_crc
    fields = _HEADER.pack(
        _MAGIC,
        _VERSION,
        header.capacity,
        header.first_sequence,
        header.snapshot_end,
        exported is not None,
        exported or 0,
    )
    return (fields + _CRC.pack(crc32c(fields))).ljust(HEADER_BYTES, b"\0")


def _decode_header(image: bytes) -> JournalHeader:
    if len(image) < HEADER_BYTES:
        message = f"the file has {len(image)} bytes, less than its header"
        raise JournalDamageError(message)
    magic, version, capacity, first_sequence, snapshot_end, has_export, exported_crc = _HEADER.unpack_from(image)
    if magic != _MAGIC:
        message = f"the file doesn't begin with {_MAGIC.decode()}"
        raise JournalDamageError(message)
    (crc,) = _CRC.unpack_from(image, _HEADER.size)
    if crc != crc32c(image[: _HEADER.size]) or any(image[_HEADER.size + _CRC.size : HEADER_BYTES]):
        message = "the header doesn't match its checksum"
        raise JournalDamageError(message)
    if version != _VERSION:
        message = f"the format's version is {version}, only {_VERSION} is known"
        raise JournalDamageError(message)
    if len(image) != capacity:
        message = f"the file has {len(image)} bytes instead of {capacity}"
        raise JournalDamageError(message)
    assert HEADER_BYTES <= snapshot_end <= capacity <= MAXIMUM_CAPACITY, (snapshot_end, capacity)
    return JournalHeader(
        capacity=capacity,
        first_sequence=first_sequence,
        snapshot_end=snapshot_end,
        exported_crc=exported_crc if has_export else None,
    )
