"""Records as columns: the buffers that Arrow's arrays are made of, so that no object is created for a record.

`RecordColumns` is written, by `record_columns.append_batches`; `RecordRows` is read, by `record_columns.build_batches`. A column of byte
strings is what Arrow calls a binary (or string) array:

| buffer   | bytes                | what                                                                           |
|----------|----------------------|--------------------------------------------------------------------------------|
| validity | (rows + 7) // 8      | a bit a row, the lowest bit first: 1 where there is a value, 0 for null        |
| offsets  | 4 * (rows + 1)       | int32 in the machine's order: row i is `values[offsets[i]:offsets[i + 1]]`      |
| values   | `offsets[rows]`      | the byte strings one behind the other; a null has none                         |

    pyarrow.Array.from_buffers(pyarrow.binary(), rows, [pyarrow.py_buffer(buffer) for buffer in (validity, offsets,
    values)], null_count)

Nothing here imports Arrow. A buffer that an array was made of can't grow any more (BufferError): the next records go
into new columns.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lowtide.protocol.compression import Buffer

COLUMN_BYTES_MAX: Final = 2**31 - 1
"""What int32 offsets can tell apart."""

_FIRST_OFFSET: Final = bytes(4)


class BinaryColumn:
    """A growing column of byte strings, some of them null, in Arrow's buffers as described above."""

    __slots__ = ("null_count", "offsets", "validity", "values")

    def __init__(self) -> None:
        self.validity = bytearray()
        self.offsets = bytearray(_FIRST_OFFSET)
        self.values = bytearray()
        self.null_count = 0

    @property
    def size_bytes(self) -> int:
        """Of its buffers together."""
        return len(self.validity) + len(self.offsets) + len(self.values)


class HeaderColumn:
    """A growing column of lists of headers, for Arrow's `list<struct<key: string, value: binary>>`.

    Row i has the headers `offsets[i]` to `offsets[i + 1]` (int32, exclusive) of `names` and `contents`, and is null
    where there are none. Names are UTF-8: what isn't has U+FFFD in its place. They are never null.
    """

    __slots__ = ("contents", "count", "names", "null_count", "offsets", "validity")

    def __init__(self) -> None:
        self.validity = bytearray()
        self.offsets = bytearray(_FIRST_OFFSET)
        self.names = BinaryColumn()
        self.contents = BinaryColumn()
        self.count = 0
        """Headers of all rows."""
        self.null_count = 0

    @property
    def size_bytes(self) -> int:
        """Of its buffers together."""
        return len(self.validity) + len(self.offsets) + self.names.size_bytes + self.contents.size_bytes


class RecordColumns:
    """Growing columns with a row for each record."""

    __slots__ = ("headers", "keys", "offsets", "row_count", "timestamp_types", "timestamps", "values")

    def __init__(self, *, with_headers: bool = False) -> None:
        self.row_count = 0
        self.offsets = bytearray()
        """int64"""
        self.timestamps = bytearray()
        """int64, microseconds since 1970; what doesn't fit is the nearest that does."""
        self.timestamp_types = bytearray()
        """int32: 0 for the time that a producer has set, 1 for that of the append."""
        self.keys = BinaryColumn()
        self.values = BinaryColumn()
        self.headers = HeaderColumn() if with_headers else None

    @property
    def size_bytes(self) -> int:
        """Of all buffers together."""
        size = (
            len(self.offsets)
            + len(self.timestamps)
            + len(self.timestamp_types)
            + self.keys.size_bytes
            + self.values.size_bytes
        )
        return size if self.headers is None else size + self.headers.size_bytes


class BinaryInput(msgspec.Struct, frozen=True, kw_only=True):
    """A column of byte strings to be written: the buffers of an Arrow array, and its `offset`."""

    offsets: Buffer
    """int32."""
    values: Buffer
    validity: Buffer | None = None
    """None where no row is null."""
    first: int = 0
    """Row i is entry `first + i` of the buffers: an array that is a slice of another has its buffers."""


class HeaderInput(msgspec.Struct, frozen=True, kw_only=True):
    """Lists of headers to be written: the buffers of a list array, and the arrays of its structs' two fields.

    `first` of `names` and `contents` is where entry 0 of the lists' own offsets is: the struct's `offset` plus the field's.
    """

    offsets: Buffer
    """int32, into the fields."""
    names: BinaryInput
    contents: BinaryInput
    validity: Buffer | None = None
    first: int = 0


class RecordRows(msgspec.Struct, frozen=True, kw_only=True):
    """Records to be written, as columns of `row_count` rows. A column that is None is null in all rows."""

    row_count: int
    values: BinaryInput | None
    keys: BinaryInput | None = None
    headers: HeaderInput | None = None
    timestamps_ms: Buffer | None = None
    """int64, a row's at `timestamps_ms[i]`, without nulls; None: all rows have the time of the batch."""
