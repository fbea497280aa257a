"""Which rows of a table belong to a person: by keys, by a header, or by offsets, as `records erase` names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from lowtide.admin.finding import RecordQuery
from lowtide.pipeline.table.schemas.decoding import PREFIX
from lowtide.protocol.offset_ranges import OffsetRanges

KEY: Final = "key"
HEADERS: Final = "headers"
PARTITION: Final = "partition"
OFFSET: Final = "offset"
RECORD_COLUMNS: Final = (PARTITION, OFFSET, "timestamp", KEY, HEADERS)
"""The columns of a record's place and key. Schemas other than `raw` write them with a prefix."""


class ColumnsError(Exception):
    """A table lacks columns of records. The text is a sentence without its full stop."""


def record_columns(schema: Schema, wanted: tuple[str, ...] = RECORD_COLUMNS) -> dict[str, int]:
    """Returns the field ids of columns of records by their names without prefix. Errors: ColumnsError."""
    top = {field.name: field.field_id for field in schema.fields}
    for prefix in (PREFIX, ""):
        if all(prefix + name in top for name in RECORD_COLUMNS):
            return {name: top[prefix + name] for name in wanted}
    raise ColumnsError("it lacks the columns of records (partition, offset, timestamp, key, headers)")


class RowSelector:
    """The rows that an erasure names. Its `repr` has no content."""

    def __init__(self, query: RecordQuery) -> None:
        """Errors: ValueError for what a ledger names: it has no keys."""
        if query.named is not None:
            raise ValueError("rows of a table are selected by keys, a header or offsets")
        self._keys = sorted(query.keys)
        self._header = query.header
        self._offsets: Mapping[int, OffsetRanges] | None = None
        if query.offsets is not None:
            self._offsets = {each.partition: ranges for each, ranges in query.offsets.items()}
        self.columns: tuple[str, ...] = (KEY,)
        """The columns that decide, by their names without prefix."""
        if self._header is not None:
            self.columns = (HEADERS,)
        if self._offsets is not None:
            self.columns = (PARTITION, OFFSET)

    def __repr__(self) -> str:
        return "RowSelector()"

    def mask(self, columns: Mapping[str, pa.Array]) -> np.ndarray:
        """Returns for each row whether it is selected. `columns` are those of `self.columns`."""
        if self._offsets is not None:
            return _at_offsets(columns[PARTITION], columns[OFFSET], self._offsets)
        if self._header is not None:
            return _with_header(columns[HEADERS], *self._header)
        column = columns[KEY].cast(pa.binary())
        return np.asarray(pc.is_in(column, value_set=pa.array(self._keys, pa.binary())))


def _at_offsets(partitions: pa.Array, offsets: pa.Array, wanted: Mapping[int, OffsetRanges]) -> np.ndarray:
    found = np.zeros(len(offsets), dtype=bool)
    known = np.asarray(pc.and_(partitions.is_valid(), offsets.is_valid()))
    rows = np.asarray(partitions.fill_null(-1).cast(pa.int64()))
    places = np.asarray(offsets.fill_null(-1).cast(pa.int64()))
    for partition, ranges in ((each, ranges) for each, ranges in wanted.items() if ranges):
        firsts = np.array([each.first for each in ranges], dtype=np.int64)
        lasts = np.array([each.last for each in ranges], dtype=np.int64)
        index = np.searchsorted(firsts, places, side="right") - 1
        found |= (rows == partition) & (index >= 0) & (places <= lasts[np.maximum(index, 0)])
    found &= known
    return found


def _with_header(headers: pa.Array, name: str, value: bytes | None) -> np.ndarray:
    found = np.zeros(len(headers), dtype=bool)
    pairs = pc.list_flatten(headers)
    values = pc.struct_field(pairs, "value").cast(pa.binary())
    same = values.is_null() if value is None else pc.equal(values, pa.scalar(value, pa.binary()))
    matching = pc.and_(pc.equal(pc.struct_field(pairs, "key"), name), same).fill_null(False)
    found[np.asarray(pc.list_parent_indices(headers).filter(matching))] = True
    return found
