"""Reads one JSON object exactly, compares it with the columns of a table, and notes what the table lacks.

It is the slow path: `json_decoder` uses it for records that can't be parsed together with others.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NoReturn

import pyarrow as pa

from lowtide.pipeline.table.schemas.conforming import type_name
from lowtide.pipeline.table.schemas.names import ELEMENT, ColumnNames, children, shown
from lowtide.pipeline.table.schemas.tallies import BOOLEAN, DOUBLE, LIST, LONG, STRING, STRUCT, Steps

_LONGS: Final = (-(2**63), 2**63)
_INTS: Final = (-(2**31), 2**31)

_FLOAT_END: Final = 2.0**128 - 2.0**103
"""Numbers from here on are rounded to infinity in 32 bits."""

_ENDS: Final = {"float": 2**128, "double": 2**1024}

SINGLE: Final = frozenset({BOOLEAN, DOUBLE, LONG, STRING})
"""Types that make a column. An empty object or array makes none."""


class NotAccepted(ValueError):  # noqa: N818 - no error of the program
    """A record that becomes a dead letter, with the reason."""


class ObjectReader:
    """Checks objects against the columns of a table."""

    def __init__(self, columns: list[pa.Field], names: ColumnNames) -> None:
        self._column = _Column(pa.struct(columns))
        self._names = names

    def read(self, value: bytes) -> list[tuple[Steps, str | None]]:
        """Checks a value. Returns what the table lacks: paths and types, and paths of nulls. Errors: NotAccepted."""
        found = parse(value)
        if not isinstance(found, dict):
            raise NotAccepted(f"the value is {_article(_kind_of(found))}, and not a JSON object")
        unknown: list[tuple[Steps, Any]] = []
        self._check(found, self._column, (), unknown)
        return [one for steps, inner in unknown for one in self._seen(inner, steps)]

    def _check(self, value: Any, column: _Column, steps: Steps, unknown: list[tuple[Steps, Any]]) -> None:
        """Checks a value against its column, and collects the values that have no column. Errors: NotAccepted."""
        if value is None:
            return
        kind = type(value)
        if kind is dict and column.fields is not None:
            for name, one in value.items():
                inner = column.fields.get(name)
                if inner is None:
                    unknown.append(((*steps, name), one))
                else:
                    self._check(one, inner, (*steps, name), unknown)
        elif kind is list and column.element is not None:
            for one in value:
                self._check(one, column.element, (*steps, None), unknown)
        elif kind is int and column.limits is not None:
            _check_whole(value, column, steps)
        elif kind is float and column.is_float:
            if column.name == "float" and abs(value) >= _FLOAT_END:
                _refuse(steps, "the number is out of the range of float")
        elif kind is not column.python:
            _refuse(steps, f"the value is {_article(_kind_of(value))}, and the column is {column.name}")

    def _seen(self, value: Any, steps: Steps) -> list[tuple[Steps, str | None]]:
        """Returns the types of a value that has no column, and of what is in it. Errors: NotAccepted."""
        if value is None:
            return [(steps, None)]
        kind = _kind_of(value)
        path = tuple(ELEMENT if one is None else one for one in steps)
        refusal = self._names.refusal(path, is_leaf=kind not in (STRUCT, LIST))
        if refusal is not None:
            raise NotAccepted(refusal)
        if kind == LONG and not _LONGS[0] <= value < _LONGS[1]:
            _refuse(steps, "the integer has more than 64 bits")
        seen: list[tuple[Steps, str | None]] = [(steps, kind)]
        if kind == STRUCT:
            for name, one in value.items():
                seen += self._seen(one, (*steps, name))
        elif kind == LIST:
            for one in value:
                seen += self._seen(one, (*steps, None))
        return seen


def parse(value: bytes) -> Any:
    """Returns the value of a JSON text. Errors: NotAccepted."""
    try:
        text = value.decode()
        found = _DECODER.decode(text)
        if _SURROGATE.search(text) is not None:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise NotAccepted(f"the value is not UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise NotAccepted("the value has half of a surrogate pair") from None
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at character {error.pos}" if value else "it is empty"
        raise NotAccepted(f"the value is not JSON: {reason}") from None
    except RecursionError:
        raise NotAccepted("the value is nested too deeply") from None
    except ValueError as error:
        raise NotAccepted(f"the value is not accepted as JSON: {error}") from None
    return found


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {shown((twice,))} stands twice in an object")
    return found


def _float(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError("a number is too large for a double")
    return found


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"an integer has more than {_DIGITS} digits")
    return int(text)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"it has {name}")


_DIGITS: Final = 310
"""Longer integers don't fit in a double."""

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_float=_float, parse_int=_whole, parse_constant=_constant
)


class _Column:
    """What a column takes, prepared for many values."""

    def __init__(self, kind: pa.DataType) -> None:
        self.name = type_name(kind)
        self.is_float = kind in (pa.float32(), pa.float64())
        self.fields = {one.name: _Column(one.type) for one in children(kind)} if pa.types.is_struct(kind) else None
        self.element = _Column(kind.value_type) if pa.types.is_list(kind) else None
        self.python = {pa.bool_(): bool, pa.string(): str}.get(kind)
        self.limits: tuple[int, int] | None = {pa.int32(): _INTS, pa.int64(): _LONGS}.get(kind)
        if self.is_float:
            exact = 53 if kind == pa.float64() else 24
            self.limits = (-(2**exact), 2**exact)


def _check_whole(value: int, column: _Column, steps: Steps) -> None:
    """Raises NotAccepted if a column can't keep an integer as it is."""
    assert column.limits is not None
    low, high = column.limits
    if low <= value < high:
        return
    if not column.is_float:
        _refuse(steps, f"the integer is out of the range of {column.name}")
    digits = abs(value) // (value & -value)
    if digits >= high or abs(value) >= _ENDS[column.name]:
        _refuse(steps, f"the column is {column.name}, which can't keep all digits of the integer")


def _refuse(steps: Steps, text: str) -> NoReturn:
    raise NotAccepted(f"{shown(tuple(ELEMENT if one is None else one for one in steps))}: {text}")


def _kind_of(value: Any) -> str:
    return _KINDS[type(value)]


_KINDS: Final = {bool: BOOLEAN, int: LONG, float: DOUBLE, str: STRING, dict: STRUCT, list: LIST, type(None): "null"}


def _article(kind: str) -> str:
    return kind if kind == "null" else f"a {kind}"
