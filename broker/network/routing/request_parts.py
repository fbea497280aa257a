"""Cuts a request with many rows into several, and joins their answers.

The handler of an API declares how (`Cut`). If `Cut.names` is set, the first and last of the rows with the same name
stay together and those between are left out: so a handler that refuses repeated names sees one, and a handler for
which the last row wins gets it.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec.structs import replace

from lowtide.protocol.errors import ErrorCode

Level = tuple[str, str]
"""The fields of a request and of its answer with the rows."""

_Path = tuple[Any, ...]
"""The rows from the outermost one to an innermost one."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Declares how the requests of an API are cut.

    `levels` go from the outermost rows to the innermost ones, and so do `joins` in the answer if they differ. `names`
    identify a row: the last one is a field of the row, the others of the row around it; empty if rows are names. With
    `sequential` a part begins when the previous one is answered. With `changes` the request is completed although its
    client has gone.
    """

    levels: tuple[Level, ...]
    names: tuple[str, ...] | None = None
    sequential: bool = False
    changes: bool = False
    joins: tuple[Level, ...] | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(field for field, _ in self.levels)

    @property
    def answer_fields(self) -> tuple[str, ...]:
        return tuple(field for _, field in self.joins or self.levels)


def row_count(message: Any, fields: Sequence[str]) -> int:
    """Returns the number of rows of a message at all levels."""
    rows = getattr(message, fields[0]) or ()
    return len(rows) + (sum(row_count(row, fields[1:]) for row in rows) if len(fields) > 1 else 0)


def parts_of(request: Any, cut: Cut, rows_max: int) -> Iterator[Any]:
    """Yields requests of at most `rows_max` rows, or of two rows with the same name."""
    paths: list[_Path] = []
    for together in _without_between(_paths(request, cut.fields), cut.names):
        if paths and len(paths) + len(together) > rows_max:
            yield _with_rows(request, cut.fields, paths)
            paths = []
        paths += together
    if paths:
        yield _with_rows(request, cut.fields, paths)


def _paths(container: Any, fields: Sequence[str]) -> Iterator[_Path]:
    for row in getattr(container, fields[0]) or ():
        inner = list(_paths(row, fields[1:])) if len(fields) > 1 else []
        if inner:
            yield from ((row, *path) for path in inner)
        else:
            yield (row,)


def _without_between(paths: Iterator[_Path], names: tuple[str, ...] | None) -> Iterator[list[_Path]]:
    """Yields the rows that stay together: one, or the first and last of the same name."""
    if names is None:
        yield from ([path] for path in paths)
        return
    of_name: dict[Any, list[_Path]] = {}
    for path in paths:
        known = of_name.setdefault(_name(path, names), [path])
        if known[0] is not path:
            known[1:] = [path]
    yield from of_name.values()


def _name(path: _Path, names: tuple[str, ...]) -> Any:
    if not names:
        return path[-1]
    *around, row = path
    if not around:
        return tuple(getattr(row, name, None) for name in names)
    return *(getattr(around[-1], name) for name in names[:-1]), getattr(row, names[-1])


def _with_rows(container: Any, fields: Sequence[str], paths: list[_Path]) -> Any:
    """Returns the struct with the rows of `paths` in place of its own."""
    if len(fields) == 1:
        return replace(container, **{fields[0]: [path[0] for path in paths]})
    rows = []
    for _, of_row in groupby(paths, key=lambda path: id(path[0])):
        inner = list(of_row)
        row = inner[0][0]
        rows.append(row if len(inner[0]) == 1 else _with_rows(row, fields[1:], [path[1:] for path in inner]))
    return replace(container, **{fields[0]: rows})


def joined(answers: Sequence[Any], cut: Cut) -> Any:
    """Returns one answer with the rows of all `answers` in order. Rows that were cut are joined.

    An answer with an error at the top is returned for all of them.
    """
    for answer in answers:
        if getattr(answer, "error_code", ErrorCode.NONE) != ErrorCode.NONE:
            return answer
    return _joined(answers, cut.answer_fields)


def _joined(answers: Sequence[Any], fields: Sequence[str]) -> Any:
    first, *others = answers
    rows = list(getattr(first, fields[0]) or ())
    changes: dict[str, Any] = {fields[0]: rows}
    for answer in others:
        more = list(getattr(answer, fields[0]) or ())
        if len(fields) > 1 and rows and more and _is_same_row(rows[-1], more[0], fields[1]):
            rows[-1] = _joined((rows[-1], more.pop(0)), fields[1:])
        rows += more
        for name in answer.__struct_fields__:
            value = getattr(answer, name)
            if name == "throttle_time_ms":
                changes[name] = max(changes.get(name, 0), getattr(first, name), value)
            elif name != fields[0] and isinstance(value, list) and value:
                # Other lists of the answer, such as addresses of brokers.
                known = changes.setdefault(name, list(getattr(first, name) or ()))
                known += [each for each in value if each not in known]
    return replace(first, **changes)


def _is_same_row(one: Any, other: Any, inner: str) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in one.__struct_fields__ if name != inner)
