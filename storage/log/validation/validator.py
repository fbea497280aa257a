"""Validates what a producer sends before the log appends it.

Invariant: any Kafka client can read every batch that `validate_produce` accepts. Its CRC is right, its records fill it
exactly, their offset deltas are 0, 1, 2, ..., and its max timestamp is the largest of its records.

The checks, their order and their error codes are Kafka's (`ProduceRequest.validateRecords`, `UnifiedLog.append`,
`LogValidator`, `DefaultRecord.readFrom`), with two exceptions:

* A client's mistake is never UNKNOWN_SERVER_ERROR: records that cannot be parsed, broken compression and unknown codecs
  get INVALID_RECORD. Clients would retry CORRUPT_MESSAGE in vain, because the CRC was right.
* Offset deltas that are not consecutive are corrected in uncompressed batches too (Kafka: only in compressed ones).

It checks no sequences or producer epochs (`producer_state`) and assigns no offsets (`log`). It copies records only to
rewrite a batch. The compiled module walks over the records if it can. `walk_records` is the plain form, written for
speed: varints of one or two bytes are read inline, no object is created per record, and a run of records with the same
layout is checked column by column (`record_runs`).
"""

# ruff: noqa: PLR2004 - the bits of varints are best read where they are used

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NoReturn

import msgspec

from lowtide.protocol import native
from lowtide.protocol.batch_building import renumber_records
from lowtide.protocol.compression import Buffer, Compression, DecompressedTooLargeError, compress, decompress
from lowtide.protocol.crc32c import crc32c
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
)
from lowtide.protocol.types import NO_TIMESTAMP
from lowtide.storage.log.validation.decompression_room import RoomUsedUpError
from lowtide.storage.log.validation.record_runs import SHORTEST_RUN, RecordWalk, check_run, finish_varint
from lowtide.storage.log.validation.rejections import Rejection, reject_header, reject_records, reject_set, rejected
from lowtide.storage.log.validation.validation_rules import HEADERS_MAX, MAX_RECORDS, TARGET_CODECS, ValidationRules

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

_COPY_BELOW_BYTES_PER_RECORD = 4096
"""`bytes` are read one by one faster than a view; above this mean size the copy costs more than it saves."""

_COPY_UP_TO_BYTES = 16 << 20
"""Copies above that would keep the interpreter's lock for milliseconds."""

_FIRST_BLOCK = 16
"""Records walked one by one before the next look for a run; doubled after each failed look."""

_NONE_LOW, _NONE_HIGH = 1 << 64, -(1 << 64)
"""The smallest and the largest timestamp delta of no records: outside of 64 bits."""


class TooManyHeadersError(ProtocolError):
    """Records with more headers than the plain form may read."""


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
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a control batch. Clients can't write one."""
        return bool(self.attributes & CONTROL_BIT)


def validate_produce(  # noqa: PLR0911 - the hot path: a sound batch passes through here and two calls
    records: Buffer | None, rules: ValidationRules, now_ms: int, room: DecompressionRoom | None = None
) -> ValidatedBatch | Rejection | None:
    """Checks that the records that a client sent to one partition are exactly one sound batch. Returns it, or why not.

    `now_ms` is wall-clock time, for the timestamps' bounds and for LogAppendTime. Returns None if the check takes
    longer than the rules allow. A thread decompresses into `room`, of which the result keeps nothing. Nothing that a
    client can send raises an error. Source: KIP-98, `LogValidator`.
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
        or (codec and len(payload) > rules.max_record_bytes)
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


def walk_records(records: Buffer, count: int, headers_max: int = HEADERS_MAX) -> RecordWalk:
    """Walks `count` (at least 1) records that must fill `records` exactly.

    Errors: ProtocolError if they don't, or one of them contradicts its own length; TooManyHeadersError for more than
    `headers_max` headers.
    """
    size = len(records)
    payload = bytes(records) if size < min(count * _COPY_BELOW_BYTES_PER_RECORD, _COPY_UP_TO_BYTES) else records
    walk = RecordWalk(
        _NONE_LOW, _NONE_HIGH, 0, False, True, headers_max
    )  # Without names, which cost as much as the walk of a record.
    index = position = 0
    block = _FIRST_BLOCK
    try:
        while index < count:
            if count - index >= SHORTEST_RUN and isinstance(payload, bytes):
                length, record_bytes = check_run(payload, position, index, count, walk)
                if length:
                    index += length
                    position += length * record_bytes
                    block = _FIRST_BLOCK
                    continue
            # If records differ, looking for runs again and again would be wasted.
            stop = index + block
            if stop > count:  # noqa: PLR1730 - min() costs three times as much
                stop = count
            block *= 2
            position = _walk_block(payload, position, index, stop, walk)
            index = stop
    except IndexError:
        raise ProtocolError(f"the records end before the last of {count}") from None
    if position != size:
        raise ProtocolError(f"{size - position} bytes follow the last of {count} records")
    walk.headers_left = HEADERS_MAX  # As the compiled form leaves it.
    return walk


def _walk_block(  # noqa: PLR0912, PLR0915 - unrolled: a call per field would double its time
    payload: Buffer, position: int, index: int, stop: int, walk: RecordWalk
) -> int:
    """Walks the records from `index` to `stop` (exclusive), adds them to `walk`, and returns where they end.

    Errors: ProtocolError, or IndexError if they go beyond the payload's end.
    """
    lowest, highest, last_raw = walk.min_timestamp_delta, walk.max_timestamp_delta, -1
    for number in range(index, stop):
        length = payload[position]
        position += 1
        if length > 0x7F:
            more = payload[position]
            position += 1
            length += (more << 7) - 0x80
            if more > 0x7F:
                length, position = finish_varint(payload, position, length - 0x4000, 14)
        start = position
        raw = payload[position + 1]  # Before it are attributes without a meaning.
        position += 2
        if raw > 0x7F:
            more = payload[position]
            position += 1
            raw += (more << 7) - 0x80
            if more > 0x7F:
                raw, position = finish_varint(payload, position, raw - 0x4000, 14)
        if raw != last_raw:
            last_raw = raw
            delta = -(raw >> 1) - 1 if raw & 1 else raw >> 1
            if delta > highest:
                highest = walk.max_timestamp_delta = delta
                walk.max_timestamp_index = number
            if delta < lowest:  # noqa: PLR1730 - min() costs three times as much
                lowest = delta
        raw = payload[position]
        position += 1
        if raw > 0x7F:
            raw, position = finish_varint(payload, position, raw - 0x80, 7)
        if raw != number << 1:
            walk.in_order = False
        raw = payload[position]
        position += 1
        if raw > 0x7F:
            raw, position = finish_varint(payload, position, raw - 0x80, 7)
        if raw & 1:
            if raw != 1:
                _refuse_length(raw)
            walk.keyless = True
        else:
            position += raw >> 1
        raw = payload[position]
        position += 1
        if raw > 0x7F:
            more = payload[position]
            position += 1
            raw += (more << 7) - 0x80
            if more > 0x7F:
                raw, position = finish_varint(payload, position, raw - 0x4000, 14)
        if not raw & 1:
            position += raw >> 1
        elif raw != 1:
            _refuse_length(raw)
        raw = payload[position]
        position += 1
        if raw:
            position = _skip_headers(payload, position - 1, walk)
        if (position - start) << 1 != length:
            raise ProtocolError(f"record {number} is {position - start} bytes long, its zigzag length is {length}")
    walk.min_timestamp_delta = lowest
    return position


def _refuse_length(raw: int) -> NoReturn:
    raise ProtocolError(f"a key or value has the length {-(raw >> 1) - 1}")


def _skip_headers(payload: Buffer, position: int, walk: RecordWalk) -> int:
    """Checks the headers that begin, with their count, at `position`, and returns where they end."""
    count, position = finish_varint(payload, position, 0, 0)
    if count & 1:
        raise ProtocolError(f"a record has {-(count >> 1) - 1} headers")
    walk.headers_left -= count >> 1
    if walk.headers_left < 0:
        raise TooManyHeadersError("the headers are too many to be checked")
    for _ in range(count >> 1):
        raw, position = finish_varint(payload, position, 0, 0)
        if raw & 1:
            raise ProtocolError("a header has no name")
        position += raw >> 1
        raw, position = finish_varint(payload, position, 0, 0)
        if not raw & 1:
            position += raw >> 1
        elif raw != 1:
            _refuse_length(raw)
    return position


def _decompressed(codec: int, payload: Buffer, rules: ValidationRules, room: DecompressionRoom | None) -> Buffer:
    if room is None:
        return decompress(Compression(codec), payload, max_bytes=min(rules.max_decompressed_bytes, rules.quick_bytes))
    return room.decompress(Compression(codec), payload, rules.max_decompressed_bytes)


def _unreadable(error: ProtocolError, rules: ValidationRules) -> Rejection | None:
    """Returns None if the records only take long to decompress."""
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
    """Makes the header, and the records if need be, as the log stores them.

    `stored` are the records as sent, `payload` the same decompressed. A batch that grows may become too large. None if
    much must be compressed, and the rules want it quickly.
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
