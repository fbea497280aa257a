"""The checks between the wire and the log, of a producer's records and of stored batches.

Invariant: any Kafka client can read every batch that `validate_produce` accepts: its CRC is right, its records fill it
exactly, their offset deltas are 0, 1, 2, ..., and its max timestamp is the largest of its records.

The order of the checks, and the error codes, are Kafka's (`ProduceRequest.validateRecords`, `UnifiedLog.append`,
`LogValidator`), except that a client's mistake is never UNKNOWN_SERVER_ERROR: records that cannot be parsed, broken
compression and unknown codecs get INVALID_RECORD. Clients would retry CORRUPT_MESSAGE, but the CRC was right, so
another attempt fails the same way.

Also unlike Kafka, offset deltas that are not consecutive are corrected in uncompressed batches too (Kafka: only in
compressed ones); the answer is the same, and no two records share an offset.

It checks no sequences or producer epochs (`producer_state`) and assigns no offsets (`log`). It copies records only if a
batch is rewritten. The walk over the records is in `record_walk`, the limits in `validation_rules`, the reasons of a
refusal in `rejections`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec
from crc32c import crc32c

from lowtide.protocol import native
from lowtide.protocol.compression import Buffer, Compression, DecompressedTooLargeError, compress, decompress
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.records import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER_STRUCT,
    COMPRESSION_BITS,
    CONTROL_BIT,
    CURRENT_MAGIC,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    RECORD_BATCH_OVERHEAD,
    SMALLEST_BATCH_LENGTH,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from lowtide.protocol.types import NO_TIMESTAMP
from lowtide.storage.log.validation.decompression_room import RoomUsedUpError
from lowtide.storage.log.validation.record_walk import (
    HEADERS_MAX,
    RecordWalk,
    TooManyHeadersError,
    renumber_records,
    walk_records,
)
from lowtide.storage.log.validation.rejections import Rejection, reject_header, reject_records, reject_set, rejected
from lowtide.storage.log.validation.validation_rules import MAX_RECORDS, TARGET_CODECS, ValidationRules

if TYPE_CHECKING:
    from lowtide.storage.log.validation.decompression_room import DecompressionRoom

_MIN_INT64 = -(2**63)
_MAX_INT64 = 2**63 - 1

_TAIL_HEADER_STRUCT = struct.Struct(">bIhiqqqhii")
"""The header from the magic on."""

_TOO_SHORT = "the batch is shorter than a header"

_unpack_header = BATCH_HEADER_STRUCT.unpack_from

_ZSTD = int(Compression.ZSTD)
"""The last codec, as a plain number: comparing one with an enumeration's member costs four times as much."""


class ValidatedBatch(msgspec.Struct, gc=False):
    """A batch that may be appended.

    `tail` has its bytes from the magic (position 16) on; the log writes base offset, batch length (`size_bytes` - 12)
    and leader epoch before them. Its parts may be views of the request's buffer, and must be written before that is
    reused. `max_timestamp` is the stored one; the first record with it is `offset_delta_of_max_timestamp` after the
    base offset. `decompressed_bytes` is the decompressed size of its records; 0 if they were not compressed.
    """

    size_bytes: int
    last_offset_delta: int
    record_count: int
    max_timestamp: int
    offset_delta_of_max_timestamp: int
    base_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int
    tail: tuple[Buffer, ...]
    decompressed_bytes: int = 0

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)


def validate_produce(  # noqa: PLR0911 - the hot path: a sound batch passes through here and two calls
    records: Buffer | None, rules: ValidationRules, now_ms: int, room: DecompressionRoom | None = None
) -> ValidatedBatch | Rejection | None:
    """Checks the records that a client sent to one partition. Returns one sound batch, or the reason of a refusal.

    `now_ms` is wall-clock time, for the timestamps' bounds and for LogAppendTime. Returns None if the check takes
    longer than the rules allow. A thread decompresses into `room`; the result doesn't refer to it. Errors: none are
    raised for anything a client can send. Source: KIP-98, `LogValidator`.
    """
    if records is None or len(records) < RECORD_BATCH_OVERHEAD:
        return reject_set(records or b"", rules) or rejected(ErrorCode.CORRUPT_MESSAGE, _TOO_SHORT)
    (base_offset, batch_length, _, magic, crc, attributes, last_offset_delta, base_timestamp, max_timestamp,
     producer_id, producer_epoch, base_sequence, record_count) = _unpack_header(records)  # fmt: skip
    size = batch_length + LOG_OVERHEAD
    codec = attributes & COMPRESSION_BITS
    is_suspect = size != len(records) or magic != CURRENT_MAGIC or batch_length < SMALLEST_BATCH_LENGTH
    if is_suspect or (codec == _ZSTD and not rules.allow_zstd):
        rejection = reject_set(records, rules)
        if rejection is not None:
            return rejection
    view = memoryview(records)
    # One test for what nearly every batch passes; the reason is looked for afterwards.
    if (
        base_offset != 0
        or size > rules.max_message_bytes
        or crc32c(view[ATTRIBUTES_POSITION:size]) != crc
        or last_offset_delta + 1 != record_count
        or not 0 < record_count <= MAX_RECORDS
        or attributes & CONTROL_BIT
        or (producer_id >= 0 and base_sequence < 0)
        or codec > _ZSTD
    ):
        return reject_header(view, rules)
    if record_count > rules.quick_records:
        return None
    payload: Buffer = view[RECORD_BATCH_OVERHEAD:size]
    try:
        if codec:
            payload = _decompressed(codec, payload, rules, room)
        found = native.compiled.walk_records(payload, record_count) if native.compiled is not None else None
        walk = walk_records(payload, record_count, rules.quick_headers) if found is None else RecordWalk(*found)
    except ProtocolError as error:
        return _unreadable(error, rules)
    earliest = base_timestamp + walk.min_timestamp_delta
    latest = base_timestamp + walk.max_timestamp_delta
    if (
        (walk.keyless and rules.compacted)
        or attributes & TIMESTAMP_TYPE_BIT
        or earliest < now_ms - rules.timestamp_before_max_ms
        or latest > now_ms + rules.timestamp_after_max_ms
        or latest > _MAX_INT64
    ):
        rejection = reject_records(payload, record_count, rules, base_timestamp, attributes, now_ms)
        if rejection is not None:
            return rejection
    batch = ValidatedBatch(
        size, last_offset_delta, record_count, latest, walk.max_timestamp_index, base_timestamp,
        producer_id, producer_epoch, base_sequence, attributes, (), len(payload) if codec else 0,
    )  # fmt: skip
    if (
        latest == max_timestamp >= NO_TIMESTAMP
        and walk.in_order
        and not attributes & TIMESTAMP_TYPE_BIT
        and rules.timestamp_type == "create"
        and rules.compression_type == "producer"
    ):
        batch.tail = (view[MAGIC_POSITION:size],)
        return batch
    return _correct(batch, view[RECORD_BATCH_OVERHEAD:size], payload, rules, in_order=walk.in_order, now_ms=now_ms)


def _decompressed(codec: int, payload: Buffer, rules: ValidationRules, room: DecompressionRoom | None) -> Buffer:
    if room is None:
        return decompress(Compression(codec), payload, max_bytes=min(rules.max_decompressed_bytes, rules.quick_bytes))
    return room.decompress(Compression(codec), payload, rules.max_decompressed_bytes)


def _unreadable(error: ProtocolError, rules: ValidationRules) -> Rejection | None:
    """Returns the refusal of unreadable records; None if they only take long to decompress."""
    if isinstance(error, DecompressedTooLargeError):
        return (
            rejected(ErrorCode.MESSAGE_TOO_LARGE, str(error))
            if rules.quick_bytes >= rules.max_decompressed_bytes
            else None
        )
    if isinstance(error, TooManyHeadersError) and rules.quick_headers < HEADERS_MAX:
        return None
    if isinstance(error, RoomUsedUpError):  # The code lets the client send it again.
        return rejected(ErrorCode.NOT_ENOUGH_REPLICAS, str(error))
    return rejected(ErrorCode.INVALID_RECORD, str(error), found_in_log=True)


def _correct(
    batch: ValidatedBatch, stored: Buffer, payload: Buffer, rules: ValidationRules, *, in_order: bool, now_ms: int
) -> ValidatedBatch | Rejection | None:
    """Rewrites the header, and the records if needed, as the log stores them.

    `stored` are the records as sent, `payload` the same decompressed. A batch that grows may become too large. Returns
    None if much must be compressed, and the rules want it quickly.
    """
    codec = Compression(batch.attributes & COMPRESSION_BITS)
    target = TARGET_CODECS.get(rules.compression_type, codec)
    compresses = target is not Compression.NONE and (target is not codec or not in_order)
    if compresses and len(payload) > rules.quick_compression_bytes:
        return None
    attributes = batch.attributes & ~(COMPRESSION_BITS | TIMESTAMP_TYPE_BIT) | target
    if not in_order:
        payload = renumber_records(payload, batch.record_count)
    if not in_order or target is not codec:
        if target is Compression.NONE and len(payload) > rules.max_message_bytes - RECORD_BATCH_OVERHEAD:
            size = RECORD_BATCH_OVERHEAD + len(payload)
            return rejected(ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {size} bytes without compression")
        stored = compress(target, payload)
        batch.size_bytes = RECORD_BATCH_OVERHEAD + len(stored)
        if batch.size_bytes > rules.max_message_bytes:
            return rejected(ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {batch.size_bytes} bytes after compression")
    if rules.timestamp_type == "log_append":
        attributes |= TIMESTAMP_TYPE_BIT
        batch.max_timestamp = now_ms
        batch.offset_delta_of_max_timestamp = 0
    elif batch.max_timestamp < NO_TIMESTAMP:
        batch.max_timestamp = NO_TIMESTAMP
        batch.offset_delta_of_max_timestamp = 0
    batch.attributes = attributes
    head = bytearray(_TAIL_HEADER_STRUCT.pack(
        CURRENT_MAGIC, 0, attributes, batch.last_offset_delta, batch.base_timestamp, batch.max_timestamp,
        batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.record_count,
    ))  # fmt: skip
    after_crc = ATTRIBUTES_POSITION - MAGIC_POSITION
    head[1:after_crc] = crc32c(stored, crc32c(head[after_crc:])).to_bytes(4, "big")
    batch.tail = (head, stored)
    return batch


def validate_stored(  # noqa: PLR0911 - one return per fault
    buffer: Buffer, position: int, header: BatchHeader, *, max_bytes: int = _MAX_INT64
) -> str | None:
    """Checks the batch at `position` of a segment or of a leader's answer; its header was read from there.

    Returns None if it is sound, otherwise what is wrong with it, for the log. `max_bytes` bounds the whole batch,
    inclusive. Checks size, magic, CRC and the order of header fields, not the records: a leader has walked those.
    Unlike a producer's batch, a stored one may have fewer records than offsets, for compaction removes records.
    """
    length = header.batch_length
    end = position + length + LOG_OVERHEAD
    if length < SMALLEST_BATCH_LENGTH:
        return f"batch length {length} is below {SMALLEST_BATCH_LENGTH}"
    if header.magic != CURRENT_MAGIC:
        return f"magic is {header.magic} instead of {CURRENT_MAGIC}"
    if end - position > max_bytes:
        return f"the batch has {end - position} bytes, at most {max_bytes} are allowed"
    if end > len(buffer):
        return f"the batch has {end - position} bytes, {len(buffer) - position} are there"
    if crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end]) != header.crc:
        return "the CRC is wrong"
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.record_count < 0:
        return (
            f"base offset {header.base_offset}, last delta {header.last_offset_delta} or count {header.record_count} "
            "is negative"
        )
    return None
