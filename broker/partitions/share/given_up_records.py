"""Reads the keys and values of records that a share group gives up, for their dead letters.

The worker reads and decompresses, one batch at a time. A record that can't be read is skipped: it was deleted by
compaction, erased, or its batch is damaged or too large. While it isn't known whether a record is erased, it is read
later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.broker.promises import future_of
from lowtide.protocol.compression import Compression
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, BatchHeader, check_crc, iterate_batches, read_record
from lowtide.storage.errors import storage_error
from lowtide.storage.log.timestamps import DECOMPRESSED_BYTES_MAX
from lowtide.storage.log.validation.decompression_room import RoomUsedUpError

if TYPE_CHECKING:
    from lowtide.broker.partitions.batch_lane import BatchLane
    from lowtide.broker.partitions.share.share_values import GivenUpRange
    from lowtide.protocol.types import Offset
    from lowtide.storage.log.log import Log
    from lowtide.storage.log.segments.segment_file import FileSlice, SliceToken
    from lowtide.storage.log.validation.decompression_room import DecompressionRoom

READ_BYTES: Final = 1 << 20
"""The bytes of the log that are read at a time, except for a single larger batch."""

Content = tuple[bytes | None, bytes | None]
"""The key and value of a record."""


class GivenUpContents(msgspec.Struct):
    """The keys and values of the records up to `last_offset` (inclusive). Others may come with the next read."""

    last_offset: Offset
    contents: Mapping[Offset, Content] = {}
    is_current: Callable[[], bool] = lambda: True
    """Returns whether all of these records are still in the log, neither erased nor truncated since they were read."""


async def read_contents(
    log: Log, given_up: Sequence[GivenUpRange], bytes_max: int, lane: BatchLane
) -> GivenUpContents | None:
    """Returns the contents of the first records of these ranges, of about `bytes_max` bytes at most.

    Returns None if they can't be read now: the log was truncated, deleted or erased meanwhile, or it isn't known yet
    whether they are committed or erased. Errors: StorageError.
    """
    first_offset = given_up[0].first_offset
    read = log.read(first_offset, READ_BYTES, end_offset=log.high_watermark)
    if read.slice is None:
        readable_end = log.erasures.readable_end(log.high_watermark, log.high_watermark)
        is_held_back = readable_end < log.high_watermark or first_offset >= readable_end
        is_later = is_held_back and first_offset < log.log_end_offset
        return None if is_later else GivenUpContents(given_up[-1].last_offset)
    task = lane.begin(DECOMPRESSED_BYTES_MAX)
    outcome: GivenUpContents | BaseException = await future_of(
        partial(task.submit, partial(_read, read.slice, given_up, bytes_max))
    )
    if isinstance(outcome, OSError):
        raise storage_error(log.directory, outcome) from outcome
    if isinstance(outcome, ProtocolError):  # A damaged header.
        return GivenUpContents(given_up[-1].last_offset)
    if isinstance(outcome, BaseException):
        raise outcome
    outcome.is_current = partial(_is_current, log, read.slice.token, outcome.contents)
    return outcome if outcome.is_current() else None


def _is_current(log: Log, token: SliceToken, contents: Mapping[Offset, Content]) -> bool:
    hidden = log.erasures.hidden(log.high_watermark)
    return token.valid and not any(map(hidden.contains, contents))


def _read(
    read: FileSlice, given_up: Sequence[GivenUpRange], bytes_max: int, room: DecompressionRoom
) -> GivenUpContents:
    """Runs in the worker."""
    content = memoryview(read.file.pread(read.size, read.position))
    found: dict[Offset, Content] = {}
    first_offset, last_offset = given_up[0].first_offset, given_up[-1].last_offset
    done_offset, left = first_offset - 1, bytes_max
    for position, header in iterate_batches(content):
        if header.base_offset > last_offset:
            return GivenUpContents(last_offset, found)
        wanted = [each for each in given_up if _overlaps(header, each)]
        try:
            for offset, record in _contents(content[position : position + header.size_bytes], header, wanted, room):
                if left <= 0:
                    return GivenUpContents(offset - 1, found)
                found[offset] = record
                left -= len(record[0] or b"") + len(record[1] or b"")
        except RoomUsedUpError:
            if done_offset >= first_offset:
                break  # The next read begins with this batch.
        except ProtocolError:
            pass  # Damaged, or too large.
        done_offset = header.last_offset
    return GivenUpContents(min(done_offset, last_offset) if done_offset >= first_offset else last_offset, found)


def _overlaps(header: BatchHeader, given_up: GivenUpRange) -> bool:
    return given_up.first_offset <= header.last_offset and header.base_offset <= given_up.last_offset


def _contents(
    batch: memoryview, header: BatchHeader, wanted: Sequence[GivenUpRange], room: DecompressionRoom
) -> Iterator[tuple[Offset, Content]]:
    """Yields offset, key and value of the wanted records of a batch. Errors: ProtocolError."""
    if not wanted:
        return
    if not check_crc(batch, 0, header):
        raise ProtocolError(f"the batch at offset {header.base_offset} has a wrong CRC")
    payload = batch[RECORD_BATCH_OVERHEAD:]
    if header.compression is not Compression.NONE:
        payload = room.decompress(header.compression, payload, DECOMPRESSED_BYTES_MAX)
    position = 0
    for _ in range(header.record_count):
        record, position = read_record(payload, position, header.base_offset, header.base_timestamp)
        if record.offset > wanted[-1].last_offset:
            return
        if any(each.first_offset <= record.offset <= each.last_offset for each in wanted):
            yield record.offset, (record.key, record.value)
