"""The batches of a slice: their headers, and where they lie in its file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, BatchHeader, read_batch_header
from lowtide.storage.errors import DamagedSegmentError, storage_error

if TYPE_CHECKING:
    from lowtide.protocol.types import FilePosition
    from lowtide.storage.log.segments.segment_file import FileSlice

_WALK_BYTES: Final = 1 << 14


def batches_of(read: FileSlice, name: str) -> Iterator[tuple[FilePosition, BatchHeader]]:
    """Yields the headers of the whole batches of a slice, with their byte places.

    Leaves out a batch that is cut at the end. CRCs aren't checked. `name` is what an error calls the log. Errors:
    StorageError.
    """
    position, end = read.position, read.position + read.size
    while position + RECORD_BATCH_OVERHEAD <= end:
        try:
            chunk = read.file.pread(min(_WALK_BYTES, end - position), position)
        except OSError as error:
            raise storage_error(name, error) from error
        at = 0
        while at + RECORD_BATCH_OVERHEAD <= len(chunk):
            try:
                header = read_batch_header(chunk, at)
            except ProtocolError as error:
                raise DamagedSegmentError(name, f"no record batch begins at byte {position + at}: {error}") from error
            if header.size_bytes < RECORD_BATCH_OVERHEAD:
                raise DamagedSegmentError(name, f"no record batch begins at byte {position + at}")
            if position + at + header.size_bytes > end:
                return
            yield position + at, header
            at += header.size_bytes
        if at == 0:
            raise DamagedSegmentError(name, f"byte {position} can't be read")
        position += at
