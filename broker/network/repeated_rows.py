"""Rows of a large request that name what other rows of it name: the first and the last of them are kept together, the others left out.

Rows are noted in a first reading of the request, and left out in a second one. Only four bytes of each name are kept: rows that have them
in common are looked at closer, and those are bounded (`REPEATED_MAX`); no client needs to say the same thing twice.

Pure: yields after each bounded step.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator
from typing import Any, Final

from msgspec.structs import replace

from lowtide.protocol.errors import TooManyRowsError

REPEATED_MAX: Final = 1_000
"""Names that may be repeated in one large request: for each a row is in memory."""

_SLOTS: Final = 1 << 12
_FULL: Final = 0.8
"""The part of the slots that is used before there are twice as many."""

_STEP_SLOTS: Final = 4_096
_MARK: Final = 0xFFFF_FFFF


class RepeatedRows:
    """Those of one request.

    `fields` are its levels of rows, one or two; `names` say what a row is about, the last one within its level.
    """

    def __init__(self, fields: tuple[str, ...], names: tuple[str, ...]) -> None:
        self._inner = fields[1] if len(fields) > 1 else None
        self._names = names
        self._marks = array("I", bytes(4 * _SLOTS))
        self._used = 0
        self._noted = 0
        self._last: dict[Any, tuple[int, Any]] = {}
        """By name, the last row that has it and that row's number; also of some names that only one row has."""
        self._done: set[Any] = set()
        self._passed = 0

    def note(self, rows: list[Any]) -> Generator[None, None, None]:
        """The next rows of the first reading.

        Errors: TooManyRowsError for too many names that are repeated.
        """
        for outer, row in self._flat(rows):
            key = self._key(outer, row)
            if self._is_known(hash(key) & _MARK or 1):
                self._last[key] = self._noted, row
                if len(self._last) > REPEATED_MAX:
                    message = f"more than {REPEATED_MAX} rows that name what others name"
                    raise TooManyRowsError(message)
            self._noted += 1
            if self._used > _FULL * len(self._marks):
                yield from self._grow()

    def end_of_noting(self) -> None:
        """The first reading is done: only what is repeated is needed from now on."""
        self._marks = array("I")

    def without_others(self, rows: list[Any]) -> list[Any]:
        """The next rows of the second reading: each with the last one that names the same, none between, and none again."""
        if not self._last:
            return rows
        if self._inner is None:
            return list(self._kept(None, rows))
        found = []
        for outer in rows:
            inner = getattr(outer, self._inner)
            kept = list(self._kept(outer, inner))
            if kept or not inner:
                found.append(replace(outer, **{self._inner: kept}))
        return found

    def _kept(self, outer: Any, rows: list[Any]) -> Iterator[Any]:
        for row in rows:
            number = self._passed
            self._passed += 1
            key = self._key(outer, row)
            known = self._last.get(key)
            if known is None or known[0] == number:
                if key not in self._done:
                    yield row
            elif key not in self._done:
                self._done.add(key)
                yield row
                yield known[1]

    def _flat(self, rows: list[Any]) -> Iterator[tuple[Any, Any]]:
        """The innermost rows, each with the one around it; None where there is one level."""
        for outer in rows:
            if self._inner is None:
                yield None, outer
            else:
                for row in getattr(outer, self._inner):
                    yield outer, row

    def _key(self, outer: Any, row: Any) -> Any:
        """What a row names."""
        names = self._names
        if not names:
            return row
        if outer is None:
            return tuple(getattr(row, name) for name in names)
        return (*(getattr(outer, name) for name in names[:-1]), getattr(row, names[-1]))

    def _is_known(self, mark: int) -> bool:
        """Whether a name with this mark was noted; it is then."""
        marks = self._marks
        end = len(marks) - 1
        place = mark & end
        while marks[place]:
            if marks[place] == mark:
                return True
            place = (place + 1) & end
        marks[place] = mark
        self._used += 1
        return False

    def _grow(self) -> Generator[None, None, None]:
        before, self._marks = self._marks, array("I", bytes(8 * len(self._marks)))
        self._used = 0
        for place, mark in enumerate(before):
            if mark:
                self._is_known(mark)
            if place % _STEP_SLOTS == _STEP_SLOTS - 1:
                yield
