"""Decides which columns a table gets from what the batches and tasks of a round have found.

The result depends on the records only, not on how they were split: what was found is carried in the metadata of
`Decoded.new_columns`, joined here, and then decided once. JSON carries counts (`tallies`). Avro and Protobuf carry the
types that the schemas of the writers declare, by the schema's id: of two that declare a column differently, the one
with the lower id decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from lowtide.admin.schemas.framing import Head
from lowtide.pipeline.table.schemas.conforming import missing_fields
from lowtide.pipeline.table.schemas.decoding import NO_COLUMNS, arrow_schema_of
from lowtide.pipeline.table.schemas.names import ColumnNames, Path, children
from lowtide.pipeline.table.schemas.tallies import Tally, list_of, wanted
from lowtide.runtime.json_text import decode_json

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

_TALLY: Final = b"lowtide.tally"
_DECLARED: Final = b"lowtide.declared."


def union_of_columns(table_schema: Schema, found: Iterable[pa.Schema]) -> pa.Schema:
    """Returns the columns that a table gets, from the `new_columns` of several batches and tasks.

    All of them must have been decoded for `table_schema`. It is empty only if all of them are.
    """
    known = list(arrow_schema_of(table_schema))
    tally = Tally()
    declared: dict[Head, pa.Schema] = {}
    for one in found:
        for key, value in (one.metadata or {}).items():
            if key == _TALLY:
                tally.merge(decode_json(value, Tally))
            elif key.startswith(_DECLARED):
                head = tuple(int(one) for one in key.removeprefix(_DECLARED).split(b"."))
                declared[head] = pa.ipc.read_schema(pa.py_buffer(value))
    if declared:
        return columns_declared(known, declared)
    return columns_counted(known, tally)


def columns_counted(known: list[pa.Field], tally: Tally) -> pa.Schema:
    """Returns the columns that a table gets from what a tally has counted."""
    admitted = _Admission(known).admitted(wanted(tally, known))
    return pa.schema(admitted, metadata={_TALLY: msgspec.json.encode(tally)}) if admitted else NO_COLUMNS


def columns_declared(known: list[pa.Field], declared: Mapping[Head, pa.Schema]) -> pa.Schema:
    """Returns the columns that a table gets from the schemas of writers, by their ids."""
    fields = known
    for _, one in sorted(declared.items()):
        added = _Admission(fields).admitted(missing_fields(list(one), fields))
        fields = merged_fields(fields, added)
    added = missing_fields(fields, known)
    if not added:
        return NO_COLUMNS
    metadata = {
        _DECLARED + ".".join(map(str, head)).encode(): one.serialize().to_pybytes() for head, one in declared.items()
    }
    return pa.schema(added, metadata=metadata)


def merged_fields(known: list[pa.Field], added: list[pa.Field]) -> list[pa.Field]:
    """Returns fields with what was added to them, also inside."""
    more = {one.name: one for one in added}
    merged = [one.with_type(_merged(one.type, more.pop(one.name).type)) if one.name in more else one for one in known]
    return [*merged, *more.values()]


def _merged(known: pa.DataType, added: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(known):
        return pa.struct(merged_fields(children(known), children(added)))
    if pa.types.is_list(known):
        return list_of(_merged(known.value_type, added.value_type))
    if pa.types.is_map(known):
        return pa.map_(known.key_type, _merged(known.item_type, added.item_type))
    return known


class _Admission:
    """Takes columns in their order until the table is full, and leaves out those whose names are refused."""

    def __init__(self, known: list[pa.Field]) -> None:
        self._names = ColumnNames(known)
        self._known = known

    def admitted(self, fields: list[pa.Field]) -> list[pa.Field]:
        """Returns the fields that the table gets. They are all nullable."""
        by_name = {one.name: one.type for one in self._known}
        return self._fields(fields, (), by_name)

    def _fields(self, fields: list[pa.Field], path: Path, known: Mapping[str, pa.DataType]) -> list[pa.Field]:
        kinds = ((one.name, self._type(one.type, (*path, one.name), known.get(one.name))) for one in fields)
        return [pa.field(name, kind) for name, kind in kinds if kind is not None]

    def _type(self, kind: pa.DataType, path: Path, known: pa.DataType | None) -> pa.DataType | None:
        inner = children(kind)
        if known is None:
            if self._names.refusal(path, is_leaf=not inner) is not None:
                return None
            self._names.add(path, is_leaf=not inner)
        if not inner:
            return kind
        by_name = {one.name: one.type for one in children(known)} if known is not None else {}
        taken = self._fields(inner, path, by_name)
        if not taken or (pa.types.is_map(kind) and len(taken) < len(inner)):
            if known is None:
                self._names.remove(path)
            return None
        if pa.types.is_list(kind):
            return list_of(taken[0].type)
        if pa.types.is_map(kind):
            return pa.map_(taken[0].type, taken[1].type)
        return pa.struct(taken)
