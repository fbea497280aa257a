"""Record batches in format v2 (magic 2), read as a view of bytes.

Producers send, the log stores, and consumers fetch the same bytes. All integers are big-endian:

| at | bytes | field                  | content                                                                        |
| -- | ----- | ---------------------- | ------------------------------------------------------------------------------ |
| 0  | 8     | base offset            | offset of the first record; 0 from a producer                                  |
| 8  | 4     | batch length           | number of bytes after this field                                               |
| 12 | 4     | partition leader epoch | set by the leader                                                              |
| 16 | 1     | magic                  | 2                                                                              |
| 17 | 4     | CRC                    | CRC-32C from the attributes to the end of the batch                            |
| 21 | 2     | attributes             | bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon |
| 23 | 4     | last offset delta      | offset of the last record minus the base offset                                |
| 27 | 8     | base timestamp         | milliseconds                                                                   |
| 35 | 8     | max timestamp          | milliseconds                                                                   |
| 43 | 8     | producer id            | -1 without idempotence                                                         |
| 51 | 2     | producer epoch         |                                                                                |
| 53 | 4     | base sequence          |                                                                                |
| 57 | 4     | record count           |                                                                                |
| 61 |       | records                | compressed as a whole with the codec of bits 0-2                               |

A record is `length | attributes int8 | timestamp delta | offset delta | key | value | headers`. Integers are zigzag
varints, keys and values have a length of -1 for null, and headers are a count and pairs of name and nullable value. The
CRC does not cover base offset and leader epoch, so a leader can set them.

`batch_building` builds such bytes and has an example; `control_records` describes markers;
`storage/log/validation/validator` decides what producers may send. Magic 0 and 1 (message sets) are not supported.
Source: KIP-98, the protocol guide's "Record Batch", Kafka's `DefaultRecordBatch` and `DefaultRecord`.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from lowtide.protocol.compression import Buffer, Compression, decompress
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lowtide.protocol.types import Offset

LOG_OVERHEAD = 12
"""The size of base offset and batch length, which the length does not include."""

MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
"""The start of the bytes that the CRC covers."""

RECORD_BATCH_OVERHEAD = 61
"""The size of a batch's header."""

SMALLEST_BATCH_LENGTH = RECORD_BATCH_OVERHEAD - LOG_OVERHEAD
CURRENT_MAGIC = 2

COMPRESSION_BITS = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

BATCH_HEADER_STRUCT = struct.Struct(">qiibIhiqqqhii")
"""The whole header, in the order of `BatchHeader`'s fields."""

_MAX_VARINT_BYTES = 10
"""Sixty-four bits in groups of seven."""

VARINT_CONTINUES = 0x80
"""The bit of a varint's byte that is not the last."""

Header: TypeAlias = tuple[bytes, bytes | None]
"""A record header: name (UTF-8) and value."""


class TimestampType(IntEnum):
    """Who set a batch's timestamps: bit 3 of the attributes."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(msgspec.Struct, gc=False):
    """The header of one batch. If the magic is not 2, the fields after it are meaningless."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> Offset:
        """The offset of the last record, inclusive."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> Offset:
        """The offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, or -1 without one. Sequences wrap from 2^31-1 to 0."""
        return -1 if self.base_sequence < 0 else (self.base_sequence + self.last_offset_delta) & 0x7FFF_FFFF

    @property
    def is_control(self) -> bool:
        """Whether the batch contains a marker instead of a client's records."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def compression(self) -> Compression:
        """The codec of the records. Errors: ProtocolError for the invalid values 5 to 7."""
        return compression_of(self.attributes)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_BIT else TimestampType.CREATE_TIME


class Record(msgspec.Struct, gc=False):
    """One record, decoded. `timestamp` is in milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


_CODECS = tuple(Compression)


def compression_of(attributes: int) -> Compression:
    """Returns the codec of a batch with these attributes. Errors: ProtocolError for the invalid values 5 to 7."""
    code = attributes & COMPRESSION_BITS
    if code >= len(_CODECS):
        raise ProtocolError(f"compression codec {code} does not exist")
    return _CODECS[code]


def read_batch_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Reads the header at `position`; the rest of the batch may be truncated or invalid.

    Errors: ProtocolError if fewer than 61 bytes are left.
    """
    try:
        return BatchHeader(*BATCH_HEADER_STRUCT.unpack_from(buffer, position))
    except struct.error as error:
        raise ProtocolError(
            f"a batch header at {position} needs 61 bytes, {len(buffer) - position} are left"
        ) from error


def check_crc(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Returns whether the batch at `position` is complete and its CRC is correct."""
    end = position + header.batch_length + LOG_OVERHEAD
    start = position + ATTRIBUTES_POSITION
    if header.batch_length < SMALLEST_BATCH_LENGTH or end > len(buffer):
        return False
    return bool(crc32c(memoryview(buffer)[start:end]) == header.crc)


def iterate_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yields position and header of each complete batch, without checking CRCs.

    A Fetch response may end with a truncated batch, which is ignored. Errors: ProtocolError for a length below 49 or a
    magic other than 2.
    """
    position = 0
    end = len(buffer)
    while end - position >= RECORD_BATCH_OVERHEAD:
        header = read_batch_header(buffer, position)
        if header.batch_length < SMALLEST_BATCH_LENGTH:
            raise ProtocolError(f"the batch at {position} has the impossible length {header.batch_length}")
        if header.magic != CURRENT_MAGIC:
            raise ProtocolError(f"the batch at {position} has magic {header.magic} instead of 2")
        if header.size_bytes > end - position:
            return
        yield position, header
        position += header.size_bytes


def sound_batches(buffer: Buffer, offset: Offset, end_offset: Offset) -> Iterator[tuple[int, BatchHeader]]:
    """Yields position and header of each complete batch of a read from `offset` on, at least one.

    The first may begin below `offset`. Errors: ProtocolError for a wrong CRC, and for offsets that don't rise or aren't
    below `end_offset`: no CRC contains the first offset of a batch.
    """
    reached: Offset = 0
    for position, header in iterate_batches(buffer):
        if not check_crc(buffer, position, header):
            raise ProtocolError(f"the batch at offset {header.base_offset} has a wrong CRC")
        if not (reached <= header.base_offset and offset < header.next_offset <= end_offset):
            raise ProtocolError(f"a batch has the wrong offsets {header.base_offset} to {header.last_offset}")
        yield position, header
        reached = header.next_offset
    if not reached:
        raise ProtocolError("no whole batch is there")


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Returns a zigzag varint of at most 64 bits, and its end. Errors: ProtocolError if it is too long or truncated."""
    raw = shift = 0
    try:
        for place in range(position, position + _MAX_VARINT_BYTES):
            byte = buffer[place]
            raw |= (byte & 0x7F) << shift
            if byte < VARINT_CONTINUES:
                return (raw >> 1) ^ -(raw & 1), place + 1
            shift += 7
    except IndexError:
        raise ProtocolError(f"the varint at {position} is cut") from None
    raise ProtocolError(f"the varint at {position} is longer than ten bytes")


def iterate_records(batch: Buffer, *, max_bytes: int) -> Iterator[Record]:
    """Yields the records of one batch, decompressing at most `max_bytes`, without checking the CRC.

    For searches, tools and tests: it creates an object per record, which is slow. Errors: ProtocolError (or
    CompressionError) for a truncated or invalid batch.
    """
    header = read_batch_header(batch)
    if header.batch_length < SMALLEST_BATCH_LENGTH or header.size_bytes > len(batch) or header.magic != CURRENT_MAGIC:
        raise ProtocolError(f"not a whole batch: {header}")
    payload: Buffer = memoryview(batch)[RECORD_BATCH_OVERHEAD : header.size_bytes]
    if header.compression is not Compression.NONE:
        payload = decompress(header.compression, payload, max_bytes=max_bytes)
    log_append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
    position = 0
    for _ in range(header.record_count):
        record, position = read_record(payload, position, header.base_offset, header.base_timestamp)
        if log_append_time is not None:
            record.timestamp = log_append_time
        yield record
    if position != len(payload):
        raise ProtocolError(f"{len(payload) - position} bytes follow the last of {header.record_count} records")


def read_record(payload: Buffer, position: int, base_offset: Offset, base_timestamp: int) -> tuple[Record, int]:
    """Returns the record at `position` of the uncompressed records, and its end. Errors: ProtocolError."""
    size, start = read_varint(payload, position)
    end = start + size
    if size <= 0 or end > len(payload):
        raise ProtocolError(f"the record at {position} has the length {size}, {len(payload) - start} bytes are left")
    timestamp_delta, place = read_varint(payload, start + 1)
    offset_delta, place = read_varint(payload, place)
    key, place = _read_bytes(payload, place, end)
    value, place = _read_bytes(payload, place, end)
    count, place = read_varint(payload, place)
    if not 0 <= count <= end - place:
        raise ProtocolError(f"the record at {position} has {count} headers")
    headers: list[Header] = []
    for _ in range(count):
        name, place = _read_bytes(payload, place, end)
        if name is None:
            raise ProtocolError(f"the record at {position} has a header without a name")
        content, place = _read_bytes(payload, place, end)
        headers.append((name, content))
    if place != end:
        raise ProtocolError(f"the record at {position} ends at {place} instead of {end}")
    return Record(base_offset + offset_delta, base_timestamp + timestamp_delta, key, value, tuple(headers)), end


def _read_bytes(payload: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    size, start = read_varint(payload, position)
    if size == -1:
        return None, start
    if size < 0 or start + size > end:
        raise ProtocolError(f"the field at {position} has the length {size}, {end - start} bytes are left")
    return bytes(payload[start : start + size]), start + size
