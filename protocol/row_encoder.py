"""Writes one message whose rows come in several: as bytes at once, so that no row is kept.

`levels` are the arrays whose rows come in parts, from the outermost to the innermost (`row_decoder`). Their counts stand before the rows,
and are written when the rows are there. A row that two parts have, equal but for what is within, is one again: the last
row of a part stays open until the next one shows whether it goes on.

A few bytes of a request may ask for many: what is written beyond a limit is packed (`Packing`), and unpacked by its
sender. Records are pieces of their own, as they were given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from lowtide.protocol.constructs import CountedArray, Entity
from lowtide.protocol.encoder_source import EncoderForm, EncoderSource
from lowtide.protocol.primitives import unsigned_varint
from lowtide.protocol.row_decoder import cut_arrays
from lowtide.protocol.schema import ApiMessage, wire_form
from lowtide.protocol.source_writer import SourceWriter

CHUNK_BYTES: Final = 16 * 1024
"""What is written is kept in pieces of about so many bytes."""

_PACKED_BYTES_MIN: Final = 4 * 1024

_COUNT_BYTES: Final = 4

Steps = Generator[None, None, None]


class _Level(msgspec.Struct, frozen=True):
    """One array: its field, what is written before and after it in what has it, and how its rows are written, a few at a time."""

    field: str
    compact: bool
    head: Callable[[Any], bytes]
    tail: Callable[[Any], bytes]
    rows: Callable[[Any], Generator[None, None, list[bytes]]]


class _Rows(msgspec.Struct, gc=False):
    rows: Sequence[Any]


@functools.cache
def row_levels(message: type[ApiMessage], version: int, fields: tuple[str, ...]) -> tuple[_Level, ...]:
    """The encoders for the arrays `fields` of a message, made on first use.

    Errors: KeyError where this version lacks one.
    """
    entity = wire_form(message, version)
    levels = []
    for field, array in zip(fields, cut_arrays(entity, fields), strict=True):
        at = [name for name, _ in entity.fields].index(field)
        rows = Entity(_Rows, [("rows", CountedArray(array.element, compact=False, nullable=False))], None)
        levels.append(
            _Level(
                field,
                array.compact,
                _encoder(Entity(entity.make, entity.fields[:at], None), EncoderForm.WHOLE),
                _encoder(Entity(entity.make, entity.fields[at + 1 :], entity.tags), EncoderForm.WHOLE),
                _encoder(rows, EncoderForm.SLICED),
            )
        )
        if isinstance(array.element, Entity):
            entity = array.element
    return tuple(levels)


def _encoder(entity: Entity, form: EncoderForm) -> Any:
    writer = SourceWriter()
    EncoderSource(writer, entity, form)
    exec(compile(writer.source(), f"<{form.value} rows>", "exec"), writer.names)  # noqa: S102 our own source, from our own declarations
    return writer.names[form.value]


class Packing(msgspec.Struct, frozen=True):
    """How many bytes of a message may be kept as they are, asked before each piece, and what is made of the others."""

    plain_bytes: Callable[[], int]
    pack: Callable[[bytes], Any]


class RowEncoder:
    """Writes one message. `add` gets messages that have the rows in turn; the other fields are those of the first.

    `message` is that one without its rows: what is changed there until the end, is written. `records_bytes`: of the records in it.
    """

    def __init__(self, levels: tuple[_Level, ...], packing: Packing | None = None) -> None:
        """Without `packing` all bytes are kept as they are."""
        self._levels = levels
        self._packing = packing
        self._written_bytes = 0
        self.records_bytes = 0
        self.message: Any = None
        self._chunks: list[Any] = []
        self._chunk = bytearray()
        self._counts = [0] * len(levels)
        self._holes = [0] * len(levels)
        """Where the counts belong, in the chunks."""
        self._open: list[Any] = [None] * len(levels)
        """The last row of each array, without those within; None where nothing can be added to it."""

    def add(self, message: Any) -> Steps:
        """Write the rows of a message, a few at a time."""
        field = self._levels[0].field
        rows = getattr(message, field)
        if self.message is None:
            self.message = replace(message, **{field: []})
            self._begin_array(0)
        yield from self._add(0, rows)

    def finish(self) -> list[Any]:
        """The whole message, in pieces that follow each other: bytes, and what was packed."""
        self._close(0)
        self._end_array(0, self.message)
        self._end_chunk()
        chunks, self._chunks = self._chunks, []
        chunks[0] = self._levels[0].head(self.message) + chunks[0]
        return chunks

    def _add(self, level: int, rows: Sequence[Any]) -> Steps:
        is_innermost = level == len(self._levels) - 1
        if is_innermost or not rows:
            yield from self._write(level, rows)
            return
        inner = self._levels[level + 1].field
        if self._open[level] is not None and _is_same(self._open[level], rows[0], inner):
            yield from self._add(level + 1, getattr(rows[0], inner))
            rows = rows[1:]
        if not rows:
            return
        self._close(level)
        last = rows[-1]
        yield from self._write(level, rows[:-1])
        if not getattr(last, inner):  # It may be null.
            yield from self._write(level, rows[-1:])
            return
        self._counts[level] += 1
        self._open[level] = last
        self._chunk += self._levels[level + 1].head(last)
        self._begin_array(level + 1)
        yield from self._add(level + 1, getattr(last, inner))

    def _write(self, level: int, rows: Sequence[Any]) -> Steps:
        """Write rows to which nothing will be added."""
        if not rows:
            return
        self._counts[level] += len(rows)
        chunks = yield from self._levels[level].rows(_Rows(rows))
        skipped = _COUNT_BYTES
        for chunk in chunks:
            if chunk.__class__ is bytes:
                self._chunk += memoryview(chunk)[skipped:]
            else:
                self._end_chunk()
                self._chunks.append(chunk)
                self.records_bytes += len(chunk)
            skipped = 0
            if len(self._chunk) >= CHUNK_BYTES:
                self._end_chunk()

    def _begin_array(self, level: int) -> None:
        self._end_chunk()
        self._holes[level] = len(self._chunks)
        self._chunks.append(b"")
        self._counts[level] = 0
        self._open[level] = None

    def _end_array(self, level: int, of: Any) -> None:
        count = self._counts[level]
        is_compact = self._levels[level].compact
        self._chunks[self._holes[level]] = (
            unsigned_varint(count + 1) if is_compact else count.to_bytes(_COUNT_BYTES, "big")
        )
        self._chunk += self._levels[level].tail(of)

    def _close(self, level: int) -> None:
        """Nothing more is added to the last row."""
        row, self._open[level] = self._open[level], None
        if row is not None:
            self._close(level + 1)
            self._end_array(level + 1, row)

    def _end_chunk(self) -> None:
        if not self._chunk:
            return
        chunk, self._chunk = bytes(self._chunk), bytearray()
        self._written_bytes += len(chunk)
        packing = self._packing
        is_packed = (
            packing is not None and self._written_bytes > packing.plain_bytes() and len(chunk) >= _PACKED_BYTES_MIN
        )
        self._chunks.append(packing.pack(chunk) if packing is not None and is_packed else chunk)


def _is_same(row: Any, other: Any, inner: str) -> bool:
    """Whether two rows are one but for what is within them."""
    return all(getattr(row, name) == getattr(other, name) for name in row.__struct_fields__ if name != inner)
