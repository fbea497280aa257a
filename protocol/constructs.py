"""Kafka's wire types as constructs: strings, bytes, arrays, tagged fields, structs.

They define every message. The construct library interprets them, slowly; the compiler generates fast code from the same
tree, and tests compare the two. `primitives` has the validity rules, and `schema` knows which version has which field.
Sources: protocol guide, KIP-482.
"""

# ruff: noqa: SLF001 construct's extension points are untyped and begin with an underscore
from __future__ import annotations

import io
import struct
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

import construct

from lowtide.protocol.primitives import (
    SECTION_TAGS_MAX,
    STRING_BYTES_MAX,
    VARINT_CONTINUES,
    VARINT_SHIFT_MAX,
    unsigned_varint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    AnyConstruct: TypeAlias = construct.Construct[Any, Any]
else:
    AnyConstruct = construct.Construct


def _read_varint(stream: IO[bytes], path: str) -> int:
    number = shift = 0
    while True:
        byte = construct.stream_read(stream, 1, path)[0]
        number |= (byte & 127) << shift
        if byte < VARINT_CONTINUES:
            return number
        shift += 7
        if shift > VARINT_SHIFT_MAX:
            raise construct.IntegerError("an unsigned varint of more than five bytes", path=path)


def _write(stream: IO[bytes], encoded: bytes, path: str) -> None:
    construct.stream_write(stream, encoded, len(encoded), path)


class _Counted(AnyConstruct):
    """A type that starts with a count: strings, bytes and arrays. `fixed_count` is the count of the older encoding."""

    fixed_count: AnyConstruct = construct.Int32sb

    def __init__(self, *, compact: bool, nullable: bool) -> None:
        super().__init__()
        self.compact = compact
        self.nullable = nullable

    def _read_count(self, stream: IO[bytes], context: Any, path: str) -> int:
        count: int
        count = _read_varint(stream, path) - 1 if self.compact else self.fixed_count._parse(stream, context, path)
        if count < -1 or (count == -1 and not self.nullable):
            raise construct.RangeError(f"count {count} is not allowed here", path=path)
        return count

    def _write_count(self, count: int, stream: IO[bytes], context: Any, path: str) -> None:
        if count == -1 and not self.nullable:
            raise construct.RangeError("null in a field that is not nullable", path=path)
        if self.compact:
            _write(stream, unsigned_varint(count + 1), path)
        else:
            self.fixed_count._build(count, stream, context, path)


class Blob(_Counted):
    """Bytes, `None` when null. `is_view`: records, decoded as a view and encoded from anything with a size."""

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
            raise construct.RangeError(f"a string of {count} bytes", path=path)
        return None if count == -1 else bytes(construct.stream_read(stream, count, path)).decode()

    def _build(self, obj: Any, stream: IO[bytes], context: Any, path: str) -> Any:
        encoded = b"" if obj is None else obj.encode()
        if len(encoded) > STRING_BYTES_MAX:
            raise construct.RangeError(f"a string of {len(encoded)} bytes", path=path)
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
"""The byte before a nullable struct."""


class TaggedField:
    """A known tag: its number, the field's name, its default for an absent tag, and its construct.

    All fields of a tagged struct that is not nullable have defaults (otherwise the constructor raises TypeError).
    """

    def __init__(self, tag: int, name: str, default: object, content: AnyConstruct) -> None:
        self.tag = tag
        self.name = name
        self.default = default
        self.content = content
        self._may_be_null = isinstance(content, NullableEntity)
        self._stands_for_none = content.make() if isinstance(content, Entity) and not self._may_be_null else None

    def is_absent(self, value: object) -> bool:
        """Returns whether `value` is omitted: the default, or for a struct None or a struct of defaults."""
        if isinstance(self.content, Entity) and not self._may_be_null:
            return value is None or value == self._stands_for_none
        return value == self.default


class TaggedFields(AnyConstruct):
    """The section at the end of each struct of a flexible version. Parses to the values of the known tags in it."""

    def __init__(self, fields: Sequence[TaggedField]) -> None:
        super().__init__()
        self.fields = {field.tag: field for field in sorted(fields, key=lambda field: field.tag)}

    def _parse(self, stream: IO[bytes], context: Any, path: str) -> Any:
        values: dict[str, Any] = {}
        count = _read_varint(stream, path)
        if count > SECTION_TAGS_MAX:
            raise construct.RangeError(f"{count} tagged fields in one section", path=path)
        for _ in range(count):
            tag = _read_varint(stream, path)
            content = construct.stream_read(stream, _read_varint(stream, path), path)
            field = self.fields.get(tag)
            if field is not None:
                inner = io.BytesIO(content)
                values[field.name] = field.content._parse(inner, context, f"{path} -> {field.name}")
                if inner.read(1):
                    raise construct.StreamError(f"tag {tag} is longer than its content", path=path)
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
    """A struct at one version: its fields in wire order, then its tags if the version is flexible.

    Parses to the result of `make`, with defaults for other fields; builds from any object with these attributes.
    """

    def __init__(
        self, make: Callable[..., Any], fields: Sequence[tuple[str, AnyConstruct]], tags: TaggedFields | None
    ) -> None:
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
    """A nullable struct: the byte before it is -1 for null (`None`) and 1 for a struct."""

    def _parse(self, stream: IO[bytes], context: Any, path: str) -> Any:
        mark = construct.Int8sb._parse(stream, context, path)
        if mark not in {NULL_STRUCT, PRESENT_STRUCT}:
            raise construct.RangeError(f"{mark} is not the mark of a struct", path=path)
        return None if mark == NULL_STRUCT else super()._parse(stream, context, path)

    def _build(self, obj: Any, stream: IO[bytes], context: Any, path: str) -> Any:
        construct.Int8sb._build(NULL_STRUCT if obj is None else PRESENT_STRUCT, stream, context, path)
        return None if obj is None else super()._build(obj, stream, context, path)


def fixed_format(content: AnyConstruct) -> str | None:
    """Returns the `struct` format of a construct of fixed width, for example `q`; None for all others."""
    if isinstance(content, construct.FormatField):
        letter: str = content.fmtstr[1]
        return {"l": "i", "L": "I"}.get(letter, letter)
    if isinstance(content, construct.Bytes) and isinstance(content.length, int):
        return f"{content.length}s"
    return None


def size_min(content: AnyConstruct) -> int:
    """Returns the minimum size of `content` in bytes, at least 1, to check a count against the remaining bytes."""
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
    """Returns the minimum size in bytes of an element of any array in `content`; None without an array."""
    if isinstance(content, CountedArray):
        within = row_bytes_min(content.element)
        return size_min(content.element) if within is None else min(within, size_min(content.element))
    if not isinstance(content, Entity):
        return None
    found = [size for _, field in content.fields if (size := row_bytes_min(field)) is not None]
    return min(found, default=None)


def nothing_of(content: AnyConstruct) -> Any:
    """Returns the minimal value of `content`: null if allowed, otherwise empty, zero, or a struct of these."""
    if isinstance(content, _Counted):
        if content.nullable:
            return None
        return "" if isinstance(content, Text) else b"" if isinstance(content, Blob) else []
    if isinstance(content, NullableEntity):
        return None
    if isinstance(content, Entity):
        return content.make(**{name: nothing_of(field) for name, field in content.fields})
    return content.parse(bytes(content.sizeof()))
