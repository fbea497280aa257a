"""Counts what the fields of JSON objects hold that the table lacks, and decides the types of the new columns.

Counts are added: those of batches in a task, those of tasks in a round. So the columns that a round adds don't depend
on how its records are split. The type that most values of a field have becomes the column's; values of another type
are dead letters then. Integers and doubles vote together, and one double makes a double column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from lowtide.pipeline.table.schemas.names import ELEMENT, children

BOOLEAN: Final = "boolean"
LONG: Final = "long"
DOUBLE: Final = "double"
STRING: Final = "string"
STRUCT: Final = "struct"
LIST: Final = "list"

_ORDER: Final = {STRING: 0, DOUBLE: 1, LONG: 2, BOOLEAN: 3, LIST: 4, STRUCT: 5}
"""With as many votes the earlier type wins."""

MAX_SEEN: Final = 4_000
"""Fields of which the types are counted, at most."""

Steps = tuple[str | None, ...]
"""A path in which None leads to the elements of an array."""

_SCALARS: Final = {STRING: pa.string(), DOUBLE: pa.float64(), LONG: pa.int64(), BOOLEAN: pa.bool_()}


class Tally(msgspec.Struct):
    """How often a field of values has a value of each type. Null isn't counted.

    Fields that the table has are here only on the way to what it lacks, and have no counts.
    """

    counts: dict[str, int] = {}
    fields: dict[str, Tally] = {}
    """The fields of its objects. One that is always null is here with no counts."""
    element: Tally | None = None
    """The elements of its arrays."""

    def add(self, kind: str, count: int = 1) -> None:
        """Counts values of a type."""
        if count:
            self.counts[kind] = self.counts.get(kind, 0) + count

    def field(self, name: str) -> Tally:
        """Returns the tally of a field of its objects."""
        found = self.fields.get(name)
        if found is None:
            found = self.fields[name] = Tally()
        return found

    def elements(self) -> Tally:
        """Returns the tally of the elements of its arrays."""
        if self.element is None:
            self.element = Tally()
        return self.element

    def merge(self, other: Tally) -> None:
        """Adds the counts of another tally."""
        for kind, count in other.counts.items():
            self.add(kind, count)
        for name, one in other.fields.items():
            self.field(name).merge(one)
        if other.element is not None:
            self.elements().merge(other.element)

    def winner(self) -> pa.DataType | None:
        """Returns the type that most values have, with nested types resolved; None if nothing has a type."""
        return self.resolved()[1]

    def typed_fields(self) -> list[pa.Field]:
        """Returns the fields that have a type, in the order in which a table takes them.

        Names with a dot come last: they may look like the path of another column, and that one is to be found.
        """
        return [pa.field(name, kind) for name, _, kind in self._resolved_fields()]

    def resolved(self) -> tuple[int, pa.DataType | None]:
        """Returns the votes of all values, and the type with the most. Visits each nested tally once."""
        found = list(self._candidates())
        best = max(found, key=lambda one: (one[0], -_ORDER[one[1]]), default=None)
        return sum(votes for votes, _, _ in found), best[2] if best is not None else None

    def _resolved_fields(self) -> list[tuple[str, int, pa.DataType]]:
        """Returns name, votes and type of the fields that have a type, in order."""
        found = [(name, *one.resolved()) for name, one in self.fields.items()]
        typed = [(name, votes, kind) for name, votes, kind in found if kind is not None]
        return sorted(typed, key=lambda one: ("." in one[0], -one[1], one[0]))

    def _candidates(self) -> Iterator[tuple[int, str, pa.DataType]]:
        """Yields votes, kind and type.

        An array has a vote for each element with a type, an object those of its most frequent field. Empty ones have
        none: a task that saw only these adds no column, and nobody hears of them.
        """
        numbers = self.counts.get(LONG, 0) + self.counts.get(DOUBLE, 0)
        if numbers:
            kind = DOUBLE if DOUBLE in self.counts else LONG
            yield numbers, kind, _SCALARS[kind]
        for kind, count in self.counts.items():
            if kind in (STRING, BOOLEAN):
                yield count, kind, _SCALARS[kind]
            elif kind == STRUCT and (inner := self._resolved_fields()):
                fields = pa.struct([pa.field(name, one) for name, _, one in inner])
                yield max(votes for _, votes, _ in inner), kind, fields
            elif kind == LIST and self.element is not None:
                votes, element = self.element.resolved()
                if element is not None:
                    yield votes, kind, list_of(element)


class Sightings:
    """A tally of what was seen in records, with bounded memory.

    Records with ever new names fill it. Fields that it has no room for are seen again in a later round, if the table
    has room for them then.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self._room = MAX_SEEN

    def add(self, seen: Sequence[tuple[Steps, str | None]]) -> bool:
        """Counts the types of values by their paths; None for a null. Returns whether there was room for them."""
        if len(seen) > self._room:
            return False
        for steps, kind in seen:
            one = self._at(steps)
            if kind is not None:
                one.add(kind)
        return True

    def _at(self, steps: Steps) -> Tally:
        found = self.tally
        for step in steps:
            is_new = found.element is None if step is None else step not in found.fields
            self._room -= is_new
            found = found.elements() if step is None else found.field(step)
        return found


def list_of(kind: pa.DataType) -> pa.DataType:
    """Returns the type of a list as tables have it."""
    return pa.list_(pa.field(ELEMENT, kind))


def wanted(tally: Tally, known: list[pa.Field]) -> list[pa.Field]:
    """Returns the fields that a struct lacks, and those of its structs and lists that lack some, with these only."""
    by_name = {one.name: one.type for one in known}
    found = [one for one in tally.typed_fields() if one.name not in by_name]
    inner = ((name, _wanted_in(one, by_name[name])) for name, one in sorted(tally.fields.items()) if name in by_name)
    return [*(pa.field(name, kind) for name, kind in inner if kind is not None), *found]


def _wanted_in(tally: Tally, known: pa.DataType) -> pa.DataType | None:
    if pa.types.is_struct(known):
        found = wanted(tally, children(known))
        return pa.struct(found) if found else None
    if pa.types.is_list(known) and tally.element is not None:
        inner = _wanted_in(tally.element, known.value_type)
        return list_of(inner) if inner is not None else None
    return None


def parsed_as(tally: Tally, known: list[pa.Field]) -> pa.DataType:
    """Returns the struct type that values are parsed as: the known fields and all that the tally has seen.

    What has no type yet is parsed as null, and as an empty list or object if it had such values.
    """
    fields = []
    by_name = {one.name: one for one in known}
    for name, one in by_name.items():
        seen = tally.fields.get(name)
        fields.append(pa.field(name, _parsed_known(seen, one.type)))
    fields += [pa.field(name, _parsed_new(one)) for name, one in tally.fields.items() if name not in by_name]
    return pa.struct(fields)


def _parsed_known(tally: Tally | None, known: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(known):
        return parsed_as(tally or Tally(), children(known))
    if pa.types.is_list(known):
        return list_of(_parsed_known(tally.element if tally is not None else None, known.value_type))
    return known if known in JSON_TYPES else pa.null()


JSON_TYPES: Final = frozenset({pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()})
"""The types of single values that are filled from JSON. A column of another type stays null."""


def _parsed_new(tally: Tally) -> pa.DataType:
    kind = tally.winner()
    if kind is None:  # votes are for empty objects and arrays only
        if tally.counts.get(LIST, 0) >= max(1, tally.counts.get(STRUCT, 0)):
            return list_of(_parsed_new(tally.elements()))
        return parsed_as(tally, []) if STRUCT in tally.counts else pa.null()
    if pa.types.is_struct(kind):
        return parsed_as(tally, [])
    if pa.types.is_list(kind):
        return list_of(_parsed_new(tally.elements()))
    return kind


def count(array: pa.Array, known: pa.DataType | None, tally: Tally) -> None:
    """Adds the values of an array to a tally, except those that the table has a column for."""
    kind = array.type
    if known is not None and pa.types.is_struct(kind) and pa.types.is_struct(known):
        by_name = {one.name: one.type for one in children(known)}
        _count_fields(array, by_name, tally)
    elif known is not None and pa.types.is_list(kind) and pa.types.is_list(known):
        _count_elements(array, known.value_type, tally)
    elif known is None and len(array) > array.null_count:
        if pa.types.is_struct(kind):
            tally.add(STRUCT, len(array) - array.null_count)
            _count_fields(array, {}, tally)
        elif pa.types.is_list(kind):
            tally.add(LIST, len(array) - array.null_count)
            _count_elements(array, None, tally)
        else:
            tally.add(_KINDS[kind], len(array) - array.null_count)


_KINDS: Final = {kind: name for name, kind in _SCALARS.items()}


def _count_fields(array: pa.StructArray, known: dict[str, pa.DataType], tally: Tally) -> None:
    for index in range(array.type.num_fields):
        name = array.type.field(index).name
        one = array.field(index)
        if (name not in known or _is_nested(one.type)) and len(one) > one.null_count:
            count(one, known.get(name), tally.field(name))


def _count_elements(array: pa.ListArray, known: pa.DataType | None, tally: Tally) -> None:
    elements = array.flatten()
    if (known is None or _is_nested(elements.type)) and len(elements) > elements.null_count:
        count(elements, known, tally.elements())


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) or pa.types.is_list(kind))
