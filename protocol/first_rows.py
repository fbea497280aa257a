"""Reads the beginning of a message that has more rows than are taken: what its answer names.

The rows up to a limit are read as the reference codec reads them; what follows, in the same array and behind it, is
`nothing_of` its kind. Fields of bytes and records are passed over. It is as slow as the reference codec, so it is for a
thousand rows, and yields after a few.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Any, Final

from lowtide.protocol.constructs import (
    NULL_STRUCT,
    AnyConstruct,
    Blob,
    CountedArray,
    Entity,
    NullableEntity,
    Text,
    fixed_format,
    nothing_of,
)
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.primitives import Buffer, read_varint, refuse_count, refuse_size, skip_tags

_STEP_ROWS: Final = 32
"""Some three hundred microseconds of work."""

Steps = Generator[None, None, Any]


def first_rows(entity: Entity, buffer: Buffer, position: int, end: int, rows_max: int) -> Steps:
    """The message in `buffer[position:end]` with the elements of its arrays, at all levels, up to `rows_max` together.

    Errors: ProtocolError where what is read isn't this message. Does not promise that what isn't read is.
    """
    reader = _Reader(memoryview(buffer)[:end], position, rows_max)
    try:
        message = yield from reader.struct(entity)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(str(error)) from error
    return message


class _Reader:
    """A position in a message, and the rows that may still be read."""

    def __init__(self, view: memoryview, position: int, rows_max: int) -> None:
        self._view = view
        self._position = position
        self._left = rows_max
        self._is_full = False

    def struct(self, entity: Entity) -> Steps:
        """A struct; once the rows are used up, its fields are of the kind that says least."""
        values: dict[str, Any] = {}
        for name, content in entity.fields:
            if self._is_full:
                values[name] = nothing_of(content)
            elif isinstance(content, CountedArray | Entity):
                values[name] = yield from self._nested(content)
            else:
                values[name] = self._plain(content)
        if entity.tags is not None and not self._is_full:
            count = self._view[self._position]
            self._position = skip_tags(self._view, self._position + 1, count, len(self._view))
        return entity.make(**values)

    def _nested(self, content: CountedArray | Entity) -> Steps:
        if isinstance(content, CountedArray):
            rows = yield from self._array(content)
            return rows
        if isinstance(content, NullableEntity):
            mark = self._plain_format("b")
            if mark == NULL_STRUCT:
                return None
        message = yield from self.struct(content)
        return message

    def _array(self, array: CountedArray) -> Steps:
        count = self._count("i", compact=array.compact, nullable=array.nullable)
        if count is None:
            return None
        rows: list[Any] = []
        element = array.element
        while len(rows) < count and not self._is_full:
            if self._left == 0:
                self._is_full = True
                break
            self._left -= 1
            if self._left % _STEP_ROWS == 0:
                yield
            if isinstance(element, CountedArray | Entity):
                row = yield from self._nested(element)
            else:
                row = self._plain(element)
            rows.append(row)
        return rows

    def _plain(self, content: AnyConstruct) -> Any:
        form = fixed_format(content)
        if form is not None:
            return self._plain_format(form)
        assert isinstance(content, Text | Blob), f"no way to read {content!r}"
        count = self._count(
            "h" if isinstance(content, Text) else "i", compact=content.compact, nullable=content.nullable
        )
        if count is None:
            return None
        start, self._position = self._position, self._position + count
        if self._position > len(self._view):
            refuse_size("a field", count, len(self._view) - start)
        return str(self._view[start : self._position], "utf-8") if isinstance(content, Text) else b""

    def _plain_format(self, form: str) -> Any:
        [value] = struct.unpack_from(f">{form}", self._view, self._position)
        self._position += struct.calcsize(f">{form}")
        return value

    def _count(self, form: str, *, compact: bool, nullable: bool) -> int | None:
        if compact:
            number, self._position = read_varint(self._view, self._position)
            count = number - 1
        else:
            count = self._plain_format(form)
        if count < -1 or (count == -1 and not nullable):
            refuse_count("a field", count)
        return None if count == -1 else count
