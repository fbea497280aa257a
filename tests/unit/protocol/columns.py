"""Converts columns to Python values and back, for tests."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import pytest

from lowtide.protocol import native
from lowtide.protocol.columns import BinaryColumn, BinaryInput, HeaderColumn, HeaderInput, RecordColumns, RecordRows

COMPILED = native.compiled
needs_compiled = pytest.mark.skipif(COMPILED is None, reason="the compiled form wasn't built")


def bit(validity: bytes | bytearray, number: int) -> bool:
    return bool(validity[number >> 3] >> (number & 7) & 1)


def ints(code: str, buffer: bytes | bytearray) -> list[int]:
    return list(array(code, bytes(buffer)))


def binary(column: BinaryColumn, rows: int) -> list[bytes | None]:
    """The byte strings; the sizes of the buffers are as documented."""
    offsets = ints("i", column.offsets)
    assert len(offsets) == rows + 1
    assert offsets[0] == 0
    assert offsets[-1] == len(column.values)
    assert len(column.validity) == (rows + 7) // 8
    found = [
        bytes(column.values[offsets[i] : offsets[i + 1]]) if bit(column.validity, i) else None for i in range(rows)
    ]
    assert column.null_count == found.count(None)
    return found


def headers(column: HeaderColumn, rows: int) -> list[list[tuple[bytes | None, bytes | None]]]:
    offsets = ints("i", column.offsets)
    assert len(offsets) == rows + 1
    assert offsets[-1] == column.count
    names, contents = binary(column.names, column.count), binary(column.contents, column.count)
    found = [
        list(zip(names[offsets[i] : offsets[i + 1]], contents[offsets[i] : offsets[i + 1]], strict=True))
        for i in range(rows)
    ]
    assert [bit(column.validity, i) for i in range(rows)] == [bool(each) for each in found]
    assert column.null_count == found.count([])
    return found


def table(columns: RecordColumns) -> list[tuple[Any, ...]]:
    """Rows of offset, timestamp in microseconds, timestamp type, key, value, headers."""
    rows = columns.row_count
    lists = headers(columns.headers, rows) if columns.headers is not None else [None] * rows
    return list(
        zip(
            ints("q", columns.offsets),
            ints("q", columns.timestamps),
            ints("i", columns.timestamp_types),
            binary(columns.keys, rows),
            binary(columns.values, rows),
            lists,
            strict=True,
        )
    )


def buffers(columns: RecordColumns) -> list[Any]:
    """All buffers of columns, byte by byte."""
    found = [columns.row_count, columns.offsets, columns.timestamps, columns.timestamp_types]
    binaries = [columns.keys, columns.values]
    if columns.headers is not None:
        found += [columns.headers.validity, columns.headers.offsets, columns.headers.count, columns.headers.null_count]
        binaries += [columns.headers.names, columns.headers.contents]
    for column in binaries:
        found += [column.validity, column.offsets, column.values, column.null_count]
    return [bytes(each) if isinstance(each, bytearray) else each for each in found]


def binary_input(values: list[bytes | None], *, first: int = 0) -> BinaryInput:
    """A column as Arrow builds it: `first` other entries precede it, and without nulls there is no bitmap."""
    every = [b"before", None][:first] + [b"x"] * (first - 2) + values
    ends = [0]
    validity = bytearray((len(every) + 7) // 8)
    for number, value in enumerate(every):
        ends.append(ends[-1] + len(value or b""))
        validity[number >> 3] |= (value is not None) << (number & 7)
    return BinaryInput(
        offsets=struct.pack(f"={len(ends)}i", *ends),
        values=b"".join(value or b"" for value in every),
        validity=bytes(validity) if None in every else None,
        first=first,
    )


def header_input(lists: list[list[tuple[bytes, bytes | None]]], *, first: int = 0) -> HeaderInput:
    before = [[(b"b", b"1")]] * first
    every = before + lists
    ends = [0]
    for each in every:
        ends.append(ends[-1] + len(each))
    validity = bytearray((len(every) + 7) // 8)
    for number, each in enumerate(every):
        validity[number >> 3] |= bool(each) << (number & 7)
    flat = [header for each in every for header in each]
    return HeaderInput(
        offsets=struct.pack(f"={len(ends)}i", *ends),
        validity=bytes(validity),
        first=first,
        names=binary_input([name for name, _ in flat]),
        contents=binary_input([content for _, content in flat]),
    )


def record_rows(
    records: list[tuple[int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]], *, first: int = 0
) -> RecordRows:
    """Columns of records with timestamp, key, value and headers."""
    return RecordRows(
        row_count=len(records),
        timestamps_ms=array("q", [record[0] for record in records]),
        keys=binary_input([record[1] for record in records], first=first),
        values=binary_input([record[2] for record in records], first=first),
        headers=header_input([list(record[3]) for record in records], first=first),
    )
