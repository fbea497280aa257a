"""Compares the types that values have with those of a table's columns, and converts arrays from one to the other.

A wider column takes narrower values: long takes int, double takes float, and a decimal takes a smaller one of the same
scale. All else is a conflict. A column that the values lack is null.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import pyarrow as pa

from lowtide.pipeline.table.schemas.names import ELEMENT, Path, children, shown

_WIDER: Final = ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


def missing_fields(found: list[pa.Field], known: list[pa.Field]) -> list[pa.Field]:
    """Returns the fields that are not known, and the known structs, lists and maps that lack some, with these only.

    Fields whose types conflict are not among them.
    """
    by_name = {one.name: one.type for one in known}
    missing = []
    for one in found:
        column = by_name.get(one.name)
        kind = one.type if column is None else _missing_in(one.type, column)
        if kind is not None:
            missing.append(pa.field(one.name, kind))
    return missing


def _missing_in(found: pa.DataType, known: pa.DataType) -> pa.DataType | None:
    if pa.types.is_struct(found) and pa.types.is_struct(known):
        inner = missing_fields(children(found), children(known))
        return pa.struct(inner) if inner else None
    if pa.types.is_list(found) and pa.types.is_list(known):
        kind = _missing_in(found.value_type, known.value_type)
        return pa.list_(pa.field(ELEMENT, kind)) if kind is not None else None
    if pa.types.is_map(found) and pa.types.is_map(known):
        kind = _missing_in(found.item_type, known.item_type)
        return pa.map_(known.key_type, kind) if kind is not None else None
    return None


def conflict_of(found: list[pa.Field], known: list[pa.Field], path: Path = ()) -> str | None:
    """Returns the first conflict between the fields of values and those of a table, or None."""
    by_name = {one.name: one.type for one in known}
    for one in found:
        column = by_name.get(one.name)
        if column is not None and (text := _conflict(one.type, column, (*path, one.name))) is not None:
            return text
    return None


def _conflict(found: pa.DataType, column: pa.DataType, path: Path) -> str | None:
    if pa.types.is_struct(found) and pa.types.is_struct(column):
        return conflict_of(children(found), children(column), path)
    nested = (pa.types.is_list, pa.types.is_map)
    if any(test(found) and test(column) for test in nested):
        return conflict_of(children(found), children(column), path)
    if _takes(column, found):
        return None
    return f"{shown(path)}: the type is {type_name(found)}, and that of the column is {type_name(column)}"


def _takes(column: pa.DataType, found: pa.DataType) -> bool:
    if column.equals(found):
        return True
    if pa.types.is_decimal(column) and pa.types.is_decimal(found):
        return bool(column.scale == found.scale and column.precision >= found.precision)
    return (found, column) in _WIDER


def conform(array: pa.Array, column: pa.DataType) -> pa.Array:
    """Converts an array whose type has no conflict with the column's. Fields that only the array has are left out."""
    kind = array.type
    if kind.equals(column):
        return array
    if pa.types.is_null(kind):
        return pa.nulls(len(array), column)
    if pa.types.is_struct(column):
        names = {kind.field(index).name: index for index in range(kind.num_fields)}
        fields = children(column)
        arrays = [
            conform(array.field(names[one.name]), one.type) if one.name in names else pa.nulls(len(array), one.type)
            for one in fields
        ]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=array.is_null() if array.null_count else None)
    if pa.types.is_list(column):
        return _with_children(array, column, conform(array.values, column.value_type))
    if pa.types.is_map(column):
        pairs = [conform(array.keys, column.key_type), conform(array.items, column.item_type)]
        fields = [pa.field("key", column.key_type, nullable=False), pa.field("value", column.item_type)]
        return _with_children(array, column, pa.StructArray.from_arrays(pairs, fields=fields))
    return _uuids(array) if column == pa.uuid() else array.cast(column)


def _uuids(array: pa.Array) -> pa.Array:
    """Converts texts or 16 bytes. Errors: ValueError."""
    if pa.types.is_string(array.type):
        numbers = [None if one is None else UUID(one).bytes for one in array.to_pylist()]
        array = pa.array(numbers, pa.binary(16))
    return pa.ExtensionArray.from_storage(pa.uuid(), array)


def _with_children(array: pa.Array, column: pa.DataType, inner: pa.Array) -> pa.Array:
    """Returns a list or map with other elements at the same places."""
    validity, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(
        column, len(array), [validity, offsets], array.null_count, array.offset, children=[inner]
    )


def type_name(kind: pa.DataType) -> str:
    """Returns the name that Iceberg has for a type."""
    names = {
        pa.bool_(): "boolean",
        pa.int32(): "int",
        pa.int64(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
    }
    if kind in names:
        return names[kind]
    for test, name in ((pa.types.is_struct, "struct"), (pa.types.is_list, "list"), (pa.types.is_map, "map")):
        if test(kind):
            return name
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return "timestamp" if pa.types.is_timestamp(kind) else str(kind)
