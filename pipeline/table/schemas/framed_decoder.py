"""Decodes values that begin with the id of a schema in a registry, as Confluent's serializers write them.

The records of a batch are read together by the schemas of their writers. Then the columns are converted to those of the
table. A writer's schema as a whole is a dead letter's reason too: its types conflict with the table's, or it can't be
used. A registry that can't be reached is no reason: it is an error, and the round is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from lowtide.admin.schemas.framing import HEAD_BYTES, Head
from lowtide.admin.schemas.registry import RegisteredSchema, Registry, UnknownReferenceError, UnsupportedSchemaError
from lowtide.pipeline.table.schemas.assembling import alive, dead_letters, table_of, value_fields
from lowtide.pipeline.table.schemas.conforming import conflict_of, conform, missing_fields
from lowtide.pipeline.table.schemas.decoding import Decoded
from lowtide.pipeline.table.schemas.evolution import columns_declared
from lowtide.pipeline.table.schemas.names import ColumnNames, Path, children

MAX_WRITERS: Final = 200
"""Schemas of writers that are kept translated."""


class WriterSchema(Protocol):
    """The schema of a writer, translated."""

    @property
    def column(self) -> pa.DataType:
        """The struct of the columns that its values fill."""

    def read(self, values: Sequence[bytes], dead: dict[int, str]) -> pa.Array:
        """Reads values, each without its head. Returns a struct array of those that can be read.

        Adds the others to `dead`: their indexes, with the reasons.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueFormat:
    """A format of values."""

    kind: str
    """The registry's name."""
    translate: Callable[[RegisteredSchema, dict[str, str], Head], WriterSchema]
    """Translates a schema, with the texts of those that it refers to. Errors: UnsupportedSchemaError."""
    head_of: Callable[[bytes], tuple[Head, int]]
    """Returns what stands before a value, and where the value begins. Errors: ValueError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """What is known about one id: how to read its values, or why they are all dead."""

    schema: WriterSchema | None = None
    fault: str = ""
    is_missing_columns: bool = False
    kind: pa.DataType = None
    """The struct that its values are converted to."""


_TOMBSTONES: Final = _Writer()


class FramedDecoder:
    """Decodes the values of one task."""

    def __init__(self, schema: pa.Schema, registry: Registry, form: ValueFormat) -> None:
        self._schema = schema
        self._columns = value_fields(schema)
        self._names = ColumnNames(schema)
        self._registry = registry
        self._form = form
        self._writers: dict[Head, _Writer] = {}

    def decode(self, records: pa.RecordBatch) -> Decoded:
        dead: dict[int, str] = {}
        declared: dict[Head, pa.Schema] = {}
        parts: list[pa.Array] = []
        places: list[np.ndarray] = []
        kind = pa.struct(self._columns)
        for head, members in self._by_writer(records["value"].to_pylist(), dead).items():
            writer = self._writer(head) if head else _TOMBSTONES
            if writer.fault:
                dead.update(dict.fromkeys(members, writer.fault))
                continue
            faults: dict[int, str] = {}
            at = list(members)
            if writer.schema is not None:
                found = conform(writer.schema.read(list(members.values()), faults), writer.kind)
                dead |= {at[place]: text for place, text in faults.items()}
            else:
                found = _nulls(len(at), kind)
            if writer.is_missing_columns and writer.schema is not None:
                declared[head] = pa.schema(children(writer.schema.column))
                continue
            parts.append(found)
            places.append(np.array(at)[alive(len(at), faults)])
        new_columns = columns_declared(list(self._schema), declared)
        letters = dead_letters(records, dead)
        if declared:
            assert len(new_columns), declared
            return Decoded(rows=None, new_columns=new_columns, dead=letters)
        return Decoded(rows=table_of(records, dead, _in_order(parts, places, kind), self._schema), dead=letters)

    def _by_writer(self, values: Sequence[bytes | None], dead: dict[int, str]) -> dict[Head, dict[int, bytes]]:
        """Groups values without their heads by their writers, and by their places. Tombstones have an empty head."""
        found: dict[Head, dict[int, bytes]] = {}
        for place, value in enumerate(values):
            if value is None:
                found.setdefault((), {})[place] = b""
            elif len(value) < HEAD_BYTES or value[0]:
                dead[place] = "the value does not begin with 0 and the id of a schema"
            else:
                try:
                    head, begin = self._form.head_of(value)
                except ValueError as error:
                    dead[place] = str(error)
                else:
                    found.setdefault(head, {})[place] = value[begin:]
        return found

    def _writer(self, head: Head) -> _Writer:
        if head not in self._writers:
            while len(self._writers) >= MAX_WRITERS:
                del self._writers[next(iter(self._writers))]
            self._writers[head] = self._prepared(head)
        return self._writers[head]

    def _prepared(self, head: Head) -> _Writer:
        """Translates a schema, and compares it with the table. Errors: RegistryError."""
        schema_id = head[0]
        registered = self._registry.schema(schema_id)
        if registered is None:
            return _Writer(fault=f"the registry does not know the schema {schema_id}")
        if registered.kind != self._form.kind:
            return _Writer(fault=f"the schema {schema_id} is of the type {registered.kind}, and not {self._form.kind}")
        try:
            schema = self._form.translate(registered, self._registry.references_of(registered), head)
        except (UnsupportedSchemaError, UnknownReferenceError) as error:
            return _Writer(fault=f"the schema {schema_id} can't be used: {error}")
        fields = children(schema.column)
        missing = missing_fields(fields, self._columns)
        fault = conflict_of(fields, self._columns) or self._refusal(missing, self._columns, ())
        if fault is not None:
            return _Writer(fault=f"the schema {schema_id}: {fault}")
        return _Writer(
            schema=schema, is_missing_columns=bool(missing), kind=schema.column if missing else pa.struct(self._columns)
        )

    def _refusal(self, missing: list[pa.Field], known: list[pa.Field], path: Path) -> str | None:
        """Returns why one of the fields that the table lacks can't become a column, or None."""
        by_name = {one.name: one.type for one in known}
        for one in missing:
            here = (*path, one.name)
            inner = children(one.type)
            column = by_name.get(one.name)
            reason = self._names.refusal(here, is_leaf=not inner) if column is None else None
            reason = reason or self._refusal(inner, children(column) if column is not None else [], here)
            if reason is not None:
                return reason
        return None


def _nulls(count: int, kind: pa.DataType) -> pa.StructArray:
    """Returns structs of nulls."""
    if not kind.num_fields:
        return pa.array([{}] * count, kind)
    return pa.StructArray.from_arrays([pa.nulls(count, one.type) for one in children(kind)], fields=children(kind))


def _in_order(parts: list[pa.Array], places: list[np.ndarray], kind: pa.DataType) -> pa.StructArray:
    """Puts the values of several writers together, in the order of the records."""
    if not parts:
        return pa.array([], kind)
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(places), kind="stable")))


def built(items: Sequence[object], build: Callable[[Sequence[object]], pa.Array], dead: dict[int, str]) -> pa.Array:
    """Builds an array of many values. If that fails, they are tried one by one, and those that fail are dead.

    Places in `dead` are those of all values, of which `items` has the ones that aren't dead yet.
    """
    if not items:
        return build(items)
    try:
        return build(items)
    except _FAULTS:
        pass
    at = iter([place for place in range(len(items) + len(dead)) if place not in dead])
    found = []
    for place, one in zip(list(at), items, strict=True):
        try:
            found.append(build([one]))
        except _FAULTS as error:
            dead[place] = f"a value does not fit its column: {error}"
    return pa.concat_arrays(found) if found else build([])


_FAULTS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError, TypeError, ArithmeticError)
