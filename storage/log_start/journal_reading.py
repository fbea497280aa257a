"""Reads the bytes of a journal of log start offsets, and tells a torn write from damage.

At most one frame is under way at a time, and a frame is acknowledged only once it is
durable. So only the last frame can be incomplete, and that one was never acknowledged. A disk writes sectors of 512
bytes each whole or not at all (a cut at any byte is understood too). The marks have no zero byte and the entries have
no zero topic id, so each sector's piece of a written frame holds something that isn't zero. Hence

- a bad frame with a good one anywhere behind it was acknowledged: damage;
- a bad last frame in which a piece is missing (zero) is a torn write: dropped;
- a bad last frame in which no piece is missing was written whole and changed later: damage.

Damage is never read as "no entry". One loss can't be seen, that of all sectors of the last frame together: it looks as
if it was never written.

Pure functions over bytes. `journal_format` has the layout.
"""

from __future__ import annotations

from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.types import FilePosition, Offset, TopicId
from lowtide.storage.log_start.journal_format import (
    END_MARK,
    ENTRY,
    ENTRY_BYTES,
    FRAME_HEAD,
    FRAME_MARK,
    FRAME_OVERHEAD,
    LogStartEntry,
    apply_entries,
    frame_bytes,
    sealed,
)
from lowtide.storage.log_start.journal_image import (
    CRC,
    HEADER_BYTES,
    HEADER_STRUCT,
    MAGIC,
    MAXIMUM_CAPACITY,
    SECTOR_BYTES,
    VERSION,
    JournalContent,
    JournalHeader,
)


class JournalDamageError(Exception):
    """Bytes that no crash leaves behind; the text says where and what."""


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


def salvage_frames(image: bytes) -> list[tuple[int, list[LogStartEntry]]]:
    """Returns every readable frame, wherever it lies, as (sequence, entries) in order of sequence. For repair only."""
    found: dict[int, list[LogStartEntry]] = {}
    position = image.find(FRAME_MARK)
    while position >= 0:
        frame = _frame_at(image, position)
        if frame is not None:
            found[frame[0]] = frame[2]
        position = image.find(FRAME_MARK, position + 1 if frame is None else frame[1])
    return sorted(found.items())


def _frame_at(image: bytes, position: FilePosition) -> tuple[int, FilePosition, list[LogStartEntry]] | None:
    """Returns sequence, end (exclusive) and entries of the good frame at `position`; None if there is none."""
    if position + FRAME_OVERHEAD > len(image):
        return None
    mark, count, _crc, sequence = FRAME_HEAD.unpack_from(image, position)
    end = position + frame_bytes(count)
    if mark != FRAME_MARK or count == 0 or end > len(image):
        return None
    body = image[position + FRAME_HEAD.size : end - len(END_MARK)]
    head = image[position + len(FRAME_MARK) : position + FRAME_HEAD.size]
    if not image.startswith(END_MARK, end - len(END_MARK)) or sealed(count, sequence, body) != head:
        return None
    return sequence, end, list(ENTRY.iter_unpack(body))


def _check_tail(image: bytes, position: FilePosition) -> bool:
    """Returns whether an incomplete frame lies at `position`, behind the last good one.

    Errors: JournalDamageError if that can't be the remains of one torn write.
    """
    written_end = len(image.rstrip(b"\0"))
    if written_end <= position:
        return False
    later = image.find(FRAME_MARK, position + 1)
    while later >= 0:
        if _frame_at(image, later) is not None:
            message = f"the frame at byte {position} can't be read, and a good one follows at byte {later}"
            raise JournalDamageError(message)
        later = image.find(FRAME_MARK, later + 1)
    if not _is_torn(image, position, written_end):
        message = f"the last frame, at byte {position}, was written whole and has changed since"
        raise JournalDamageError(message)
    return True


def _is_torn(image: bytes, position: FilePosition, written_end: FilePosition) -> bool:
    """Returns whether a frame with a missing piece lies from `position` to `written_end` (exclusive; then zeros)."""
    first_end = _sector_end(position)
    ends = image.endswith(END_MARK, position, written_end)
    fits = (written_end - position - FRAME_OVERHEAD) % ENTRY_BYTES == 0
    if not any(image[position:first_end]):
        # The first sector's piece is missing. Unless the rest is the end of a frame that began here, older frames are
        # missing too.
        return fits or not ends
    present = image[position : min(written_end, first_end)]
    if not present.startswith(FRAME_MARK[: len(present)]):
        return False
    count_end = position + len(FRAME_MARK) + CRC.size
    if written_end < count_end or (first_end < count_end and not any(image[first_end:count_end])):
        return True  # Cut within mark or count, or the second sector, with the rest of them, is missing.
    mark, count = FRAME_HEAD.unpack_from(image, position)[:2] if position + FRAME_HEAD.size <= len(image) else (b"", 0)
    frame_end = position + frame_bytes(count)
    if mark != FRAME_MARK or count == 0 or frame_end > len(image) or written_end > frame_end:
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


def _decode_header(image: bytes) -> JournalHeader:
    if len(image) < HEADER_BYTES:
        message = f"the file has {len(image)} bytes, less than its header"
        raise JournalDamageError(message)
    magic, version, capacity, first_sequence, snapshot_end, has_export, exported_crc = HEADER_STRUCT.unpack_from(image)
    if magic != MAGIC:
        message = f"the file doesn't begin with {MAGIC.decode()}"
        raise JournalDamageError(message)
    (crc,) = CRC.unpack_from(image, HEADER_STRUCT.size)
    if crc != crc32c(image[: HEADER_STRUCT.size]) or any(image[HEADER_STRUCT.size + CRC.size : HEADER_BYTES]):
        message = "the header doesn't match its checksum"
        raise JournalDamageError(message)
    if version != VERSION:
        message = f"the format's version is {version}, only {VERSION} is known"
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
