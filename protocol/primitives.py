"""The small shapes of Kafka's wire: unsigned varints, strings, bytes, arrays and tagged fields.

Two forms stand side by side. The *constructs* (`Text`, `Blob`, `CountedArray`, `TaggedFields`, `Entity`) are the slow reference: they
parse and build when run by the construct library, and the compiler walks the same tree to write fast code. The *functions* are what
that generated code calls, mostly off its hot path: long varints and refusals.

Validity rules, the same in both forms:

- An unsigned varint has at most five bytes, seven bits each, lowest first; longer than necessary is accepted, as Kafka does.
- A string or array has an int16/int32 count in the older ("fixed") encoding, or count + 1 as an unsigned varint in the compact one.
  Null is -1, compact 0, and an error where the field isn't nullable. Below -1 is an error everywhere (Kafka takes it for null).
- A string has at most 32,767 bytes of valid UTF-8 (Kafka replaces what is invalid; here it's an error).
- A tagged field section is a count, then tag, size and content of each. Unknown tags are skipped and not kept. Of a tag that is given
  twice the last one counts, and the order isn't checked: Kafka's generated readers do the same. A known tag must use its size exactly.

This module doesn't know which field exists in which version: that is `schema.py`. Sources: protocol guide, KIP-482.
"""

# ruff: noqa: SLF001 construct's extension points are untyped and begin with an underscore
from __future__ import annotations

import io
import struct
from mmap import mmap
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeAlias

import construct

from lowtide.protocol.errors import ProtocolError, TooManyRowsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    AnyConstruct: TypeAlias = construct.Construct[Any, Any]
else:
    AnyConstruct = construct.Construct

Buffer: TypeAlias = bytes | bytearray | memoryview
"""What is decoded. A memoryview should span the whole of its bytes, bytearray or mapping: what it shows of a part is copied first."""

STRING_BYTES_MAX = 32_767
"""Most UTF-8 bytes of a string: what an int16 can count; Kafka applies it to compact strings too."""

SECTION_TAGS_MAX = 1_000
"""Most tagged fields of one struct that are read, unknown ones with them: Kafka's messages have at most a dozen. It bounds how long a
section holds the reader: a third of a millisecond."""

_TABLE_SIZE = 4096
_VARINT_SHIFT_MAX = 28
_CONTINUE = 128
"""A varint's byte of at least this value is followed by another."""


class SizedRecords(Protocol):
    """Records that know their size in bytes, for example a slice of a file that is sent without being read into the message."""

    def __len__(self) -> int: ...


RecordsLike: TypeAlias = bytes | bytearray | memoryview | SizedRecords
"""A decoded message holds a memoryview into the frame; to be encoded it may be anything of known size."""


def spanned(view: memoryview) -> bytes | bytearray | mmap:
    """The object that `view` shows, for one can take text from that and cannot from a view; a copy when it shows only a part."""
    target = view.obj
    if isinstance(target, bytes | bytearray | mmap) and len(target) == view.nbytes and view.c_contiguous:
        return target
    return bytes(view)


# ---------------------------------------------------------------- unsigned varints
def _unsigned_varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= _CONTINUE:
        encoded.append(number & 127 | _CONTINUE)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


VARINTS = tuple(_unsigned_varint(number) for number in range(_TABLE_SIZE))
"""The encoded form of every number below 4,096: one index instead of a call on the hot path."""


def unsigned_varint(number: int) -> bytes:
    """`number` (not negative) as an unsigned varint."""
    return VARINTS[number] if number < _TABLE_SIZE else _unsigned_varint(number)


def string_prefix(count_plus_one: int) -> bytes:
    """The length prefix of a compact string; `count_plus_one` is its size in bytes plus one.

    Errors: ValueError when the string is longer than the protocol can carry.
    """
    if count_plus_one > STRING_BYTES_MAX + 1:
        message = f"a string of {count_plus_one - 1} bytes; the protocol carries at most {STRING_BYTES_MAX}"
        raise ValueError(message)
    return unsigned_varint(count_plus_one)


def continue_varint(buffer: Buffer, position: int, number: int) -> tuple[int, int]:
    """Finish reading an unsigned varint whose first byte, `number` >= 128, is already read; `position` is the byte after it.

    Returns the number and the position after its last byte.
    Errors: IndexError when the buffer ends within it; ProtocolError when it has more than five bytes.
    """
    number &= 127
    shift = 7
    while True:
        byte = buffer[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < _CONTINUE:
            return number, position
        shift += 7
        if shift > _VARINT_SHIFT_MAX:
            message = "an unsigned varint of more than five bytes"
            raise ProtocolError(message)


def continue_string_length(buffer: Buffer, position: int, number: int) -> tuple[int, int]:
    """As `continue_varint`, for the length prefix of a compact string, which has an upper bound.

    Errors: as `continue_varint`, and ProtocolError for a string of more than 32,767 bytes.
    """
    number, position = continue_varint(buffer, position, number)
    if number > STRING_BYTES_MAX + 1:
        message = f"a string of {number - 1} bytes; the protocol carries at most {STRING_BYTES_MAX}"
        raise ProtocolError(message)
    return number, position


def continue_tag_count(buffer: Buffer, position: int, number: int) -> tuple[int, int]:
    """As `continue_varint`, for the count of a section's tagged fields, which has an upper bound.

    Errors: as `continue_varint`, and ProtocolError for more than `SECTION_TAGS_MAX`.
    """
    number, position = continue_varint(buffer, position, number)
    if number > SECTION_TAGS_MAX:
        message = f"{number} tagged fields in one section; at most {SECTION_TAGS_MAX} are read"
        raise ProtocolError(message)
    return number, position


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """An unsigned varint at `position`, and the position after it.

    Errors: IndexError when the buffer ends within it; ProtocolError when it has more than five bytes.
    """
    number = buffer[position]
    if number < _CONTINUE:
        return number, position + 1
    return continue_varint(buffer, position + 1, number)


def skip_tags(buffer: Buffer, position: int, number: int, end: int) -> int:
    """Pass over a tagged field section of which no tag is known; the first byte of its count, `number`, is already read.

    Returns the position after the section.
    Errors: IndexError when the buffer ends within it; ProtocolError when a tag reaches beyond `end` (exclusive), or for more than
    `SECTION_TAGS_MAX` tags.
    """
    if number >= _CONTINUE:
        number, position = continue_tag_count(buffer, position, number)
    while number:
        number -= 1
        _tag, position = read_varint(buffer, position)
        size, position = read_varint(buffer, position)
        if position + size > end:
            refuse_size("a tagged field", size, end - position)
        position += size
    return position


def refuse_count(what: str, count: int) -> NoReturn:
    """Raise the ProtocolError for a null that isn't allowed or a negative count."""
    message = f"{what} is null" if count == -1 else f"{what} has the count {count}"
    raise ProtocolError(message)


def refuse_size(what: str, count: int, remaining: int) -> NoReturn:
    """Raise the ProtocolError for a count that the `remaining` bytes cannot hold."""
    message = f"{what} has the count {count}, but only {max(remaining, 0)} bytes remain"
    raise ProtocolError(message)


def refuse_rows(what: str, rows_max: int) -> NoReturn:
    """Raise the TooManyRowsError for the array or section with which a message has more than `rows_max` rows."""
    error = TooManyRowsError(f"more than {rows_max} rows, at {what}")
    error.rows_max = rows_max
    raise error


def refuse_field(what: str, size: int, size_max: int) -> NoReturn:
    """Raise the TooManyRowsError for a field that isn't copied."""
    message = f"{size} bytes at {what}, which may have {size_max}"
    raise TooManyRowsError(message)


# ---------------------------------------------------------------- constructs: the reference form
def _read_varint(stream: IO[bytes], path: str) -> int:
    number = shift = 0
    while True:
        byte = construct.stream_read(stream, 1, path)[0]
        number |= (byte & 127) << shift
        if byte < _CONTINUE:
            return number
        shift += 7
        if shift > _VARINT_SHIFT_MAX:
            message = "an unsigned varint of more than five bytes"
            raise construct.IntegerError(message, path=path)


def _write(stream: IO[bytes], encoded: bytes, path: str) -> None:
    construct.stream_write(stream, encoded, len(encoded), path)


class _Counted(AnyConstruct):
    """What starts with a count: strings, bytes and arrays. `fixed_count` is the construct of the older encoding's count."""

    fixed_count: AnyConstruct = construct.Int32sb

    def __init__(self, *, compact: bool, nullable: bool) -> None:
        super().__init__()
        self.compact = compact
        self.nullable = nullable

    def _read_count(self, stream: IO[bytes], context: Any, path: str) -> int:
        count: int
        count = _read_varint(stream, path) - 1 if self.compact else self.fixed_count._parse(stream, context, path)
        if count < -1 or (count == -1 and not self.nullable):
            message = f"count {count} is not allowed here"
            raise construct.RangeError(message, path=path)
        return count

    def _write_count(self, count: int, stream: IO[bytes], context: Any, path: str) -> None:
        if count == -1 and not self.nullable:
            message = "null in a field that is not nullable"
            raise construct.RangeError(message, path=path)
        if self.compact:
            _write(stream, unsigned_varint(count + 1), path)
        else:
            self.fixed_count._build(count, stream, context, path)


class Blob(_Counted):
    """Bytes, `None` when null. With `is_view` they are records: generated code then gives a view and takes anything of known size."""

    def __init__(self, *, compact: bool, nullable: bool, is_view: bool) -> None:
        super().__init__(compact=compact, nullable=nullable)
        self.is_view = is_view

    def _parse(self, stream: IO[bytes], context: Any, path: str) -> Any:
        count = self._read_count(stream, context, path)
        return None if count == -1 else bytes(construct.stream_read(stream, count, path))

    def _build(self, obj: Any, stream: IO[bytes], context: Any, path: str) -> Any:
        self._write_count(-1 if obj is None else len(obj), stream, context, path)
        _write(stream, bytes(obj or b""), path)
        return obj


class Text(_Counted):
    """A string, `None` when null."""

    fixed_count = construct.Int16sb

    def _parse(self, stream: IO[bytes], context: Any, path: str) -> Any:
        count = self._read_count(stream, context, path)
        if count > STRING_BYTES_MAX:
            message = f"a string of {count} bytes"
            raise construct.RangeError(message, path=path)
        return None if count == -1 else bytes(construct.stream_read(stream, count, path)).decode()

    def _build(self, obj: Any, stream: IO[bytes], context: Any, path: str) -> Any:
        encoded = b"" if obj is None else obj.encode()
        if len(encoded) > STRING_BYTES_MAX:
            message = f"a string of {len(encoded)} bytes"
            raise construct.RangeError(message, path=path)
        self._write_count(-1 if obj is None else len(encoded), stream, context, path)
        _write(stream, encoded, path)
        return obj


class CountedArray(_Counted):
    """A list of `element`s, `None` when null."""

    def __init__(self, element: AnyConstruct, *, compact: bool, nullable: bool) -> None:
        super().__init__(compact=compact, nullable=nullable)
        self.element = element

    def _parse(self, stream: IO[bytes], context: Any, path: str) -> Any:
        count = self._read_count(stream, context, path)
        return None if count == -1 else [self.element._parse(stream, context, path) for _ in range(count)]

    def _build(self, obj: Any, stream: IO[bytes], context: Any, path: str) -> Any:
        self._write_count(-1 if obj is None else len(obj), stream, context, path)
        for element in obj or ():
            self.element._build(element, stream, context, path)
        return obj


NULL_STRUCT: Final = -1
PRESENT_STRUCT: Final = 1
"""What the byte before a nullable struct says."""


class TaggedField:
    """One known tag of a section: its number, the field's name and default (what an absent tag stands for), and its construct.

    All fields of a tagged struct that can't be null have defaults, for an absent tag stands for these (making the TaggedField raises
    TypeError otherwise).
    """

    def __init__(self, tag: int, name: str, default: object, content: AnyConstruct) -> None:
        self.tag = tag
        self.name = name
        self.default = default
        self.content = content
        self._may_be_null = isinstance(content, NullableEntity)
        self._stands_for_none = content.make() if isinstance(content, Entity) and not self._may_be_null else None

    def is_absent(self, value: object) -> bool:
        """Whether `value` isn't written: it's the default, or None or a struct of defaults where the content is a struct."""
        if isinstance(self.content, Entity) and not self._may_be_null:
            return value is None or value == self._stands_for_none
        return value == self.default


class TaggedFields(AnyConstruct):
    """The section that ends every struct of a flexible version; parses to the values of the known tags that are there."""

    def __init__(self, fields: Sequence[TaggedField]) -> None:
        super().__init__()
        self.fields = {field.tag: field for field in sorted(fields, key=lambda field: field.tag)}

    def _parse(self, stream: IO[bytes], context: Any, path: str) -> Any:
        values: dict[str, Any] = {}
        count = _read_varint(stream, path)
        if count > SECTION_TAGS_MAX:
            message = f"{count} tagged fields in one section"
            raise construct.RangeError(message, path=path)
        for _ in range(count):
            tag = _read_varint(stream, path)
            content = construct.stream_read(stream, _read_varint(stream, path), path)
            field = self.fields.get(tag)
            if field is not None:
                inner = io.BytesIO(content)
                values[field.name] = field.content._parse(inner, context, f"{path} -> {field.name}")
                if inner.read(1):
                    message = f"tag {tag} is longer than its content"
                    raise construct.StreamError(message, path=path)
        return values

    def _build(self, obj: Any, stream: IO[bytes], context: Any, path: str) -> Any:
        present = []
        for field in self.fields.values():
            value = getattr(obj, field.name)
            if not field.is_absent(value):
                inner = io.BytesIO()
                field.content._build(value, inner, context, f"{path} -> {field.name}")
                present.append((field.tag, inner.getvalue()))
        _write(stream, unsigned_varint(len(present)), path)
        for tag, content in present:
            _write(stream, unsigned_varint(tag) + unsigned_varint(len(content)) + content, path)
        return obj


class Entity(AnyConstruct):
    """A struct at one version: its fields in wire order, then its tags when the version is flexible.

    Parses to an instance made by `make`, whose other fields keep their defaults; builds from anything with these attributes.
    """

    def __init__(self, make: Callable[..., Any], fields: Sequence[tuple[str, AnyConstruct]], tags: TaggedFields | None) -> None:
        super().__init__()
        self.make = make
        self.fields = tuple(fields)
        self.tags = tags

    def _parse(self, stream: IO[bytes], context: Any, path: str) -> Any:
        values = {name: content._parse(stream, context, f"{path} -> {name}") for name, content in self.fields}
        if self.tags is not None:
            values |= self.tags._parse(stream, context, path)
        return self.make(**values)

    def _build(self, obj: Any, stream: IO[bytes], context: Any, path: str) -> Any:
        for name, content in self.fields:
            content._build(getattr(obj, name), stream, context, f"{path} -> {name}")
        if self.tags is not None:
            self.tags._build(obj, stream, context, path)
        return obj


class NullableEntity(Entity):
    """A struct that may be null: a byte before it is -1 for null (`None`) and 1 for a struct."""

    def _parse(self, stream: IO[bytes], context: Any, path: str) -> Any:
        mark = construct.Int8sb._parse(stream, context, path)
        if mark not in {NULL_STRUCT, PRESENT_STRUCT}:
            message = f"{mark} is not the mark of a struct"
            raise construct.RangeError(message, path=path)
        return None if mark == NULL_STRUCT else super()._parse(stream, context, path)

    def _build(self, obj: Any, stream: IO[bytes], context: Any, path: str) -> Any:
        construct.Int8sb._build(NULL_STRUCT if obj is None else PRESENT_STRUCT, stream, context, path)
        return None if obj is None else super()._build(obj, stream, context, path)


def fixed_format(content: AnyConstruct) -> str | None:
    """The `struct` format character(s) of a construct of fixed width, for example `q`; None for all others."""
    if isinstance(content, construct.FormatField):
        letter: str = content.fmtstr[1]
        return {"l": "i", "L": "I"}.get(letter, letter)
    if isinstance(content, construct.Bytes) and isinstance(content.length, int):
        return f"{content.length}s"
    return None


def size_min(content: AnyConstruct) -> int:
    """Fewest bytes that `content` can take on the wire, at least 1: with it a count is checked against the bytes that remain."""
    form = fixed_format(content)
    if form is not None:
        return struct.calcsize(f">{form}")
    if isinstance(content, _Counted):
        return 1 if content.compact else content.fixed_count.sizeof()
    assert isinstance(content, Entity), f"no size for {content!r}"
    if isinstance(content, NullableEntity):
        return 1
    return max(1, sum(size_min(field) for _, field in content.fields) + (content.tags is not None))


def row_bytes_min(content: AnyConstruct) -> int | None:
    """Fewest bytes that an element of any array within `content` can take on the wire; None where there is no array.

    A message of n bytes can't have more than n / that many elements.
    """
    if isinstance(content, CountedArray):
        within = row_bytes_min(content.element)
        return size_min(content.element) if within is None else min(within, size_min(content.element))
    if not isinstance(content, Entity):
        return None
    found = [size for _, field in content.fields if (size := row_bytes_min(field)) is not None]
    return min(found, default=None)


def nothing_of(content: AnyConstruct) -> Any:
    """The value of `content` that says least: null where it may be, else empty, zero, or a struct of such."""
    if isinstance(content, _Counted):
        if content.nullable:
            return None
        return "" if isinstance(content, Text) else b"" if isinstance(content, Blob) else []
    if isinstance(content, NullableEntity):
        return None
    if isinstance(content, Entity):
        return content.make(**{name: nothing_of(field) for name, field in content.fields})
    return content.parse(bytes(content.sizeof()))
