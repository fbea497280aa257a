"""Puts the results of decoders together: rows for the table, and dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from lowtide.pipeline.table.schemas.decoding import DEAD_SCHEMA, PREFIX, RECORD_NAMES

MAX_ERROR_LENGTH: Final = 500

_DEAD_NAMES: Final = (*RECORD_NAMES, "value")


def table_of(records: pa.RecordBatch, dead: Mapping[int, str], columns: pa.StructArray, schema: pa.Schema) -> pa.Table:
    """Returns the rows of all records that aren't dead: their own columns, and those of the decoded values.

    `columns` has one element for each of them, in their order.
    """
    if dead:
        records = records.take(pa.array(alive(len(records), dead)))
    own = [schema.field(PREFIX + name) for name in RECORD_NAMES if PREFIX + name in schema.names]
    arrays = [records[one.name.removeprefix(PREFIX)].cast(one.type) for one in own]
    fields = [schema.field(columns.type.field(index).name) for index in range(columns.type.num_fields)]
    arrays += [columns.field(index) for index in range(columns.type.num_fields)]
    return pa.Table.from_arrays(arrays, schema=pa.schema([*own, *fields]))


def alive(count: int, dead: Mapping[int, str]) -> np.ndarray:
    """Returns the indexes of the records that aren't dead, in their order."""
    kept = np.ones(count, dtype=bool)
    kept[list(dead)] = False
    return np.flatnonzero(kept)


def dead_letters(records: pa.RecordBatch, dead: Mapping[int, str]) -> pa.Table | None:
    """Returns the records that are dead, with the reasons by their indexes; None without any."""
    if not dead:
        return None
    indexes = sorted(dead)
    taken = records.select(_DEAD_NAMES).take(pa.array(indexes, pa.int64()))
    reasons = pa.array([_short(dead[index]) for index in indexes], pa.string())
    return pa.Table.from_arrays([*taken.columns, reasons], schema=DEAD_SCHEMA)


def _short(text: str) -> str:
    printable = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text[:MAX_ERROR_LENGTH])
    return printable if len(text) <= MAX_ERROR_LENGTH else f"{printable}…"


def value_fields(schema: pa.Schema) -> list[pa.Field]:
    """Returns the columns of a table that are filled from values. Errors: ValueError, if one may not be null."""
    own = {PREFIX + name for name in RECORD_NAMES}
    fields = [one for one in schema if one.name not in own]
    for one in fields:
        _check_nullable(one, one.name)
    return fields


def _check_nullable(one: pa.Field, path: str) -> None:
    if not one.nullable:
        raise ValueError(f"the column {path} is required, but values may lack it: make it optional")
    if pa.types.is_struct(one.type):
        for index in range(one.type.num_fields):
            inner = one.type.field(index)
            _check_nullable(inner, f"{path}.{inner.name}")
    elif pa.types.is_list(one.type):
        _check_nullable(one.type.value_field, f"{path}.element")
