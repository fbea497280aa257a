"""Reads the rows of fetched batches: records, and the markers that end transactions.

A batch is read in steps: its place, its payload (decompressed), its records one by one. Each caller decides how many
steps it makes before other work gets its turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from lowtide.protocol.compression import Compression, DecompressedTooLargeError, decompress
from lowtide.protocol.control_records import ControlRecordType, read_control_record
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import (
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Record,
    TimestampType,
    check_crc,
    iterate_batches,
    read_record,
    read_varint,
)

if TYPE_CHECKING:
    from lowtide.admin.records import FetchedRecords
    from lowtide.protocol.types import Offset, ProducerId

DECOMPRESSED_BYTES_MAX: Final = 16 << 20
"""The largest decompressed batch that is read, unless a caller says otherwise."""

QUICK_COMPRESSED_BYTES: Final = 64 << 10
QUICK_BYTES: Final = 256 << 10
"""Decompressing less than this takes under a millisecond. Larger batches are decompressed in a thread."""

MARKER_BYTES_MAX: Final = 1 << 16
"""The largest decompressed batch of a marker, which has ten bytes."""


class MarkerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A marker of the log: it ends a transaction, or is another control record."""

    offset: Offset
    timestamp: int
    kind: str | None
    """`commit` or `abort`; None for other control records."""
    producer_id: ProducerId


Row: TypeAlias = Record | MarkerRow
Payload: TypeAlias = bytes | bytearray


class UnreadableBatchError(ProtocolError):
    """A batch with a wrong CRC, invalid contents, or too many bytes."""

    def __init__(self, offset: Offset, why: object) -> None:
        super().__init__(f"the batch at offset {offset} can't be read: {why}")
        self.offset = offset


@dataclass(frozen=True, slots=True)
class ReadableBatch:
    """A batch of an answer."""

    header: BatchHeader
    content: memoryview
    """The whole batch."""
    is_aborted: bool
    """Whether its transaction was aborted; known only with `read_committed`."""

    def check(self) -> None:
        """Checks the CRC. Errors: UnreadableBatchError."""
        if not check_crc(self.content, 0, self.header):
            raise UnreadableBatchError(self.header.base_offset, "its CRC is wrong")

    def marker(self) -> MarkerRow:
        """Returns the marker of a control batch. Errors: UnreadableBatchError."""
        header = self.header
        try:
            found = read_control_record(self.content, max_bytes=MARKER_BYTES_MAX)
        except ProtocolError as error:
            raise UnreadableBatchError(header.base_offset, error) from error
        kind = None if found is None else "commit" if found.type is ControlRecordType.COMMIT else "abort"
        return MarkerRow(
            offset=header.base_offset, timestamp=header.max_timestamp, kind=kind, producer_id=header.producer_id
        )

    def quick_payload(self) -> Payload | None:
        """Returns the records in binary form; None if decompressing them takes long. Errors: UnreadableBatchError."""
        stored = self.content[RECORD_BATCH_OVERHEAD:]
        if self._codec() is Compression.NONE:
            return bytes(stored)
        if len(stored) > QUICK_COMPRESSED_BYTES:
            return None
        try:
            return decompress(self._codec(), stored, max_bytes=QUICK_BYTES)
        except DecompressedTooLargeError:
            return None
        except ProtocolError as error:
            raise UnreadableBatchError(self.header.base_offset, error) from error

    def payload(self, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Payload:
        """Returns the records in binary form, decompressed. Errors: UnreadableBatchError."""
        codec, stored = self._codec(), self.content[RECORD_BATCH_OVERHEAD:]
        try:
            return bytes(stored) if codec is Compression.NONE else decompress(codec, stored, max_bytes=max_bytes)
        except ProtocolError as error:
            raise UnreadableBatchError(self.header.base_offset, error) from error

    def _codec(self) -> Compression:
        try:
            return self.header.compression
        except ProtocolError as error:
            raise UnreadableBatchError(self.header.base_offset, error) from error

    def records(self, payload: Payload, needle: bytes = b"") -> Iterator[Record | None]:
        """Yields each record of the payload, and None for one that does not contain `needle`.

        A record without the needle is not decoded, which takes a fifth of the time. Errors: UnreadableBatchError.
        """
        header, position = self.header, 0
        append_ms = header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None
        found = _next_place(payload, needle, 0) if needle else 0
        try:
            for _ in range(header.record_count):
                if needle:
                    size, start = read_varint(payload, position)
                    if size <= 0 or start + size > len(payload):
                        raise ProtocolError(f"the record at {position} has the length {size}")  # noqa: TRY301
                    if found >= start + size:
                        position = start + size
                        yield None
                        continue
                record, position = read_record(payload, position, header.base_offset, header.base_timestamp)
                if append_ms is not None:
                    record.timestamp = append_ms
                if needle:
                    found = _next_place(payload, needle, position)
                yield record
            if position != len(payload):
                raise ProtocolError(f"{len(payload) - position} bytes follow the last record")  # noqa: TRY301
        except ProtocolError as error:
            raise UnreadableBatchError(header.base_offset, error) from error


def _next_place(payload: Payload, needle: bytes, begin: int) -> int:
    place = payload.find(needle, begin)
    return len(payload) if place < 0 else place


def fetched_batches(fetched: FetchedRecords) -> Iterator[ReadableBatch]:
    """Yields the complete batches of an answer, without checking them.

    Errors: ProtocolError for bytes that are no batches.
    """
    aborted = sorted(fetched.aborted, key=lambda each: each[1])
    ending: set[ProducerId] = set()
    for position, header in iterate_batches(fetched.records):
        content = memoryview(fetched.records)[position : position + header.size_bytes]
        while aborted and aborted[0][1] <= header.last_offset:
            ending.add(aborted.pop(0)[0])
        is_aborted = header.is_transactional and header.producer_id in ending
        if header.is_control:
            ending.discard(header.producer_id)
        yield ReadableBatch(header, content, is_aborted and not header.is_control)


def rows_of(batch: ReadableBatch, *, control: bool, max_bytes: int) -> list[Row]:
    """Returns all rows of a batch; those of an aborted one are left out. Errors: UnreadableBatchError."""
    batch.check()
    if batch.header.is_control:
        return [batch.marker()] if control else []
    if batch.is_aborted:
        return []
    return [each for each in batch.records(batch.payload(max_bytes)) if each is not None]
