"""Reads the batches of a segment's file, valid or not, and finds damage.

It reads one batch at a time and changes nothing. After damage it looks for the next batch with a correct CRC; it does
not guess.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import (
    CURRENT_MAGIC,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    RECORD_BATCH_OVERHEAD,
    SMALLEST_BATCH_LENGTH,
    BatchHeader,
    check_crc,
    iterate_records,
    read_batch_header,
)
from lowtide.protocol.types import FilePosition, Offset
from lowtide.runtime.filesystem import File

BATCH_BYTES_MAX: Final = 256 << 20
"""A larger batch counts as damage; a request of Kafka has at most 100 MiB."""

RECORD_BYTES_MAX: Final = 256 << 20
"""The largest decompressed batch that is read."""

_CHUNK_BYTES: Final = 1 << 20
_LENGTH: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedBatch:
    """A batch and its bytes. A batch with a `fault` still has a known end."""

    position: FilePosition
    header: BatchHeader
    content: bytes
    fault: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Bytes from `position` to `end` (exclusive) that are not batches."""

    position: FilePosition
    end: FilePosition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwritten:
    """Zeros from `position` to `end` (exclusive), the end of a preallocated file."""

    position: FilePosition
    end: FilePosition


def dump_batches(
    file: File, size: int, base_offset: Offset, *, check_records: bool
) -> Iterator[DumpedBatch | Damage | Unwritten]:
    """Yields the contents of the first `size` bytes of a segment that begins at `base_offset`. Errors: OSError.

    `check_records` decodes every record, which takes a hundred times as long as the CRC.
    """
    position, next_offset = 0, base_offset
    while position < size:
        found = _batch_at(file, position, size)
        if isinstance(found, DumpedBatch) and found.fault is not None and not _something_follows(file, found, size):
            found = found.fault
        if isinstance(found, DumpedBatch):
            header, fault = found.header, found.fault
            if fault is None and header.base_offset < next_offset:
                fault = f"it begins at offset {header.base_offset}, but {next_offset} or a later one must follow"
            yield DumpedBatch(
                position=position,
                header=header,
                content=found.content,
                fault=fault or (_fault_of_records(found) if check_records else None),
            )
            position += header.size_bytes
            next_offset = max(next_offset, header.next_offset)
            continue
        if _only_zeros(file, position, size):
            yield Unwritten(position=position, end=size)
            return
        end = _next_sound(file, position + 1, size)
        yield Damage(position=position, end=end, reason=found)
        position = end


def _batch_at(file: File, position: FilePosition, size: int) -> DumpedBatch | str:
    """Returns the batch at `position`, or why there is none."""
    left = size - position
    head = file.pread(RECORD_BATCH_OVERHEAD, position)
    if len(head) < RECORD_BATCH_OVERHEAD or left < RECORD_BATCH_OVERHEAD:
        return f"a batch is cut in its header: {left} of {RECORD_BATCH_OVERHEAD} bytes exist"
    header = read_batch_header(head)
    if header.magic in (0, 1):
        return f"magic is {header.magic}: the format before Kafka 0.11, which is not supported"
    if header.magic != CURRENT_MAGIC:
        return f"no batch begins here: magic is {header.magic} instead of {CURRENT_MAGIC}"
    if not SMALLEST_BATCH_LENGTH <= header.batch_length <= BATCH_BYTES_MAX - LOG_OVERHEAD:
        return f"no batch begins here: its length would be {header.batch_length}"
    if header.size_bytes > left:
        return f"a batch is cut: {left} of {header.size_bytes} bytes exist"
    content = file.pread(header.size_bytes, position)
    fault = None if check_crc(content, 0, header) else "the CRC is wrong"
    return DumpedBatch(position=position, header=header, content=content, fault=fault)


def _something_follows(file: File, batch: DumpedBatch, size: int) -> bool:
    """Returns whether the length of a batch with a wrong CRC is plausible.

    The file ends after it, or a batch follows.
    """
    end = batch.position + batch.header.size_bytes
    return end == size or isinstance(_batch_at(file, end, size), DumpedBatch)


def _fault_of_records(batch: DumpedBatch) -> str | None:
    """Returns the fault of the records in a batch with a correct CRC."""
    try:
        for _ in iterate_records(batch.content, max_bytes=RECORD_BYTES_MAX):
            pass
    except ProtocolError as error:
        return f"its records can't be read: {error}"
    return None


def _only_zeros(file: File, position: FilePosition, size: int) -> bool:
    while position < size:
        chunk = file.pread(min(_CHUNK_BYTES, size - position), position)
        if not chunk or chunk.count(0) != len(chunk):
            return False
        position += len(chunk)
    return True


def _next_sound(file: File, position: FilePosition, size: int) -> FilePosition:
    """Returns the position of the next batch with a correct CRC, or the end of the file."""
    while position + RECORD_BATCH_OVERHEAD <= size:
        chunk = file.pread(min(_CHUNK_BYTES, size - position), position)
        if len(chunk) < RECORD_BATCH_OVERHEAD:
            return size
        last = len(chunk) - RECORD_BATCH_OVERHEAD
        at = chunk.find(CURRENT_MAGIC, MAGIC_POSITION)
        while 0 <= at - MAGIC_POSITION <= last:
            start = at - MAGIC_POSITION
            (length,) = _LENGTH.unpack_from(chunk, start + 8)
            if SMALLEST_BATCH_LENGTH <= length <= size - position - start - LOG_OVERHEAD and chunk[start] < 1 << 7:
                found = _batch_at(file, position + start, size)
                if isinstance(found, DumpedBatch) and found.fault is None:
                    return position + start
            at = chunk.find(CURRENT_MAGIC, at + 1)
        position += last + 1
    return size
