"""Reads for a consumer that takes every batch for records: it gets neither erasures nor batches without records.

kafka-go hands control batches to the application as records, and ends the program at a batch without records. It
doesn't name itself. But like sarama, it sends 0 as its log start offset. All other consumers send -1, because only
followers have one.

It also stays at a compressed batch whose last records are erased: it reads the batch again and again. So such a batch
is left out too, if the fetch begins within it, behind its last record.

Other consumers get all batches, so their positions reach the end of the log. Here the answer has the fetch offset as
the end where no record is left. The ends of transactions are sent, as Apache Kafka sends them.

Source: kafka-go's `messageSetReader.readMessageV2` and `writeFetchRequestV10`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import iterate_records
from lowtide.protocol.types import NO_PRODUCER_ID
from lowtide.storage.errors import storage_error
from lowtide.storage.log.segments.segment_file import FileSlice, batches_of
from lowtide.storage.log.segments.segment_list import NOTHING_READ, LogRead

if TYPE_CHECKING:
    from lowtide.broker.partitions.fetch.fetch_targets import FetchTarget
    from lowtide.protocol.messages.fetch import PartitionData
    from lowtide.protocol.records import BatchHeader
    from lowtide.protocol.types import FilePosition, Offset
    from lowtide.storage.log.log import Log

SKIPPED_MAX: Final = 64
"""How many slices without a record a read skips: each has up to the size of an answer, or the rest of a segment."""

SEARCHED_MAX: Final = 4 << 20
"""The size of the largest batch that is searched for a record, also without its compression."""


def read_records_only(
    log: Log,
    target: FetchTarget,
    answer: PartitionData,
    maximum_bytes: int,
    end_offset: Offset,
    minimum_one_batch: bool,  # noqa: FBT001
) -> LogRead:
    """Reads as `Log.read`, and changes the ends in `answer` if no record is left. Errors: StorageError."""
    offset = target.fetch_offset
    for _ in range(SKIPPED_MAX):
        read = log.read(
            offset, maximum_bytes, end_offset=end_offset, minimum_one_batch=minimum_one_batch, seeks_records=True
        )
        if read.slice is None:
            return read
        begin = end = read.slice.position
        for position, header in batches_of(read.slice, str(log.topic_partition)):
            if _has_records(header) and (
                header.base_offset >= offset or _reaches(read.slice, position, header, offset)
            ):
                end = position + header.size_bytes
            elif end > begin:
                break
            else:
                begin = end = position + header.size_bytes
                offset = header.last_offset + 1
        if end > begin:
            return LogRead(FileSlice(read.slice.file, begin, end - begin, read.slice.token))
        if offset >= end_offset:
            if end_offset == answer.high_watermark:
                answer.high_watermark = answer.last_stable_offset = target.fetch_offset
            break
    return NOTHING_READ


def _has_records(header: BatchHeader) -> bool:
    """Returns whether a batch has records, or ends a transaction."""
    return header.record_count > 0 and not (header.is_control and header.producer_id == NO_PRODUCER_ID)


def _reaches(read: FileSlice, position: FilePosition, header: BatchHeader, offset: Offset) -> bool:
    """Returns whether a batch has a record at or above `offset`. A large or damaged one counts as if it had.

    Errors: StorageError.
    """
    if header.size_bytes > SEARCHED_MAX:
        return True
    try:
        batch = read.file.pread(header.size_bytes, position)
        return any(record.offset >= offset for record in iterate_records(batch, max_bytes=SEARCHED_MAX))
    except OSError as error:
        raise storage_error(read.file.path, error) from error
    except ProtocolError:
        return True
