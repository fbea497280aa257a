"""Converts record batches to columns and back, for programs that read and write millions of records.

    columns = RecordColumns()
    appended = append_batches(columns, answer.records, FetchRange(from_offset, until_offset, aborted))
    for built in build_batches(RecordRows(row_count=rows, values=values, keys=keys), settings, timestamp_ms=now): ...

This module does the work per batch; `compiled_columns` visits the records.

Guards: no row comes from a batch with a wrong CRC, no column exceeds int32 offsets, and batches that claim to have
gigabytes are refused before memory is allocated. Source: Kafka's CompletedFetch.nextFetchedRecord, KIP-98.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from lowtide.protocol.column_walk import BatchRecords, RowRun
from lowtide.protocol.columns import COLUMN_BYTES_MAX, RecordColumns, RecordRows
from lowtide.protocol.compiled_columns import append_records, append_rows
from lowtide.protocol.compression import Buffer, Compression, compress, decompress
from lowtide.protocol.control_records import ControlRecordType, read_control_record
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER_STRUCT,
    CRC_POSITION,
    CURRENT_MAGIC,
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    SMALLEST_BATCH_LENGTH,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    check_crc,
    read_batch_header,
)
from lowtide.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Offset, ProducerEpoch, ProducerId

DECOMPRESSED_BYTES_MAX: Final = 256 << 20
"""More than a batch of any broker's `message.max.bytes`, compressed a hundredfold."""

_OFFSET_MAX: Final = 2**63 - 1
_CONTROL_BYTES_MAX: Final = 1 << 16
"""A marker has ten bytes."""

_PLACE_STRUCT: Final = struct.Struct(">qi")
"""Base offset and length of a batch."""

_CRC_STRUCT: Final = struct.Struct(">I")
_TYPES: Final = (struct.pack("=i", 0), struct.pack("=i", 1))
"""Entries of the column of timestamp types."""


class DamagedBatchError(ProtocolError):
    """An unreadable batch. A retry fails too, unless it was damaged in transit. Earlier batches were appended.

    `offset` is the batch's first offset, as far as known.
    """

    def __init__(self, offset: Offset, why: object) -> None:
        super().__init__(f"the batch at offset {offset} can't be read: {why}")
        self.offset = offset


class RecordTooLargeError(ValueError):
    """A record that exceeds the maximum size of a batch."""

    def __init__(self, row: int, size_max: int) -> None:
        super().__init__(f"the record of row {row} doesn't fit into a batch of {size_max} bytes")
        self.row = row


class FetchRange(NamedTuple):
    """The records to read from a fetch response."""

    from_offset: Offset
    until_offset: Offset
    """Exclusive."""
    aborted: Sequence[tuple[ProducerId, Offset]] = ()
    """The aborted transactions that the response lists, each with its first offset: their records are left out. A
    response to READ_UNCOMMITTED lists none."""


class ColumnLimits(NamedTuple):
    """The maximum sizes of columns and batches."""

    columns_bytes_max: int = COLUMN_BYTES_MAX
    """All columns together. The first batch may exceed it, up to the limit of int32 offsets."""
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
    """The records of one batch."""


class AppendOutcome(NamedTuple):
    """The part of a fetch response that was appended."""

    next_offset: Offset
    """The columns contain all records of the range below this offset, and none from it on. At most `until_offset`."""
    row_count: int
    """The number of appended rows."""
    is_full: bool
    """Whether the columns are full: read the rest of the response into new columns, from `next_offset`."""
    cut_batch_bytes: int
    """The size of the last batch if it is truncated and may be in the range; otherwise 0. If `next_offset` is still
    `from_offset`, the next fetch needs at least this size."""


def append_batches(
    columns: RecordColumns,
    records: Buffer,
    wanted: FetchRange,
    limits: ColumnLimits = ColumnLimits(),  # noqa: B008
) -> AppendOutcome:
    """Appends the records of a range from the batches of a fetch response, the last of which may be truncated.

    Markers and records of aborted transactions are left out. `next_offset` skips them, and offsets without records
    after compaction. Errors: DamagedBatchError; the batches before it are appended.
    """
    assert max(limits) <= COLUMN_BYTES_MAX, limits
    assert 0 <= wanted.from_offset <= wanted.until_offset, wanted
    view = memoryview(records).cast("B")
    transactions = _AbortedTransactions(wanted.aborted)
    next_offset, rows_before, position = wanted.from_offset, columns.row_count, 0
    log_offset = 0
    while next_offset < wanted.until_offset and position < len(view):
        size, base_offset = _batch_place(view, position, next_offset)
        if base_offset >= wanted.until_offset:
            next_offset = wanted.until_offset
            break
        if size > len(view) - position:
            return AppendOutcome(next_offset, columns.row_count - rows_before, is_full=False, cut_batch_bytes=size)
        header = read_batch_header(view, position)
        batch = view[position : position + size]
        _check_header(header, batch, log_offset)
        log_offset = header.next_offset
        if not _is_left_out(transactions, header, batch) and header.next_offset > wanted.from_offset:
            payload = _payload(header, batch, limits.decompressed_bytes_max)
            if columns.row_count and columns.size_bytes + len(payload) > limits.columns_bytes_max:
                return AppendOutcome(next_offset, columns.row_count - rows_before, is_full=True, cut_batch_bytes=0)
            _append_batch(columns, header, payload, wanted)
        next_offset = max(next_offset, min(header.next_offset, wanted.until_offset))
        position += size
    return AppendOutcome(next_offset, columns.row_count - rows_before, is_full=False, cut_batch_bytes=0)


def _batch_place(view: memoryview, position: int, next_offset: Offset) -> tuple[int, Offset]:
    """Returns the size of the batch at `position`, which may be truncated, and its base offset."""
    if len(view) - position < LOG_OVERHEAD:
        return RECORD_BATCH_OVERHEAD, next_offset
    base_offset, length = _PLACE_STRUCT.unpack_from(view, position)
    if length < SMALLEST_BATCH_LENGTH:
        raise DamagedBatchError(next_offset, f"it has the impossible length {length}")
    return length + LOG_OVERHEAD, base_offset


def _check_header(header: BatchHeader, batch: memoryview, log_offset: Offset) -> None:
    """Checks CRC and header; `log_offset` is the end of the previous batch. Errors: DamagedBatchError."""
    if header.magic != CURRENT_MAGIC:
        raise DamagedBatchError(
            header.base_offset, f"its format is {header.magic}: only 2 is read, which Kafka writes since 0.11"
        )
    if not check_crc(batch, 0, header):
        raise DamagedBatchError(
            header.base_offset, f"its CRC is {crc32c(batch[ATTRIBUTES_POSITION:]):#010x} instead of {header.crc:#010x}"
        )
    if header.last_offset_delta < 0 or header.last_offset >= _OFFSET_MAX or header.record_count < 0:
        why = f"its header has {header.record_count} records and the last offset delta {header.last_offset_delta}"
        raise DamagedBatchError(header.base_offset, why)
    if header.base_offset < log_offset:
        # The CRC does not cover the base offset.
        raise DamagedBatchError(header.base_offset, f"the batch before it ends at {log_offset}")


def _is_left_out(transactions: _AbortedTransactions, header: BatchHeader, batch: memoryview) -> bool:
    if not header.is_control:
        return transactions.have(header)
    # The ends of transactions matter only if some were aborted.
    if transactions.has_any:
        try:
            marker = read_control_record(batch, max_bytes=_CONTROL_BYTES_MAX)
        except ProtocolError as error:
            raise DamagedBatchError(header.base_offset, error) from error
        if marker is not None and marker.type is ControlRecordType.ABORT:
            transactions.on_abort(header)
    return True


def _payload(header: BatchHeader, batch: memoryview, bytes_max: int) -> Buffer:
    payload = batch[RECORD_BATCH_OVERHEAD:]
    try:
        if header.compression is Compression.NONE or not header.record_count:
            return payload
        return decompress(header.compression, payload, max_bytes=bytes_max)
    except ProtocolError as error:
        raise DamagedBatchError(header.base_offset, error) from error


def _append_batch(columns: RecordColumns, header: BatchHeader, payload: Buffer, wanted: FetchRange) -> None:
    has_append_time = bool(header.attributes & TIMESTAMP_TYPE_BIT)
    batch = BatchRecords(
        payload,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp if has_append_time else None,
        wanted.from_offset,
        wanted.until_offset,
    )
    try:
        count = append_records(columns, batch)
    except ProtocolError as error:
        raise DamagedBatchError(header.base_offset, error) from error
    columns.timestamp_types += _TYPES[has_append_time] * count


class _AbortedTransactions:
    """Decides which batches belong to aborted transactions, in the order of the log.

    Source: Kafka's CompletedFetch.consumeAbortedTransactionsUpTo, isBatchAborted.
    """

    __slots__ = ("_open", "_to_come", "has_any")

    def __init__(self, aborted: Sequence[tuple[ProducerId, Offset]]) -> None:
        self._to_come = deque(sorted((first_offset, producer_id) for producer_id, first_offset in aborted))
        self._open: set[ProducerId] = set()
        """Producers within an aborted transaction."""
        self.has_any = bool(aborted)

    def have(self, header: BatchHeader) -> bool:
        """Returns whether a batch with records belongs to one."""
        self._open_up_to(header.last_offset)
        return header.producer_id in self._open and bool(header.attributes & TRANSACTIONAL_BIT)

    def on_abort(self, header: BatchHeader) -> None:
        """Ends the transaction of the marker's producer."""
        self._open_up_to(header.last_offset)
        self._open.discard(header.producer_id)

    def _open_up_to(self, last_offset: Offset) -> None:
        while self._to_come and self._to_come[0][0] <= last_offset:
            self._open.add(self._to_come.popleft()[1])


# ------------------------------------------------------------------ columns to batches
class BatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The common properties of one producer's batches."""

    batch_bytes_max: int
    """The maximum size of a batch, before and after compression."""
    compression: Compression = Compression.NONE
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    is_transactional: bool = False
    with_crc: bool = True
    """If False the CRC is 0, for callers that still change the fields it covers."""


class BuiltBatch(NamedTuple):
    """A batch for a produce request."""

    batch: Buffer
    row_count: int
    base_sequence: int
    """-1 without idempotence."""


def build_batches(
    rows: RecordRows,
    settings: BatchSettings,
    *,
    timestamp_ms: int,
    selected: Buffer | None = None,
    base_sequence: int = NO_SEQUENCE,
) -> Iterator[BuiltBatch]:
    """Yields batches, as large as allowed, of all rows or of those in `selected` (int64 row numbers in any order).

    `timestamp_ms` is the time of rows without their own. Sequence numbers continue from batch to batch, and wrap from
    2^31-1 to 0. Errors: RecordTooLargeError; ValueError (or IndexError) for inconsistent columns. Batches that were
    yielded before an error are valid.
    """
    room = settings.batch_bytes_max - RECORD_BATCH_OVERHEAD
    total = rows.row_count if selected is None else memoryview(selected).nbytes // 8
    first = 0
    while first < total:
        out = bytearray(RECORD_BATCH_OVERHEAD)
        written = append_rows(out, RowRun(rows, selected, first, total - first, room, timestamp_ms))
        if not written.row_count:
            row = first if selected is None else memoryview(selected).cast("B").cast("q")[first]
            raise RecordTooLargeError(row, settings.batch_bytes_max)
        header = BatchHeader(
            base_offset=0,
            batch_length=0,
            partition_leader_epoch=-1,
            magic=CURRENT_MAGIC,
            crc=0,
            attributes=settings.compression | (TRANSACTIONAL_BIT if settings.is_transactional else 0),
            last_offset_delta=written.row_count - 1,
            base_timestamp=written.base_timestamp,
            max_timestamp=written.max_timestamp,
            producer_id=settings.producer_id,
            producer_epoch=settings.producer_epoch,
            base_sequence=base_sequence,
            record_count=written.row_count,
        )
        yield BuiltBatch(_finish(header, out, with_crc=settings.with_crc), written.row_count, base_sequence)
        base_sequence = next_sequence(base_sequence, written.row_count)
        first += written.row_count


def next_sequence(base_sequence: int, count: int) -> int:
    """Returns the sequence number after a batch of `count` records; -1 stays -1."""
    return base_sequence if base_sequence < 0 else (base_sequence + count) & 0x7FFF_FFFF


def _finish(header: BatchHeader, out: bytearray, *, with_crc: bool) -> bytearray:
    """Writes the header into the space before the records, and compresses these if that makes them smaller."""
    codec = header.compression
    if codec is not Compression.NONE:
        with memoryview(out) as view:
            compressed = compress(codec, view[RECORD_BATCH_OVERHEAD:])
        if len(compressed) < len(out) - RECORD_BATCH_OVERHEAD:
            out[RECORD_BATCH_OVERHEAD:] = compressed
        else:
            header.attributes &= ~codec
    header.batch_length = len(out) - LOG_OVERHEAD
    BATCH_HEADER_STRUCT.pack_into(out, 0, *msgspec.structs.astuple(header))
    if with_crc:
        with memoryview(out) as view:
            header.crc = crc32c(view[ATTRIBUTES_POSITION:])
        _CRC_STRUCT.pack_into(out, CRC_POSITION, header.crc)
    return out
