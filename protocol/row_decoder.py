"""Writes the Python source that decodes one message at one version a part at a time: some rows, then the next, and none is kept.

`levels` are the arrays that are cut, from the outermost to the innermost, each in the elements of the one before. A part is a list of
elements of the outermost array. An element whose inner array is cut is in several parts: each has all its fields, and some of its rows.
So its fields behind that array have to be known before they are reached. Such a message is read twice: the first reading collects them
in `tails`, and the second finds them there. What isn't cut, and the checks of the wire, are as in `DecoderForm.SLICED`.

A message may have other rows that are read by themselves, by a decoder of their own. The arrays `left_out` are read over: checked, counted,
and empty in the message.

The names in generated code, besides those of `decoder_source`: `room` (rows until the next part), `within` (rows inside the element that
isn't cut), `tails`, `t` (index of the next tail), `is_cut`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import msgspec

from lowtide.protocol.constructs import CountedArray, Entity, nothing_of, size_min
from lowtide.protocol.decoder_source import ROWS_A_STEP, DecoderForm, DecoderSource
from lowtide.protocol.schema import ApiMessage, wire_form
from lowtide.protocol.source_writer import SourceWriter

if TYPE_CHECKING:
    from lowtide.protocol.constructs import AnyConstruct
    from lowtide.protocol.primitives import Buffer


class RowLimits(msgspec.Struct, frozen=True):
    """How many rows a message may have, how many belong together at most, and of how many a part is, about."""

    rows_max: int
    whole_max: int
    part_rows: int


Tails = list[tuple[Any, ...]]
"""Of each element that is cut, the fields behind its rows; in the order of the message."""

RowDecoder = Callable[["Buffer", int, int, RowLimits, Tails], Generator["list[Any] | None", None, tuple[Any, int]]]
"""`decode(buffer, start, end, limits, tails)`: yields parts, and None after other steps. Returns the message with the last part, which may
be empty, and the number of all rows. `tails` is empty for the first reading.

Errors: ProtocolError for everything that isn't this message; TooManyRowsError beyond `limits`. Parts before it may have been yielded.
"""


@functools.cache
def row_decoder(
    message: type[ApiMessage], version: int, fields: tuple[str, ...], left_out: tuple[str, ...] = ()
) -> RowDecoder:
    """The decoder that cuts the arrays `fields` and reads over those of `left_out`, made on first use.

    Errors: KeyError where this version lacks one.
    """
    writer = SourceWriter()
    RowDecoderSource(writer, wire_form(message, version), f"{message.__name__} v{version}", fields, left_out)
    exec(compile(writer.source(), f"<decode_rows {message.__name__} v{version}>", "exec"), writer.names)  # noqa: S102 our own source
    decode: RowDecoder = writer.names["decode_rows"]
    return decode


def cut_arrays(entity: Entity, fields: tuple[str, ...]) -> list[CountedArray]:
    """The arrays of these names, each in the elements of the one before.

    Errors: KeyError where there is none.
    """
    arrays: list[CountedArray] = []
    for field in fields:
        array = dict(entity.fields)[field]
        assert isinstance(array, CountedArray), f"{field} is no array"
        arrays.append(array)
        if isinstance(array.element, Entity):
            entity = array.element
    return arrays


class _OpenRow:
    """The element that is being read of an array that is cut, but for the innermost: its fields so far."""

    def __init__(self, entity: Entity) -> None:
        self.entity = entity
        self.values: list[str] = []

    def made_with(self, writer: SourceWriter, rows: str) -> str:
        """The expression of this element with the rows that were read."""
        names = [name for name, _ in self.entity.fields]
        known = len(self.values)
        given = [*zip(names, self.values, strict=False), (names[known], rows)]
        given += [(name, f"after[{index}]") for index, name in enumerate(names[known + 1 :])]
        make = writer.refer(self.entity.make.__name__, self.entity.make)
        return f"{make}({', '.join(f'{name}={value}' for name, value in given)})"

    @property
    def behind(self) -> tuple[AnyConstruct, ...]:
        """What comes after the array that is being read."""
        return tuple(content for _, content in self.entity.fields[len(self.values) + 1 :])


class RowDecoderSource(DecoderSource):
    """One generated function, left to right."""

    def __init__(
        self, writer: SourceWriter, entity: Entity, label: str, fields: tuple[str, ...], left_out: tuple[str, ...]
    ) -> None:
        self._levels = cut_arrays(entity, fields)
        self._left_out = cut_arrays(entity, left_out)
        self._open: list[_OpenRow] = []
        self._lists: list[str] = []
        super().__init__(writer, entity, label, DecoderForm.SLICED)

    def _begin_function(self) -> None:
        self.writer.line(0, "def decode_rows(buf, p, end, limits, tails):")
        self.writer.line(1, "rows_max, whole_max, part_rows = limits.rows_max, limits.whole_max, limits.part_rows")
        self.writer.line(1, "room, within, t, is_cut = part_rows, 0, 0, False")

    def _count_rows(self, array: CountedArray, depth: int, names: tuple[str, int, str, str]) -> None:
        super()._count_rows(array, depth, names)
        if not self._keeps(array) or any(array is level for level in self._levels):
            return
        count, base, _, what = names
        number = f"({count} - 1)" if base else count
        self.writer.line(depth + 1, f"within += {number}")
        self.writer.line(depth + 1, f"room -= {number}")
        self.writer.line(
            depth + 1,
            f"if within > whole_max and {number} * {size_min(array.element)} <= end - p: refuse_whole({what!r}, whole_max)",
        )

    def _general_array(self, array: CountedArray, depth: int, names: tuple[str, int, str, str]) -> None:
        level = next((index for index, cut in enumerate(self._levels) if cut is array), None)
        if level is None and self._keeps(array):
            super()._general_array(array, depth, names)
            return
        count, base, value, what = names
        writer = self.writer
        writer.line(depth, f"{value} = []")
        writer.line(depth, f"while {count} > {base}:")
        if level is None:
            self._read(array.element, depth + 1, what)
            self._flush(depth + 1)
            self._end_element(count, depth + 1)
            return
        self._lists.append(value)
        if array is self._levels[-1]:
            writer.line(depth + 1, "within = 0")
        element = self._read(array.element, depth + 1, what)
        self._flush(depth + 1)
        writer.line(depth + 1, f"{value}.append({element})")
        writer.line(depth + 1, "room -= 1")
        self._end_element(count, depth + 1)
        # What is cut within has more to come: else the row is whole, and whatever is around it is looked at.
        writer.line(depth + 1, f"if room <= 0 and {count} > {base}:" if level else "if room <= 0:")
        self._yield_part(depth + 2)
        self._lists.pop()

    def _end_element(self, count: str, depth: int) -> None:
        self.writer.line(depth, f"{count} -= 1")
        self.writer.line(depth, "left -= 1")
        self.writer.line(depth, "if left <= 0:")
        self.writer.line(depth + 1, f"left = {ROWS_A_STEP}")
        self.writer.line(depth + 1, "yield")

    def _keeps(self, array: CountedArray) -> bool:
        return not any(array is other for other in self._left_out)

    def _yield_part(self, depth: int) -> None:
        """Give away what was read, in the elements around it."""
        writer, lists = self.writer, self._lists
        if any(row.behind for row in self._open):
            writer.line(depth, "is_cut = True")
            [behind] = [row.behind for row in self._open if row.behind]
            nothing = writer.refer("nothing", tuple(nothing_of(content) for content in behind))
            writer.line(depth, f"after = tails[t] if t < len(tails) else {nothing}")
        for row, of, within in reversed(list(zip(self._open, lists, lists[1:], strict=False))):
            writer.line(depth, f"{of}.append({row.made_with(writer, within)})")
        writer.line(depth, f"yield {lists[0]}")
        for name in lists:
            writer.line(depth, f"{name} = []")
        writer.line(depth, "room = part_rows")

    def _entity(self, entity: Entity, depth: int, what: str) -> str:
        if not any(entity is array.element for array in self._levels[:-1]):
            return super()._entity(entity, depth, what)
        row = _OpenRow(entity)
        self._open.append(row)
        for name, content in entity.fields:
            row.values.append(self._read(content, depth, f"{what}.{name}"))
        self._open.pop()
        made = self._finish_entity(entity, row.values, depth, what)
        inner = next(
            index for index, (_, content) in enumerate(entity.fields) if any(content is array for array in self._levels)
        )
        if behind := row.values[inner + 1 :]:
            self.writer.line(depth, "if is_cut:")
            self.writer.line(depth + 1, f"if t == len(tails): tails.append(({', '.join(behind)},))")
            self.writer.line(depth + 1, "t += 1")
            self.writer.line(depth + 1, "is_cut = False")
        return made
