"""Chooses the compiled or the plain form (`column_walk`) of the steps of `record_columns` that visit each record.

The compiled form leaves records that no client writes to the plain one.
"""

from __future__ import annotations

from lowtide.protocol import column_walk, native
from lowtide.protocol.column_walk import BatchRecords, RowRun, WrittenRows
from lowtide.protocol.columns import BinaryInput, RecordColumns, RecordRows


def append_records(columns: RecordColumns, batch: BatchRecords) -> int:
    """See `column_walk.append_records`."""
    if native.compiled is not None:
        keys, values, headers = columns.keys, columns.values, columns.headers
        lists = None
        if headers is not None:
            names, contents = headers.names, headers.contents
            lists = (
                *(headers.validity, headers.offsets),
                *(names.validity, names.offsets, names.values),
                *(contents.validity, contents.offsets, contents.values),
            )
        arrays = (
            *(columns.offsets, columns.timestamps),
            *(keys.validity, keys.offsets, keys.values),
            *(values.validity, values.offsets, values.values),
        )
        done = native.compiled.append_records(
            batch, columns.row_count, arrays, headers.count if headers is not None else 0, lists
        )
        if done is not None:
            rows, null_keys, null_values, header_count, null_lists, null_contents = done
            columns.row_count += rows
            keys.null_count += null_keys
            values.null_count += null_values
            if headers is not None:
                headers.count += header_count
                headers.null_count += null_lists
                headers.contents.null_count += null_contents
            return rows
    return column_walk.append_records(columns, batch)


def append_rows(out: bytearray, run: RowRun) -> WrittenRows:
    """See `column_walk.append_rows`."""
    if native.compiled is not None:
        done = native.compiled.append_rows(out, _buffers(run.rows), run[1:])
        if done is not None:
            return WrittenRows(*done)
    return column_walk.append_rows(out, run)


def _buffers(rows: RecordRows) -> native.RowBuffers:
    lists = names = contents = None
    if rows.headers is not None:
        lists = (rows.headers.offsets, b"", rows.headers.validity, rows.headers.first)
        names, contents = _binary(rows.headers.names), _binary(rows.headers.contents)
    return rows.row_count, rows.timestamps_ms, _binary(rows.keys), _binary(rows.values), lists, names, contents


def _binary(column: BinaryInput | None) -> native.BinaryBuffers | None:
    return None if column is None else (column.offsets, column.values, column.validity, column.first)
