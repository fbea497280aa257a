"""Converts between the records of one batch and columns, in plain Python.

The compiled form (`native/`) does the same for valid batches. It leaves all others to these functions, so only they
report errors. Tests compare the two.

Guards: an invalid batch leaves the columns unchanged, and nothing outside the given bytes is read. Source: Kafka's
DefaultRecord.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Final, NamedTuple

from lowtide.protocol.batch_building import append_record
from lowtide.protocol.columns import BinaryColumn, BinaryInput, HeaderColumn, HeaderInput, RecordColumns, RecordRows
from lowtide.protocol.compression import Buffer
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import read_varint
from lowtide.protocol.types import Offset

_ONE_BYTE: Final = 0x80
"""A smaller byte is the last of its varint."""

_MICROSECONDS: Final = 1000
LATEST_MS: Final = (2**63 - 1) // _MICROSECONDS
"""The latest time whose microseconds fit into 64 bits; the earliest is its negative."""

_SET: Final = b"\xff"


class BatchRecords(NamedTuple):
    """The uncompressed records of a batch with a valid header, and the range of offsets to read."""

    payload: Buffer
    record_count: int
    base_offset: Offset
    last_offset_delta: int
    base_timestamp: int
    """In milliseconds."""
    append_time: int | None
    """The time of all records if the broker set it."""
    from_offset: Offset
    until_offset: Offset
    """Exclusive."""


class _Rows:
    """The fields of a batch, before they are added to the columns."""

    __slots__ = ("contents", "header_counts", "keys", "names", "offsets", "timestamps", "values")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.header_counts: list[int] = []
        self.names: list[bytes | None] = []
        self.contents: list[bytes | None] = []


def append_records(columns: RecordColumns, batch: BatchRecords) -> int:
    """Appends the records from `from_offset` to `until_offset`, without their timestamp types.

    Returns the number of rows. Errors: ProtocolError; the columns are unchanged then.
    """
    rows = _read_rows(batch, with_headers=columns.headers is not None)
    columns.offsets += array("q", rows.offsets)
    columns.timestamps += array("q", rows.timestamps)
    _append_column(columns.keys, columns.row_count, rows.keys)
    _append_column(columns.values, columns.row_count, rows.values)
    if columns.headers is not None:
        _append_headers(columns.headers, columns.row_count, rows)
    columns.row_count += len(rows.offsets)
    return len(rows.offsets)


def _read_rows(batch: BatchRecords, *, with_headers: bool) -> _Rows:
    rows = _Rows()
    payload = bytes(batch.payload)
    base, from_offset, until_offset = batch.base_offset, batch.from_offset, batch.until_offset
    position, total = 0, len(payload)
    for _ in range(batch.record_count):
        size, start = _signed(payload, position)
        end = start + size
        if size <= 0 or end > total:
            raise ProtocolError(f"the record at {position} has the length {size}, {total - start} bytes are left")
        timestamp_delta, at = _signed(payload, start + 1)
        delta, at = _signed(payload, at)
        key, at = _bytes(payload, at, end)
        value, at = _bytes(payload, at, end)
        header_count, at = _signed(payload, at)
        if not 0 <= header_count <= end - at:
            raise ProtocolError(f"the record at {position} has {header_count} headers")
        if not 0 <= delta <= batch.last_offset_delta:
            raise ProtocolError(
                f"the record at {position} has the offset delta {delta}, the batch's last is {batch.last_offset_delta}"
            )
        wanted = from_offset <= base + delta < until_offset
        if header_count:
            at = _read_headers(payload, at, end, header_count, rows if wanted and with_headers else _Rows())
        if at != end:
            raise ProtocolError(f"the record at {position} ends at {at} instead of {end}")
        position = end
        if wanted:
            rows.offsets.append(base + delta)
            rows.timestamps.append(
                _microseconds(
                    batch.base_timestamp + timestamp_delta if batch.append_time is None else batch.append_time
                )
            )
            rows.keys.append(key)
            rows.values.append(value)
            rows.header_counts.append(header_count)
    if position != total:
        raise ProtocolError(f"{total - position} bytes follow the last of {batch.record_count} records")
    return rows


def _read_headers(payload: bytes, at: int, end: int, count: int, rows: _Rows) -> int:
    """Reads the headers of a record that ends at `end`. Returns their end."""
    for _ in range(count):
        place = at
        name, at = _bytes(payload, at, end)
        if name is None:
            raise ProtocolError(f"the header at {place} has no name")
        content, at = _bytes(payload, at, end)
        rows.names.append(name if name.isascii() else name.decode(errors="replace").encode())
        rows.contents.append(content)
    return at


def _signed(payload: bytes, at: int) -> tuple[int, int]:
    """Returns the signed varint at `at`, and its end. Nearly all have one or two bytes."""
    try:
        raw = payload[at]
        if raw < _ONE_BYTE:
            return (raw >> 1) ^ -(raw & 1), at + 1
        more = payload[at + 1]
        if more < _ONE_BYTE:
            return (raw & 127 | more << 7) >> 1 ^ -(raw & 1), at + 2
    except IndexError:
        raise ProtocolError(f"the varint at {at} is cut") from None
    return read_varint(payload, at)


def _bytes(payload: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Returns the nullable byte string at `at` of a record that ends at `end`, and its end."""
    size, start = _signed(payload, at)
    stop = start + size
    if 0 <= size <= end - start:
        return payload[start:stop], stop
    if size == -1:
        return None, start
    raise ProtocolError(f"the field at {at} has the length {size}, {end - start} bytes are left")


def _microseconds(timestamp_ms: int) -> int:
    return max(-LATEST_MS, min(timestamp_ms, LATEST_MS)) * _MICROSECONDS


def _append_column(column: BinaryColumn, row_count: int, fields: list[bytes | None]) -> None:
    """Appends `fields` to a column that has `row_count` rows."""
    ends = accumulate((len(field) if field else 0 for field in fields), initial=len(column.values))
    next(ends)
    column.offsets += array("i", ends)
    column.values += b"".join(filter(None, fields))
    nulls = [number for number, field in enumerate(fields, row_count) if field is None] if None in fields else []
    column.null_count += len(nulls)
    _append_validity(column.validity, row_count + len(fields), nulls)


def _append_headers(column: HeaderColumn, row_count: int, rows: _Rows) -> None:
    ends = accumulate(rows.header_counts, initial=column.count)
    next(ends)
    column.offsets += array("i", ends)
    nulls = [number for number, count in enumerate(rows.header_counts, row_count) if not count]
    column.null_count += len(nulls)
    _append_validity(column.validity, row_count + len(rows.header_counts), nulls)
    _append_column(column.names, column.count, rows.names)
    _append_column(column.contents, column.count, rows.contents)
    column.count += len(rows.names)


def _append_validity(validity: bytearray, row_count: int, nulls: list[int]) -> None:
    """Extends the bitmap to `row_count` rows, and clears the bits of `nulls`. Bits after the last row are set."""
    validity += _SET * ((row_count + 7) // 8 - len(validity))
    for number in nulls:
        validity[number >> 3] &= ~(1 << (number & 7))


# ------------------------------------------------------------------ columns to records
class RowRun(NamedTuple):
    """Rows to write as one batch."""

    rows: RecordRows
    selected: Buffer | None
    """int64: the row numbers in the order of writing; None: all rows."""
    first: int
    """The index in `selected` of the batch's first record."""
    row_count: int
    """The maximum number of rows from there; at least one."""
    size_max: int
    """The maximum size of the records in bytes."""
    timestamp_ms: int
    """The timestamp of rows without their own."""


class WrittenRows(NamedTuple):
    """The rows that were written."""

    row_count: int
    """0 if the first record does not fit."""
    base_timestamp: int
    max_timestamp: int


def append_rows(out: bytearray, run: RowRun) -> WrittenRows:
    """Appends as many rows to `out` as fit, as the records of a batch.

    Errors: ValueError (or IndexError) for inconsistent columns, and for a header without a name.
    """
    rows = run.rows
    keys, values = (None if each is None else _ColumnReader(each) for each in (rows.keys, rows.values))
    headers = _HeaderReader(rows.headers) if rows.headers is not None else None
    selected = memoryview(run.selected).cast("B").cast("q") if run.selected is not None else None
    timestamps = memoryview(rows.timestamps_ms).cast("B").cast("q") if rows.timestamps_ms is not None else None
    base_timestamp = max_timestamp = run.timestamp_ms
    room = len(out) + run.size_max
    written = 0
    record = bytearray()
    for place in range(run.first, run.first + run.row_count):
        row = place if selected is None else selected[place]
        if not 0 <= row < rows.row_count:
            raise ValueError(f"there is no row {row} among {rows.row_count}")
        timestamp = run.timestamp_ms if timestamps is None else timestamps[row]
        first_timestamp = base_timestamp if written else timestamp
        record.clear()
        append_record(
            record,
            _within_64_bits(timestamp - first_timestamp),
            written,
            keys.read(row) if keys is not None else None,
            values.read(row) if values is not None else None,
            headers=headers.read(row) if headers is not None else (),
        )
        if len(out) + len(record) > room:
            break
        out += record
        base_timestamp, max_timestamp = first_timestamp, max(max_timestamp, timestamp) if written else timestamp
        written += 1
    return WrittenRows(written, base_timestamp, max_timestamp)


def _within_64_bits(delta: int) -> int:
    if not -(2**63) <= delta < 2**63:
        raise ValueError(f"timestamps of one batch are {delta} ms apart")
    return delta


class _ColumnReader:
    """Reads the entries of a column."""

    __slots__ = ("_first", "_offsets", "_validity", "_values")

    def __init__(self, column: BinaryInput) -> None:
        self._offsets = memoryview(column.offsets).cast("B").cast("i")
        self._values = memoryview(column.values).cast("B")
        self._validity = memoryview(column.validity).cast("B") if column.validity is not None else None
        self._first = column.first
        if column.first < 0:
            raise ValueError(f"a column begins at {column.first}")

    def read(self, row: int) -> bytes | None:
        """Returns the byte string of a row, or None for a null."""
        entry = self._first + row
        if self._validity is not None and not self._validity[entry >> 3] >> (entry & 7) & 1:
            return None
        start, end = self._offsets[entry], self._offsets[entry + 1]
        if not 0 <= start <= end <= len(self._values):
            raise ValueError(f"row {row} is from {start} to {end} of {len(self._values)} bytes")
        return bytes(self._values[start:end])


class _HeaderReader:
    """Reads the lists of a column of headers."""

    __slots__ = ("_contents", "_first", "_names", "_offsets", "_validity")

    def __init__(self, column: HeaderInput) -> None:
        self._offsets = memoryview(column.offsets).cast("B").cast("i")
        self._validity = memoryview(column.validity).cast("B") if column.validity is not None else None
        self._names = _ColumnReader(column.names)
        self._contents = _ColumnReader(column.contents)
        self._first = column.first
        if column.first < 0:
            raise ValueError(f"a column begins at {column.first}")

    def read(self, row: int) -> list[tuple[bytes, bytes | None]]:
        entry = self._first + row
        if self._validity is not None and not self._validity[entry >> 3] >> (entry & 7) & 1:
            return []
        start, end = self._offsets[entry], self._offsets[entry + 1]
        if not 0 <= start <= end:
            raise ValueError(f"the headers of row {row} are from {start} to {end}")
        headers: list[tuple[bytes, bytes | None]] = []
        for number in range(start, end):
            name = self._names.read(number)
            if name is None:
                raise ValueError(f"row {row} has a header without a name")
            headers.append((name, self._contents.read(number)))
        return headers
