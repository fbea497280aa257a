"""Converts columns of records to Arrow's record batches, without a copy: the arrays are the columns' own buffers.

The schema is that of Spark's Kafka source. Spark refuses a batch with another order or another type of columns
(DATA_SOURCE_RETURN_SCHEMA_MISMATCH).
"""

from __future__ import annotations

import struct
from array import array
from typing import Final

import pyarrow as pa

from lowtide.protocol.columns import BinaryColumn, HeaderColumn, RecordColumns
from lowtide.protocol.types import TopicPartition

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_FIELDS: Final = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", _TIMESTAMP),
    pa.field("timestampType", pa.int32()),
)
ARROW_SCHEMA: Final = pa.schema(_FIELDS)
ARROW_SCHEMA_WITH_HEADERS: Final = pa.schema([*_FIELDS, pa.field("headers", pa.list_(pa.field("element", _HEADER)))])

_INT32 = struct.Struct("=i")


class BatchMaker:
    """Builds the batches of one partition. The constant columns are built once."""

    def __init__(self, partition: TopicPartition, *, include_headers: bool) -> None:
        self._partition = partition
        self._include_headers = include_headers
        self._row_count = 0
        self._topics: pa.Array
        self._partitions: pa.Array
        self._make_constants(1)

    def batch(self, columns: RecordColumns) -> pa.RecordBatch:
        """Returns a batch of the columns. It owns their buffers from now on."""
        rows = columns.row_count
        if rows > self._row_count:
            self._make_constants(max(rows, 2 * self._row_count))
        arrays = [
            _binary(pa.binary(), columns.keys, rows),
            _binary(pa.binary(), columns.values, rows),
            self._topics.slice(0, rows),
            self._partitions.slice(0, rows),
            _fixed(pa.int64(), columns.offsets, rows),
            _fixed(_TIMESTAMP, columns.timestamps, rows),
            _fixed(pa.int32(), columns.timestamp_types, rows),
        ]
        if not self._include_headers:
            return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)
        assert columns.headers is not None
        return pa.RecordBatch.from_arrays([*arrays, _headers(columns.headers, rows)], schema=ARROW_SCHEMA_WITH_HEADERS)

    def _make_constants(self, rows: int) -> None:
        self._row_count = rows
        name = self._partition.topic.encode()
        offsets = array("i", range(0, (rows + 1) * len(name), len(name))) if name else array("i", bytes(4 * (rows + 1)))
        self._topics = pa.Array.from_buffers(
            pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(name * rows)], 0
        )
        self._partitions = _fixed(pa.int32(), _INT32.pack(self._partition.partition) * rows, rows)


def _fixed(kind: pa.DataType, values: bytes | bytearray, rows: int) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)], 0)


def _binary(kind: pa.DataType, column: BinaryColumn, rows: int) -> pa.Array:
    validity = pa.py_buffer(column.validity) if column.null_count else None
    return pa.Array.from_buffers(
        kind, rows, [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.values)], column.null_count
    )


def _headers(column: HeaderColumn, rows: int) -> pa.Array:
    fields = [_binary(pa.string(), column.names, column.count), _binary(pa.binary(), column.contents, column.count)]
    pairs = pa.StructArray.from_arrays(fields, fields=list(_HEADER))
    validity = pa.py_buffer(column.validity) if column.null_count else None
    kind = ARROW_SCHEMA_WITH_HEADERS.field("headers").type
    return pa.Array.from_buffers(
        kind, rows, [validity, pa.py_buffer(column.offsets)], column.null_count, children=[pairs]
    )
