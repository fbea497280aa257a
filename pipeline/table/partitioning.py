"""Splits rows by the partitioning of a table.

PyIceberg computes the transforms of Arrow arrays in a package of its own (pyiceberg-core). Here they are computed in
Python, once for each distinct value; timestamps are rounded down first, so that there are few.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, YearTransform

_UNITS: Final = ((HourTransform, "hour"), (DayTransform, "day"), (MonthTransform, "month"), (YearTransform, "year"))


def split_rows(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> list[tuple[PartitionKey, pa.Table]]:
    """Returns the rows of each partition of the table, in their order. The rows have the columns of `schema`.

    Errors: ValueError for a transform that its column can't have.
    """
    codes: Any = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    values_of: list[list[Any]] = []
    for one in spec.fields:
        places, values = _transformed(rows, one, schema)
        codes = pc.add(pc.multiply(codes, len(values)), places)
        values_of.append(values)
    found = []
    distinct = pc.unique(codes).to_pylist()
    for code in distinct:
        part = rows if len(distinct) == 1 else rows.filter(pc.equal(codes, code))
        found.append((_key(code, values_of, spec, schema), part))
    return found


def _transformed(rows: pa.Table, one: PartitionField, schema: Schema) -> tuple[pa.Array, list[Any]]:
    """Returns the distinct results of a transform, and for each row the place of its result among them."""
    source, name = schema.find_field(one.source_id), schema.find_column_name(one.source_id)
    assert name is not None, f"the partitioning has a column with the id {one.source_id}"
    column = _column(rows, name).combine_chunks()
    unit = next((unit for kind, unit in _UNITS if isinstance(one.transform, kind)), None)
    if unit is not None and pa.types.is_timestamp(column.type):
        column = pc.floor_temporal(column, unit=unit)
    encoded = column.dictionary_encode("encode")
    transform = one.transform.transform(source.field_type)
    results = [transform(value) for value in encoded.dictionary.to_pylist()]
    values = list(dict.fromkeys(results))
    place_of = pa.array([values.index(result) for result in results], pa.int64())
    return place_of.take(encoded.indices), values


def _column(rows: pa.Table, name: str) -> Any:
    """Returns a column, or a field of a struct column by its path."""
    if name in rows.column_names:
        return rows.column(name)
    first, *rest = name.split(".")
    return pc.struct_field(rows.column(first), rest)


def _key(code: int, values_of: list[list[Any]], spec: PartitionSpec, schema: Schema) -> PartitionKey:
    """Returns the partition of a code, which has a digit for each field."""
    chosen = []
    for values in reversed(values_of):
        code, place = divmod(code, len(values))
        chosen.append(values[place])
    pairs = zip(spec.fields, reversed(chosen), strict=True)
    return PartitionKey([PartitionFieldValue(field, value) for field, value in pairs], spec, schema)
