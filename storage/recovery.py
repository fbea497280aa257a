"""Checks every byte of a segment after an unclean stop.

Its cost must be that of reading and of CRC-32C: headers are unpacked in one call, nothing is copied, and no object is made per batch.

Source: Kafka's LogSegment.recover.
"""

from __future__ import annotations

from typing import Final

import msgspec
from crc32c import crc32c

from lowtide.protocol.records import ATTRIBUTES_POSITION, BATCH_HEADER_STRUCT, CURRENT_MAGIC, LOG_OVERHEAD, RECORD_BATCH_OVERHEAD
from lowtide.protocol.types import FilePosition, Offset
from lowtide.runtime.filesystem import File
from lowtide.storage.errors import storage_error
from lowtide.storage.index import MAX_RELATIVE_OFFSET
from lowtide.storage.leader_epochs import LeaderEpochs
from lowtide.storage.segment import Segment

_CHUNK_BYTES: Final = 1 << 20
"""Read at once. A batch that is larger is read and checksummed in pieces."""


class CheckedSegment(msgspec.Struct, gc=False):
    """How far a segment is sound: so many bytes of whole batches, which end before `next_offset`. `reason` is what stopped the check."""

    valid_bytes: int
    next_offset: Offset
    reason: str | None


def check_segment(segment: Segment, epochs: LeaderEpochs, interval_bytes: int) -> CheckedSegment:
    """Checks a closed segment from its first byte, builds its indexes anew, and notes the leader epochs of its batches.

    Epochs that are said to begin in this segment or later are forgotten first: the batches' own word counts. The segment isn't changed;
    the caller cuts it. Errors: StorageError when reading fails.
    """
    epochs.truncate_from_end(segment.base_offset)
    segment.reset_indexes()
    note_batch, unpack = segment.note_batch, BATCH_HEADER_STRUCT.unpack_from
    file, size = segment.file, segment.size
    buffer = memoryview(bytearray(min(_CHUNK_BYTES, max(size, 1))))
    expected, largest = segment.base_offset, segment.base_offset + MAX_RELATIVE_OFFSET
    position = 0
    reason = None
    while position < size and reason is None:
        chunk = buffer[: _read(file, buffer[: size - position], position)]
        at = 0
        while True:
            if len(chunk) - at < RECORD_BATCH_OVERHEAD:
                if position + len(chunk) >= size and at < len(chunk):
                    reason = "the last batch is cut in its header"
                break
            base_offset, length, epoch, magic, crc, _, delta, _, max_timestamp, _, _, _, _ = unpack(chunk, at)
            end = at + length + LOG_OVERHEAD
            last_offset = base_offset + delta
            if magic != CURRENT_MAGIC or end - at < RECORD_BATCH_OVERHEAD or base_offset < expected or delta < 0 or last_offset > largest:
                reason = "no record batch begins here"
                break
            if position + end > size:
                reason = "the last batch is cut"
                break
            if end <= len(chunk):
                found_crc = crc32c(chunk[at + ATTRIBUTES_POSITION : end])
            elif at:
                break
            else:
                found_crc = _crc_in_pieces(file, position, length + LOG_OVERHEAD, buffer)
            if found_crc != crc:
                reason = "the batch's CRC is wrong"
                break
            note_batch(last_offset, position + at, end - at, max_timestamp, interval_bytes)
            if epoch > epochs.latest:
                epochs.assign(epoch, base_offset)
            expected = last_offset + 1
            at = end
            if end > len(chunk):
                break
        if at == 0 and reason is None:
            # The file is shorter than it was a moment ago.
            reason = "the file ends early"
        position += at
    segment.indexes[1].maybe_append(segment.max_timestamp, segment.max_timestamp_offset)
    return CheckedSegment(position, expected, reason and f"{segment.path}, byte {position}: {reason}")


def _read(file: File, buffer: memoryview, position: FilePosition) -> int:
    try:
        return file.preadv([buffer], position)
    except OSError as error:
        raise storage_error(file.path, error) from error


def _crc_in_pieces(file: File, position: FilePosition, size: int, buffer: memoryview) -> int:
    """The CRC of a batch that is larger than the buffer, which is overwritten."""
    crc, done = 0, ATTRIBUTES_POSITION
    while done < size:
        got = _read(file, buffer[: size - done], position + done)
        if got == 0:
            break
        crc = crc32c(buffer[:got], crc)
        done += got
    return crc
