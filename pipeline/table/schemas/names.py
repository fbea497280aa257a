"""Decides which columns a table may get: their number, depth and names are bounded, and names must stay distinct.

Spark compares names without case, and Iceberg finds a nested column by its path with dots. So two columns whose paths
with dots differ only in case can't stand in one table. Records choose the names of columns: each limit is for an attack
as much as for a mistake.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

MAX_COLUMNS: Final = 1_000
"""The columns of a table that hold values; a struct counts as its fields."""

MAX_DEPTH: Final = 20
"""The length of a column's path. An element of a list is one step."""

MAX_NAME_LENGTH: Final = 255

_SHOWN: Final = 200

RESERVED: Final = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)
"""Iceberg's metadata columns. Spark refuses to read a table that has a column of such a name."""

ELEMENT: Final = "element"
"""Iceberg's name for the elements of a list, in a path."""

Path = tuple[str, ...]


class ColumnNames:
    """The paths of a table's columns."""

    def __init__(self, fields: Iterable[pa.Field]) -> None:
        self._paths: dict[str, Path] = {}
        self._leaves = 0
        for one in fields:
            self._add_all((one.name,), one.type)

    @property
    def is_full(self) -> bool:
        """Returns whether the table has as many columns as it may have."""
        return self._leaves >= MAX_COLUMNS

    def refusal(self, path: Path, *, is_leaf: bool) -> str | None:
        """Returns why a column can't be added, or None if it can. It must not exist."""
        if len(path) > MAX_DEPTH:
            return f"the value is nested deeper than {MAX_DEPTH} levels"
        if (reason := _fault_of(path)) is not None:
            return f"{shown(path)}: the name {reason}"
        other = self._paths.get(_folded(path))
        if other is not None:
            return f"{shown(path)}: the table has the column {shown(other)}, and readers can't tell the two names apart"
        if is_leaf and self.is_full:
            return f"{shown(path)}: the table has {MAX_COLUMNS} columns, and gets no more"
        return None

    def add(self, path: Path, *, is_leaf: bool) -> None:
        """Adds a column that isn't refused."""
        self._paths[_folded(path)] = path
        self._leaves += is_leaf

    def remove(self, path: Path) -> None:
        """Removes a struct or list that has no columns."""
        del self._paths[_folded(path)]

    def _add_all(self, path: Path, kind: pa.DataType) -> None:
        inner = children(kind)
        self.add(path, is_leaf=not inner)
        for one in inner:
            self._add_all((*path, one.name), one.type)


def children(kind: pa.DataType) -> list[pa.Field]:
    """Returns the fields of a struct, the element of a list, or the key and the value of a map."""
    if pa.types.is_struct(kind):
        return [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_list(kind):
        return [pa.field(ELEMENT, kind.value_type)]
    if pa.types.is_map(kind):
        return [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
    return []


def shown(path: Path) -> str:
    """Returns a path for a message, with a bounded length."""
    text = ".".join(path)
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _fault_of(path: Path) -> str | None:
    name = path[-1]
    if not name:
        return "is empty"
    if len(name) > MAX_NAME_LENGTH:
        return f"has more than {MAX_NAME_LENGTH} characters"
    if not name.isprintable():
        return "has a character that can't be printed"
    if len(path) == 1 and name.lower() in RESERVED:
        return "is reserved by Iceberg"
    return None


def _folded(path: Path) -> str:
    return ".".join(path).lower()
