"""A request of many rows as several of a few, and their answers as one.

The handler of an API says whether that is possible, and how (`Cut`). Rows that name the same thing twice matter to each
other where `Cut.names` are set: the first and the last of them stay together, so that a handler that refuses a repeated
name finds it repeated, and one for which the last row counts finds that; those between are left out.

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
"""The field of a request and the field of its answer that have the rows."""

_Path = tuple[Any, ...]
"""A row, behind the rows that it is in; a row without inner rows is the last of its path."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """How the requests of an API are cut. `levels` from the outermost rows to the innermost ones.

    `names` say what a row is about, the last one within the row and the others in the row around it; empty for rows that
    are names themselves. `sequential`: a part begins when the one before it is answered. `changes`: the request is carried
    out to its end although its client has gone. `joins` are the levels of the answer where they differ from the request's.
    """

    levels: tuple[Level, ...]
    names: tuple[str, ...] | None = None
    sequential: bool = False
    changes: bool = False
    joins: tuple[Level, ...] | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the request's rows, from the outermost level."""
        return tuple(field for field, _ in self.levels)

    @property
    def answer_fields(self) -> tuple[str, ...]:
        """The fields of the answer's rows, from the outermost level."""
        return tuple(field for _, field in self.joins or self.levels)


def row_count(message: Any, fields: Sequence[str]) -> int:
    """Returns how many rows a message has at these levels together."""
    rows = getattr(message, fields[0]) or ()
    return len(rows) + (sum(row_count(row, fields[1:]) for row in rows) if len(fields) > 1 else 0)


def parts_of(request: Any, cut: Cut, rows_max: int) -> Iterator[Any]:
    """Yields requests of at most `rows_max` rows, or two of the same name, whose rows together are those of `request`."""
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
    """Yields rows that stay together: each alone, or the first and the last of the same name."""
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
    """Returns one answer with the rows of those to the parts, in their order; a row that was cut is one again.

    An answer with an error for the whole request counts for all of them.
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
                # What an answer says beside its rows, such as where brokers are.
                known = changes.setdefault(name, list(getattr(first, name) or ()))
                known += [each for each in value if each not in known]
    return replace(first, **changes)


def _is_same_row(one: Any, other: Any, inner: str) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in one.__struct_fields__ if name != inner)
