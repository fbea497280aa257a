"""Why a producer's batch is refused. The reason is determined once a check of `validator.py` has failed.

The order of the reasons, and the error codes, are Kafka's; `validator.py` lists the differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.protocol.compression import Buffer, Compression
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import (
    ATTRIBUTES_POSITION,
    COMPRESSION_BITS,
    CURRENT_MAGIC,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    SMALLEST_BATCH_LENGTH,
    TIMESTAMP_TYPE_BIT,
    read_batch_header,
    read_record,
    read_varint,
)
from lowtide.protocol.types import NO_TIMESTAMP
from lowtide.storage.log.validation.validation_rules import MAX_RECORDS, ValidationRules

if TYPE_CHECKING:
    from collections.abc import Iterator

_SMALLEST_MESSAGE_LENGTH = 14
"""The shortest length that Kafka's splitter of record sets accepts, that of an empty magic 0 message (`LegacyRecord`).
"""

_BYTES_UP_TO_MAGIC = MAGIC_POSITION + 1

_SMALLEST_RECORD_BYTES = 7
"""A record without key, value and headers."""

_MAX_RECORD_ERRORS = 1000
"""Record errors reported for one batch. Kafka has no bound, and the answer to a batch of empty records could be larger
than it.
"""

_MIN_INT64 = -(2**63)
_MAX_INT64 = 2**63 - 1


class Rejection(msgspec.Struct, gc=False):
    """Why a batch is refused.

    `record_errors` has the numbers of records in the batch. With `found_in_log` the answer has the log start offset;
    otherwise -1, as in Kafka for errors found before records are read.
    """

    error_code: ErrorCode
    error_message: str | None = None
    record_errors: tuple[tuple[int, str | None], ...] = ()
    found_in_log: bool = False


class RecordStep(msgspec.Struct, gc=False):
    """The fields of a record that decide whether it is refused."""

    timestamp_delta: int
    offset_delta: int
    keyless: bool


def iterate_steps(records: Buffer, count: int) -> Iterator[RecordStep]:
    """Yields the fields of each record, slowly. The records are sound: they were walked before."""
    position = 0
    for _ in range(count):
        record, position = read_record(records, position, 0, 0)
        yield RecordStep(record.timestamp, record.offset, record.key is None)


def rejected(code: ErrorCode, message: str, *, found_in_log: bool = False) -> Rejection:
    """Returns the refusal of the batch as a whole."""
    return Rejection(code, message, (), found_in_log)


def _set_lengths(records: Buffer) -> Iterator[tuple[int, int] | Rejection]:
    """Yields `(magic, attributes)` of each whole message of a record set, and a Rejection if it cannot be split.

    A cut message ends the set without an error, as do at most eleven trailing bytes (`ByteBufferLogInputStream`).
    """
    position = 0
    while len(records) - position >= LOG_OVERHEAD:
        length = int.from_bytes(records[position + 8 : position + LOG_OVERHEAD], "big", signed=True)
        if length < _SMALLEST_MESSAGE_LENGTH:
            yield rejected(ErrorCode.CORRUPT_MESSAGE, f"the batch length {length} is below the smallest possible")
            return
        if len(records) - position < _BYTES_UP_TO_MAGIC:
            return
        magic = records[position + MAGIC_POSITION]
        if magic > CURRENT_MAGIC:
            yield rejected(ErrorCode.CORRUPT_MESSAGE, f"magic {magic} does not exist")
            return
        end = position + LOG_OVERHEAD + length
        if end > len(records):
            return
        attributes = records[position + ATTRIBUTES_POSITION + 1] if length > ATTRIBUTES_POSITION else 0
        yield magic, attributes
        position = end


def reject_set(records: Buffer, rules: ValidationRules) -> Rejection | None:  # noqa: PLR0911 - one return per verdict
    """Returns the fault of a record set as a whole, in the order of `ProduceRequest.validateRecords`.

    Returns None for one v2 batch.
    """
    messages = _set_lengths(records)
    first = next(messages, None)
    if first is None:
        return rejected(ErrorCode.INVALID_RECORD, "the records hold no whole batch")
    if isinstance(first, Rejection):
        return first
    magic, attributes = first
    if magic != CURRENT_MAGIC:
        return rejected(ErrorCode.INVALID_RECORD, f"only batches of magic 2 are allowed, not {magic}")
    if attributes & COMPRESSION_BITS == Compression.ZSTD and not rules.allow_zstd:
        return rejected(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or newer")
    second = next(messages, None)
    if isinstance(second, Rejection):
        return second
    if second is not None:
        return rejected(ErrorCode.INVALID_RECORD, "the records hold more than one batch")
    length = int.from_bytes(records[8:LOG_OVERHEAD], "big")
    if length < SMALLEST_BATCH_LENGTH:
        return rejected(ErrorCode.CORRUPT_MESSAGE, f"the batch length {length} is shorter than a batch's header")
    return None


def reject_header(view: memoryview, rules: ValidationRules) -> Rejection:
    """Returns which check of the batch's header failed, in Kafka's order (`UnifiedLog.append`, `LogValidator`)."""
    header = read_batch_header(view)
    size, count, last = header.size_bytes, header.record_count, header.last_offset_delta
    if header.base_offset != 0:
        return rejected(
            ErrorCode.INVALID_RECORD, f"the base offset is {header.base_offset} instead of 0", found_in_log=True
        )
    if size > rules.max_message_bytes:
        return rejected(
            ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {size} bytes, at most {rules.max_message_bytes} are allowed"
        )
    if crc32c(view[ATTRIBUTES_POSITION:size]) != header.crc:
        return rejected(ErrorCode.CORRUPT_MESSAGE, "the CRC is wrong")
    if last < 0 or count <= 0 or last + 1 != count:
        reason = f"the last offset delta {last} does not fit {count} records"
    elif count > MAX_RECORDS and (header.attributes & COMPRESSION_BITS or count * _SMALLEST_RECORD_BYTES <= size):
        return rejected(
            ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {count} records, at most {MAX_RECORDS} are allowed"
        )
    elif count > MAX_RECORDS:
        reason = f"{count} records do not fit into {size} bytes"
    elif header.is_control:
        reason = "clients may not write control batches"
    elif header.producer_id >= 0 and header.base_sequence < 0:
        reason = (
            f"the base sequence {header.base_sequence} is negative although producer id {header.producer_id} is given"
        )
    else:
        assert header.attributes & COMPRESSION_BITS > Compression.ZSTD, header
        reason = f"compression codec {header.attributes & COMPRESSION_BITS} does not exist"
    return rejected(ErrorCode.INVALID_RECORD, reason, found_in_log=True)


def reject_records(
    payload: Buffer, count: int, rules: ValidationRules, base_timestamp: int, attributes: int, now_ms: int
) -> Rejection | None:
    """Returns the records of a sound batch that are refused here: too large, without key, out of time; or None."""
    if attributes & COMPRESSION_BITS and len(payload) > rules.max_record_bytes:
        rejection = _reject_large(payload, count, rules.max_record_bytes)
        if rejection is not None:
            return rejection
    code = ErrorCode.INVALID_RECORD
    errors: list[tuple[int, str | None]] = []
    for index, step in enumerate(iterate_steps(payload, count)):
        if step.keyless and rules.compacted:
            errors.append((index, "a compacted topic needs a key in every record"))
        else:
            reason = _timestamp_fault(step, base_timestamp, attributes, rules, now_ms)
            if reason is None:
                continue
            code = ErrorCode.INVALID_TIMESTAMP
            errors.append((index, reason))
        if len(errors) == _MAX_RECORD_ERRORS:
            break
    if not errors:
        return None
    message = (
        "records have timestamps that are not allowed" if code is ErrorCode.INVALID_TIMESTAMP else "records lack a key"
    )
    return Rejection(code, message, tuple(errors), found_in_log=True)


def _reject_large(payload: Buffer, count: int, bytes_max: int) -> Rejection | None:
    """Returns the rejection of a sound batch with records of more than `bytes_max` bytes; None if it has none.

    The bytes of a record's length field do not count.
    """
    errors: list[tuple[int, str | None]] = []
    position = 0
    for index in range(count):
        size, position = read_varint(payload, position)
        position += size
        if size > bytes_max and len(errors) < _MAX_RECORD_ERRORS:
            errors.append((index, f"the record has {size} bytes; allowed are {bytes_max}"))
    if not errors:
        return None
    message = "records are larger than max.decompressed.message.bytes allows"
    return Rejection(ErrorCode.INVALID_RECORD, message, tuple(errors), found_in_log=True)


def _timestamp_fault(
    step: RecordStep, base_timestamp: int, attributes: int, rules: ValidationRules, now_ms: int
) -> str | None:
    timestamp = base_timestamp + step.timestamp_delta
    if not _MIN_INT64 <= timestamp <= _MAX_INT64:
        return f"timestamp {timestamp} has more than 64 bits"
    if rules.timestamp_type == "create" and timestamp != NO_TIMESTAMP:
        oldest, newest = now_ms - rules.timestamp_before_max_ms, now_ms + rules.timestamp_after_max_ms
        return None if oldest <= timestamp <= newest else f"timestamp {timestamp} is not within [{oldest}, {newest}]"
    return "producers may not set the timestamp type LogAppendTime" if attributes & TIMESTAMP_TYPE_BIT else None
