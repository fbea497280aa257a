"""Records as columns, in the buffers of Arrow's arrays, so that no object is created per record.

`record_columns.append_batches` writes `RecordColumns`; `record_columns.build_batches` reads `RecordRows`. A column of
byte strings is a binary (or string) array of Arrow:

| buffer   | bytes           | content                                                                         |
|----------|-----------------|---------------------------------------------------------------------------------|
| validity | (rows + 7) // 8 | a bit per row, the lowest bit first: 1 for a value, 0 for null                  |
| offsets  | 4 * (rows + 1)  | int32 in the machine's byte order: row i is `values[offsets[i]:offsets[i + 1]]` |
| values   | `offsets[rows]` | the concatenated byte strings; a null has none                                  |

    buffers = [pyarrow.py_buffer(buffer) for buffer in (validity, offsets, values)]
    pyarrow.Array.from_buffers(pyarrow.binary(), rows, buffers, null_count)

Nothing here imports Arrow. Buffers that an array uses cannot grow (BufferError): later records need new columns.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lowtide.protocol.compression import Buffer

COLUMN_BYTES_MAX: Final = 2**31 - 1
"""The range of int32 offsets."""

_FIRST_OFFSET: Final = bytes(4)


class BinaryColumn:
    """A growing column of nullable byte strings."""

    __slots__ = ("null_count", "offsets", "validity", "values")

    def __init__(self) -> None:
        self.validity = bytearray()
        self.offsets = bytearray(_FIRST_OFFSET)
        self.values = bytearray()
        self.null_count = 0

    @property
    def size_bytes(self) -> int:
        return len(self.validity) + len(self.offsets) + len(self.values)


class HeaderColumn:
    """A growing column of lists of headers, for Arrow's `list<struct<key: string, value: binary>>`.

    Row i has the headers from `offsets[i]` to `offsets[i + 1]` (int32, exclusive) of `names` and `contents`; a row
    without headers is null. Names are never null; bytes that are not UTF-8 are replaced by U+FFFD.
    """

    __slots__ = ("contents", "count", "names", "null_count", "offsets", "validity")

    def __init__(self) -> None:
        self.validity = bytearray()
        self.offsets = bytearray(_FIRST_OFFSET)
        self.names = BinaryColumn()
        self.contents = BinaryColumn()
        self.count = 0
        """The number of headers of all rows."""
        self.null_count = 0

    @property
    def size_bytes(self) -> int:
        return len(self.validity) + len(self.offsets) + self.names.size_bytes + self.contents.size_bytes


class RecordColumns:
    """Growing columns with a row for each record."""

    __slots__ = ("headers", "keys", "offsets", "row_count", "timestamp_types", "timestamps", "values")

    def __init__(self, *, with_headers: bool = False) -> None:
        self.row_count = 0
        self.offsets = bytearray()
        """int64"""
        self.timestamps = bytearray()
        """int64, microseconds since 1970; limited to the range of 64 bits."""
        self.timestamp_types = bytearray()
        """int32: 0 for the producer's time, 1 for the append time."""
        self.keys = BinaryColumn()
        self.values = BinaryColumn()
        self.headers = HeaderColumn() if with_headers else None

    @property
    def size_bytes(self) -> int:
        size = (
            len(self.offsets)
            + len(self.timestamps)
            + len(self.timestamp_types)
            + self.keys.size_bytes
            + self.values.size_bytes
        )
        return size if self.headers is None else size + self.headers.size_bytes


class BinaryInput(msgspec.Struct, frozen=True, kw_only=True):
    """A column of byte strings to write: the buffers of an Arrow array, and its `offset`."""

    offsets: Buffer
    """int32."""
    values: Buffer
    validity: Buffer | None = None
    """None if no row is null."""
    first: int = 0
    """Row i is entry `first + i` of the buffers: a slice of an array shares its buffers."""


class HeaderInput(msgspec.Struct, frozen=True, kw_only=True):
    """Lists of headers to write: the buffers of a list array, and the arrays of its structs' two fields.

    `first` of `names` and `contents` is the entry for offset 0 of the lists: the struct's `offset` plus the field's.
    """

    offsets: Buffer
    """int32, into the fields."""
    names: BinaryInput
    contents: BinaryInput
    validity: Buffer | None = None
    first: int = 0


class RecordRows(msgspec.Struct, frozen=True, kw_only=True):
    """Records to write, as columns of `row_count` rows. A column that is None is null in all rows."""

    row_count: int
    values: BinaryInput | None
    keys: BinaryInput | None = None
    headers: HeaderInput | None = None
    timestamps_ms: Buffer | None = None
    """int64, without nulls; None: all rows have the time of the batch."""
