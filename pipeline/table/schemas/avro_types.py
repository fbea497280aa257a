"""Translates Avro schemas: to the types of columns, and to the schema by which values are read.

| Avro | column |
|---|---|
| boolean, int, long, float, double, string, bytes | the same; bytes is binary |
| record, array, map, fixed | struct, list, map with keys of text, fixed |
| enum | string |
| a union of null and one other type | that type |
| any other union | a struct with one field for each type, of which one isn't null |
| decimal, date, uuid | the same |
| time-millis, time-micros | time |
| timestamp-millis, timestamp-micros | timestamp with time zone |
| local-timestamp-millis, local-timestamp-micros | timestamp |
| another logical type | its type |
| null, and a record without any column | no column |

Values are read by a schema that has the same bytes: a member of a union is a record of one field, so that it is read as
a struct, and times are plain numbers, which Arrow converts together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from lowtide.admin.schemas.registry import UnsupportedSchemaError
from lowtide.pipeline.table.schemas.names import MAX_COLUMNS, MAX_DEPTH
from lowtide.pipeline.table.schemas.tallies import list_of

_PRIMITIVES: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}

_NUMBERS: Final = {
    ("int", "date"): (pa.date32(), pa.date32()),
    ("int", "time-millis"): (pa.time32("ms"), pa.time64("us")),
    ("long", "time-micros"): (pa.time64("us"), pa.time64("us")),
    ("long", "timestamp-millis"): (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")),
    ("long", "timestamp-micros"): (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
    ("long", "local-timestamp-millis"): (pa.timestamp("ms"), pa.timestamp("us")),
    ("long", "local-timestamp-micros"): (pa.timestamp("us"), pa.timestamp("us")),
}
"""Logical types of numbers: as which type Arrow reads the number, and the column's type."""

_NAMED: Final = ("record", "error", "enum", "fixed")
_MAX_PRECISION: Final = 38
_UUID_BYTES: Final = 16
_WRAPPER: Final = "lowtide.member"


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroType:
    """One type, translated."""

    read_as: Any
    """The Avro schema by which the bytes are read."""
    arrow: pa.DataType
    """The type of what was read; null for what makes no column."""
    column: pa.DataType
    is_empty: bool = False
    """Whether values may have no bytes at all. An array of them could have any length."""
    leaves: int = 1
    """The columns that it makes. A few types that use each other many times can make any number."""


def translate(text: str, references: Mapping[str, str]) -> AvroType:
    """Translates a schema of records, with the schemas that it refers to.

    Errors: UnsupportedSchemaError.
    """
    try:
        found = _Translation(references).translated(json.loads(text), "", 0)
    except UnsupportedSchemaError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UnsupportedSchemaError(f"it is no Avro schema: {type(error).__name__} {error}") from error
    if not isinstance(found.read_as, dict) or found.read_as.get("type") != "record":
        raise UnsupportedSchemaError("it is not a record, so its values have no columns")
    return found


def _none(read_as: Any, *, is_empty: bool = True) -> AvroType:
    return AvroType(read_as=read_as, arrow=pa.null(), column=pa.null(), is_empty=is_empty)


def _struct(read_as: Any, fields: list[tuple[str, AvroType]], *, is_empty: bool = False) -> AvroType:
    names = {name for name, _ in fields}
    if len(names) < len(fields):
        raise UnsupportedSchemaError(f"two fields, or two types of a union, have the same name, of {sorted(names)}")
    leaves = sum(one.leaves for _, one in fields)
    if leaves > MAX_COLUMNS:
        raise UnsupportedSchemaError(f"it makes more than {MAX_COLUMNS} columns")
    return AvroType(
        read_as=read_as,
        arrow=pa.struct([pa.field(name, one.arrow) for name, one in fields]),
        column=pa.struct([pa.field(name, one.column) for name, one in fields]),
        is_empty=is_empty,
        leaves=leaves,
    )


class _Translation:
    def __init__(self, references: Mapping[str, str]) -> None:
        self._known: dict[str, AvroType | None] = {}
        """Named types by their full names; None while one is translated."""
        self._declared: dict[str, tuple[Any, str]] = {}
        """Named types of the schemas that are referred to, with the namespace around them."""
        self._members = 0
        for one in references.values():
            self._declare(json.loads(one), "", 0)

    def _declare(self, schema: Any, namespace: str, depth: int) -> None:
        """Finds the named types in a schema that is referred to."""
        if depth > 2 * MAX_DEPTH:
            raise UnsupportedSchemaError(f"it is nested deeper than {MAX_DEPTH} levels")
        if isinstance(schema, list):
            for one in schema:
                self._declare(one, namespace, depth + 1)
        elif isinstance(schema, dict):
            kind = schema.get("type")
            if kind in _NAMED:
                name, inner = _full_name(schema, namespace)
                self._declared[name] = (schema, namespace)
                for field in schema.get("fields", ()):
                    self._declare(field["type"], inner, depth + 1)
            for key in ("type", "items", "values"):
                if not isinstance(schema.get(key), str):
                    self._declare(schema.get(key), namespace, depth + 1)

    def translated(self, schema: Any, namespace: str, depth: int) -> AvroType:
        if depth > 2 * MAX_DEPTH:
            raise UnsupportedSchemaError(f"it is nested deeper than {MAX_DEPTH} levels")
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if isinstance(schema, str):
            return self._by_name(schema, namespace, depth)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.translated(kind, namespace, depth + 1)
        kinds = {"array": self._array, "map": self._map, **dict.fromkeys(_NAMED, self._named)}
        if kind in kinds:
            return kinds[kind](schema, namespace, depth)
        return _logical(schema, kind) or self._by_name(kind, namespace, depth)

    def _by_name(self, name: str, namespace: str, depth: int) -> AvroType:
        if name in _PRIMITIVES:
            kind = _PRIMITIVES[name]
            return AvroType(read_as=name, arrow=kind, column=kind, is_empty=name == "null")
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        full = full if full in self._known or full in self._declared else name
        if full in self._known:
            found = self._known[full]
            if found is None:
                raise UnsupportedSchemaError(f"the type {full} contains itself, which no column can")
            return replace(found, read_as=full)
        if full not in self._declared:
            raise UnsupportedSchemaError(f"the type {full} is not declared")
        declared, around = self._declared[full]
        return self._named(declared, around, depth)

    def _named(self, schema: Any, namespace: str, depth: int) -> AvroType:
        name, inner = _full_name(schema, namespace)
        if name in self._known:
            raise UnsupportedSchemaError(f"the type {name} is declared twice")
        self._known[name] = None
        kind = schema["type"]
        if kind == "enum":
            read_as = {"type": "enum", "name": name, "symbols": schema["symbols"]}
            found = AvroType(read_as=read_as, arrow=pa.string(), column=pa.string())
        elif kind == "fixed":
            found = _fixed(schema, name)
        else:
            found = self._record(schema, name, inner, depth)
        self._known[name] = found
        return found

    def _record(self, schema: Any, name: str, namespace: str, depth: int) -> AvroType:
        fields = [(one["name"], self.translated(one["type"], namespace, depth + 1)) for one in schema["fields"]]
        read_as = {
            "type": "record",
            "name": name,
            "fields": [{"name": field, "type": one.read_as} for field, one in fields],
        }
        is_empty = all(one.is_empty for _, one in fields)
        kept = [(field, one) for field, one in fields if not pa.types.is_null(one.column)]
        if not kept:
            return _none(read_as, is_empty=is_empty)
        return _struct(read_as, kept, is_empty=is_empty)

    def _union(self, schema: list[Any], namespace: str, depth: int) -> AvroType:
        members = [(_member_name(one), self.translated(one, namespace, depth + 1)) for one in schema]
        others = [(name, one) for name, one in members if name != "null"]
        if len(others) <= 1:
            kinds = [one for _, one in others]
            read_as = [one.read_as for _, one in members]
            return replace(kinds[0], read_as=read_as, is_empty=False) if kinds else _none(read_as, is_empty=False)
        read_as = ["null" if name == "null" else self._member(name, one) for name, one in members]
        kept = [(name, one) for name, one in others if not pa.types.is_null(one.column)]
        if not kept:
            return _none(read_as, is_empty=False)
        return _struct(read_as, kept)

    def _member(self, name: str, one: AvroType) -> Any:
        self._members += 1
        fields = [{"name": name, "type": one.read_as}]
        return {"type": "record", "name": f"{_WRAPPER}{self._members}", "fields": fields}

    def _array(self, schema: Any, namespace: str, depth: int) -> AvroType:
        inner = self.translated(schema["items"], namespace, depth + 1)
        _check_bytes(inner)
        read_as = {"type": "array", "items": inner.read_as}
        if pa.types.is_null(inner.column):
            return _none(read_as, is_empty=False)
        return AvroType(read_as=read_as, arrow=list_of(inner.arrow), column=list_of(inner.column), leaves=inner.leaves)

    def _map(self, schema: Any, namespace: str, depth: int) -> AvroType:
        inner = self.translated(schema["values"], namespace, depth + 1)
        read_as = {"type": "map", "values": inner.read_as}
        if pa.types.is_null(inner.column):
            return _none(read_as, is_empty=False)
        return AvroType(
            read_as=read_as,
            arrow=pa.map_(pa.string(), inner.arrow),
            column=pa.map_(pa.string(), inner.column),
            leaves=inner.leaves + 1,
        )


def _check_bytes(inner: AvroType) -> None:
    if inner.is_empty:
        raise UnsupportedSchemaError("an array has elements without bytes, so a record could say any number of them")


def _logical(schema: Any, kind: str) -> AvroType | None:
    """Translates a logical type of numbers, bytes or text. Returns None for one that is unknown or invalid."""
    name = schema.get("logicalType")
    if (kind, name) in _NUMBERS:
        arrow, column = _NUMBERS[kind, name]
        return AvroType(read_as=kind, arrow=arrow, column=column)
    if name == "uuid" and kind == "string":
        return AvroType(read_as=kind, arrow=pa.string(), column=pa.uuid())
    if name == "decimal" and kind == "bytes" and (decimal := _decimal(schema)) is not None:
        read_as = {"type": kind, "logicalType": name, "precision": decimal.precision, "scale": decimal.scale}
        return AvroType(read_as=read_as, arrow=decimal, column=decimal)
    return None


def _fixed(schema: Any, name: str) -> AvroType:
    size = int(schema["size"])
    read_as = {"type": "fixed", "name": name, "size": size}
    logical = schema.get("logicalType")
    if logical == "decimal" and (decimal := _decimal(schema)) is not None:
        read_as |= {"logicalType": logical, "precision": decimal.precision, "scale": decimal.scale}
        return AvroType(read_as=read_as, arrow=decimal, column=decimal)
    if logical == "uuid" and size == _UUID_BYTES:
        return AvroType(read_as=read_as, arrow=pa.binary(size), column=pa.uuid())
    if size < 1:
        return _none(read_as)
    return AvroType(read_as=read_as, arrow=pa.binary(size), column=pa.binary(size))


def _decimal(schema: Any) -> pa.Decimal128Type | None:
    """Returns the type of a decimal; None if Iceberg has none, and the bytes are kept."""
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not (isinstance(precision, int) and isinstance(scale, int)):
        return None
    return pa.decimal128(precision, scale) if 0 < precision <= _MAX_PRECISION and 0 <= scale <= precision else None


def _full_name(schema: Any, namespace: str) -> tuple[str, str]:
    """Returns the full name of a named type, and the namespace inside of it."""
    name = schema["name"]
    if "." not in name:
        around = schema.get("namespace", namespace)
        name = f"{around}.{name}" if around else name
    return name, name.rpartition(".")[0]


def _member_name(schema: Any) -> str:
    """Returns the name of a union's member, as its field."""
    if isinstance(schema, str):
        return schema.rpartition(".")[2]
    name = schema.get("name") or schema["type"]
    return _member_name(name) if isinstance(name, str | dict) else "union"
