"""Generates the Python source that decodes one message at one version, from its construct.

The source is fast:

- One `unpack_from` reads adjacent fields of fixed width, and the first byte of a varint after them (`_flush`).
- One `iter_unpack` reads an array of elements of fixed width if none has tags (`_fixed_array`).
- A separate function reads tagged fields, only if a section is not empty (`_tags_function`).
- Records are slices of a memoryview of the buffer, without a copy.

It is safe: the position never decreases, and the last line compares it with `end`, so truncated fields need no checks
of their own. Before allocating or looping by a number from the wire, that number is compared with the remaining bytes;
each element has at least `size_min` bytes. The source accepts and returns the same as the construct.

The function is `decode(buf, p, end, rows_max=ROWS_UNLIMITED)`. It raises TooManyRowsError when the elements of all
arrays, and tagged fields, exceed `rows_max`.

Names in the source: `buf`, `p` (position), `end` (exclusive), `e` (end of the current field), `view`, `rows`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from lowtide.protocol.constructs import (
    NULL_STRUCT,
    PRESENT_STRUCT,
    Blob,
    CountedArray,
    Entity,
    NullableEntity,
    TaggedFields,
    Text,
    fixed_format,
    size_min,
)
from lowtide.protocol.source_writer import SMALL_ARRAY, SourceWriter, element_of

if TYPE_CHECKING:
    from lowtide.protocol.constructs import AnyConstruct


class DecoderSource:
    """Generates the function `decode`, field by field."""

    def __init__(self, writer: SourceWriter, entity: Entity, label: str) -> None:
        self.writer = writer
        self._in_tags = False
        self._pending: list[tuple[str, str]] = []
        self._functions: list[tuple[str, TaggedFields, str]] = []
        self._function(entity, label)

    def _function(self, entity: Entity, label: str) -> None:
        writer = self.writer
        writer.line(0, "def decode(buf, p, end, rows_max=ROWS_UNLIMITED):")
        self._take_view(has_view=_has_view(entity))
        writer.line(1, "rows = 0")
        writer.line(1, "try:")
        value = self._read(entity, 2, entity.make.__name__)
        writer.line(1, "except (StructError, IndexError, UnicodeDecodeError) as error:")
        writer.line(2, f"raise ProtocolError(f'{label}: {{error}}') from error")
        writer.line(1, f"if p != end: refuse_end({label!r}, p, end, {value})")
        writer.line(1, f"return {value}")
        writer.end_function()
        while self._functions:
            self._tags_function(*self._functions.pop())

    def _take_view(self, *, has_view: bool) -> None:
        """Makes `buf` bytes or a bytearray, whose slices can be decoded as text, and `view` a view of it."""
        self.writer.line(1, "if buf.__class__ is memoryview:")
        if has_view:
            self.writer.line(2, "view = buf")
        # Nearly always this is the buffer that all connections share, so the check is inline.
        self.writer.line(2, "whole = buf.obj")
        self.writer.line(
            2, "is_shared = whole.__class__ is bytearray and len(whole) == buf.nbytes and buf.c_contiguous"
        )
        self.writer.line(2, "buf = whole if is_shared else spanned(buf)")
        if has_view:
            self.writer.line(1, "else:")
            self.writer.line(2, "view = memoryview(buf)")
            self.writer.line(1, "empty = view[:0]")

    # ------------------------------------------------------------ fields of fixed width
    def _flush(self, depth: int) -> None:
        pending, self._pending = self._pending, []
        if not pending:
            return
        form = "".join(letter for letter, _ in pending)
        names = ", ".join(name for _, name in pending)
        size = struct.calcsize(f">{form}")
        if form == "B":
            self.writer.line(depth, f"{names} = buf[p]")
        else:
            comma = "," if len(pending) == 1 else ""
            self.writer.line(depth, f"{names}{comma} = {self.writer.struct_method(form, 'unpack_from')}(buf, p)")
        self.writer.line(depth, f"p += {size}")

    def _count(self, depth: int, form: str) -> str:
        """Reads a count (`B` for the first byte of a varint) with the pending fields, into a fresh name."""
        name = self.writer.fresh("n")
        self._pending.append((form, name))
        self._flush(depth)
        return name

    # ------------------------------------------------------------ one field
    def _read(self, content: AnyConstruct, depth: int, what: str) -> str:
        """Generates the reading of `content`. Returns the name of its value, which the next flush may set."""
        form = fixed_format(content)
        if form is not None:
            name = self.writer.fresh("v")
            self._pending.append((form, name))
            return name
        if isinstance(content, Text):
            return self._text(content, depth, what)
        if isinstance(content, Blob):
            return self._blob(content, depth, what)
        if isinstance(content, CountedArray):
            return self._array(content, depth, what)
        assert isinstance(content, Entity), f"no way to decode {content!r}"
        if isinstance(content, NullableEntity):
            return self._nullable_entity(content, depth, what)
        return self._entity(content, depth, what)

    def _null(self, depth: int, content: Text | Blob, count: str, value: str, what: str) -> None:
        """Generates the branches for null and for a negative count, and the `else:` for the caller's."""
        if content.compact:
            self.writer.line(depth, f"if {count} == 0:")
            self.writer.line(depth + 1, f"{value} = None" if content.nullable else f"refuse_count({what!r}, -1)")
        else:
            self.writer.line(depth, f"if {count} < 0:")
            if content.nullable:
                self.writer.line(depth + 1, f"if {count} != -1: refuse_count({what!r}, {count})")
                self.writer.line(depth + 1, f"{value} = None")
            else:
                self.writer.line(depth + 1, f"refuse_count({what!r}, {count})")
        self.writer.line(depth, "else:")

    def _text(self, content: Text, depth: int, what: str) -> str:
        value = self.writer.fresh("v")
        count = self._count(depth, "B" if content.compact else "h")
        if content.compact:
            self.writer.line(depth, f"if {count} > 127: {count}, p = continue_string_length(buf, p, {count})")
        self._null(depth, content, count, value, what)
        self.writer.line(depth + 1, f"e = p + {count}{' - 1' if content.compact else ''}")
        # Many texts are empty, such as the metadata of commits.
        self.writer.line(
            depth + 1, f"{value} = buf[p:e].decode() if {count}{' > 1' if content.compact else ''} else ''"
        )
        self.writer.line(depth + 1, "p = e")
        return value

    def _blob(self, content: Blob, depth: int, what: str) -> str:
        value = self.writer.fresh("v")
        count = self._count(depth, "B" if content.compact else "i")
        if content.compact:
            self.writer.line(depth, f"if {count} > 127: {count}, p = continue_varint(buf, p, {count})")
        self._null(depth, content, count, value, what)
        self.writer.line(depth + 1, f"e = p + {count}{' - 1' if content.compact else ''}")
        self.writer.line(depth + 1, f"if e > end: refuse_size({what!r}, e - p, end - p)")
        cut = "view[p:e] if e > p else empty" if content.is_view else "bytes(buf[p:e])"
        self.writer.line(depth + 1, f"{value} = {cut}")
        self.writer.line(depth + 1, "p = e")
        return value

    # ------------------------------------------------------------ arrays
    def _array(self, array: CountedArray, depth: int, what: str) -> str:
        """Generates an array. `base` is the count of an empty one: 1 in the compact form."""
        writer = self.writer
        value = writer.fresh("a")
        base = 1 if array.compact else 0
        count = self._count(depth, "B" if array.compact else "i")
        if array.compact:
            writer.line(depth, f"if {count} > 127: {count}, p = continue_varint(buf, p, {count})")
        entity, form = element_of(array)
        if not self._in_tags:
            self._count_rows(array, depth, (count, base, value, what))
        if entity is not None and form is not None:
            self._fixed_array(entity, form, depth, (count, base, value, what))
        else:
            writer.line(depth, f"if {count} == {base}: {value} = []")
        self._refuse_bad_count(array, depth, (count, base, value, what))
        if entity is None and form is not None:
            self._plain_array(form, depth, count, base, value)
            return value
        writer.line(depth, "else:")
        self._general_array(array, depth + 1, (count, base, value, what))
        return value

    def _count_rows(self, array: CountedArray, depth: int, names: tuple[str, int, str, str]) -> None:
        """Generates the counting of elements. Invalid counts are refused later."""
        count, base, _, what = names
        number = f"({count} - 1)" if base else count
        self.writer.line(depth, f"if {count} > {base}:")
        self.writer.line(depth + 1, f"rows += {number}")
        fits = f"{number} * {size_min(array.element)} <= end - p"
        self.writer.line(depth + 1, f"if rows > rows_max and {fits}: refuse_rows({what!r}, rows_max)")

    def _refuse_bad_count(self, array: CountedArray, depth: int, names: tuple[str, int, str, str]) -> None:
        count, base, value, what = names
        writer = self.writer
        number = f"{count} - 1" if base else count
        writer.line(depth, f"elif {count} < {base}:")
        if not array.nullable:
            writer.line(depth + 1, f"refuse_count({what!r}, {number})")
        else:
            if not base:
                writer.line(depth + 1, f"if {count} != -1: refuse_count({what!r}, {count})")
            writer.line(depth + 1, f"{value} = None")
        smallest = size_min(array.element)
        needed = f"({number}) * {smallest}" if base else f"{count} * {smallest}"
        writer.line(depth, f"elif {needed} > end - p: refuse_size({what!r}, {number}, end - p)")

    def _plain_array(self, form: str, depth: int, count: str, base: int, value: str) -> None:
        """Generates one unpack of all numbers or uuids."""
        writer = self.writer
        size = struct.calcsize(f">{form}")
        number = f"{count} - {base}" if base else count
        writer.line(depth, "else:")
        writer.line(depth + 1, f"e = p + ({number}) * {size}")
        writer.line(depth + 1, f"if {count} <= {base + SMALL_ARRAY}:")
        writer.line(depth + 2, f"{value} = list({writer.struct_methods(form, 'unpack_from')}[{number}](buf, p))")
        writer.line(depth + 1, "else:")
        writer.line(depth + 2, f"{value} = [x for x, in {writer.struct_method(form, 'iter_unpack')}(buf[p:e])]")
        writer.line(depth + 1, "p = e")

    def _fixed_array(self, entity: Entity, form: str, depth: int, names: tuple[str, int, str, str]) -> None:
        """Generates structs of fixed width: one by `unpack_from`, several by `iter_unpack` if none has tags."""
        count, base, value, what = names
        writer = self.writer
        fields = [name for name, _ in entity.fields]
        values = [writer.fresh("v") for _ in fields]
        stride = struct.calcsize(f">{form}") + (entity.tags is not None)
        writer.line(depth, f"if {count} == {base + 1}:")
        for (_, content), name in zip(entity.fields, values, strict=True):
            letters = fixed_format(content)
            assert letters is not None, f"{content!r} has no fixed width"
            self._pending.append((letters, name))
        single = self._finish_entity(entity, values, depth + 1, what)
        writer.line(depth + 1, f"{value} = [{single}]")
        writer.line(depth, f"elif {count} == {base}: {value} = []")
        number = f"({count} - {base})" if base else count
        arguments = ", ".join(f"{field}={name}" for field, name in zip(fields, values, strict=True))
        whole = f"{count} > {base} and {number} * {stride} <= end - p"
        if entity.tags is None:
            writer.line(depth, f"elif {whole}:")
        else:
            writer.line(
                depth,
                f"elif {whole} and bytes(buf[p + {stride - 1}:p + {number} * {stride}:{stride}]) == bytes({number}):",
            )
            form += "x"
        writer.line(depth + 1, f"e = p + {number} * {stride}")
        make = writer.refer(entity.make.__name__, entity.make)
        comma = "," if len(values) == 1 else ""
        unpack = writer.struct_method(form, "iter_unpack")
        writer.line(depth + 1, f"{value} = [{make}({arguments}) for {', '.join(values)}{comma} in {unpack}(buf[p:e])]")
        writer.line(depth + 1, "p = e")

    def _general_array(self, array: CountedArray, depth: int, names: tuple[str, int, str, str]) -> None:
        count, base, value, what = names
        writer = self.writer
        writer.line(depth, f"{value} = []")
        writer.line(depth, f"while {count} > {base}:")
        element = self._read(array.element, depth + 1, what)
        self._flush(depth + 1)
        writer.line(depth + 1, f"{value}.append({element})")
        writer.line(depth + 1, f"{count} -= 1")

    # ------------------------------------------------------------ structs and their tags
    def _entity(self, entity: Entity, depth: int, what: str) -> str:
        values = [self._read(content, depth, f"{what}.{name}") for name, content in entity.fields]
        return self._finish_entity(entity, values, depth, what)

    def _nullable_entity(self, entity: NullableEntity, depth: int, what: str) -> str:
        value = self.writer.fresh("v")
        mark = self._count(depth, "b")
        self.writer.line(depth, f"if {mark} == {NULL_STRUCT}:")
        self.writer.line(depth + 1, f"{value} = None")
        self.writer.line(depth, "else:")
        self.writer.line(depth + 1, f"if {mark} != {PRESENT_STRUCT}: refuse_count({what!r}, {mark})")
        self.writer.line(depth + 1, f"{value} = {self._entity(entity, depth + 1, what)}")
        return value

    def _finish_entity(self, entity: Entity, values: list[str], depth: int, what: str) -> str:
        """Generates the tags, the flush and the instance. Returns its name."""
        writer = self.writer
        make = writer.refer(entity.make.__name__, entity.make)
        arguments = ", ".join(f"{name}={value}" for (name, _), value in zip(entity.fields, values, strict=True))
        result = writer.fresh("o")
        if entity.tags is None:
            self._flush(depth)
            writer.line(depth, f"{result} = {make}({arguments})")
            return result
        tag_count = writer.fresh("t")
        self._pending.append(("B", tag_count))
        self._flush(depth)
        writer.line(depth, f"if {tag_count}:")
        if not self._in_tags:
            writer.line(depth + 1, f"rows += {tag_count}")
            writer.line(depth + 1, f"if rows > rows_max: refuse_rows({what!r}, rows_max)")
        if not entity.tags.fields:
            writer.line(depth + 1, f"p = skip_tags(buf, p, {tag_count}, end)")
            writer.line(depth, f"{result} = {make}({arguments})")
            return result
        tags = writer.fresh("tags")
        writer.line(depth + 1, f"p, {tags} = {self._tags_name(entity.tags, what)}(buf, p, {tag_count}, end)")
        separator = ", " if arguments else ""
        writer.line(depth + 1, f"{result} = {make}({arguments}{separator}**{tags})")
        writer.line(depth, "else:")
        writer.line(depth + 1, f"{result} = {make}({arguments})")
        return result

    def _tags_name(self, tags: TaggedFields, what: str) -> str:
        for function, known, _ in self._functions:
            if known is tags:
                return function
        function = self.writer.fresh("read_tags_")
        self._functions.append((function, tags, what))
        return function

    def _tags_function(self, function: str, tags: TaggedFields, what: str) -> None:
        """Generates the reading of a non-empty section; `n` is the first byte of its count."""
        writer = self.writer
        writer.line(0, f"def {function}(buf, p, n, frame_end):")
        writer.line(1, "if n > 127: n, p = continue_tag_count(buf, p, n)")
        assert not any(_has_view(field.content) for field in tags.fields.values()), "records in a tagged field"
        self._in_tags = True  # No request has rows in a tagged field.
        writer.line(1, "tags = {}")
        writer.line(1, "while n:")
        writer.line(2, "n -= 1")
        writer.line(2, "tag, size = buf[p], buf[p + 1]")  # Nearly always one byte each, so this is inline.
        writer.line(2, "if tag < 128 and size < 128:")
        writer.line(3, "p += 2")
        writer.line(2, "else:")
        writer.line(3, "tag, p = read_varint(buf, p)")
        writer.line(3, "size, p = read_varint(buf, p)")
        writer.line(2, "end = p + size")
        writer.line(2, f"if end > frame_end: refuse_size({what + ' tag'!r}, size, frame_end - p)")
        for index, field in enumerate(tags.fields.values()):
            writer.line(2, f"{'el' if index else ''}if tag == {field.tag}:")
            value = self._read(field.content, 3, f"{what}.{field.name}")
            self._flush(3)
            writer.line(3, f"tags[{field.name!r}] = {value}")
            writer.line(
                3, f"if p != end: raise ProtocolError(f'{what}: tag {{tag}} of {{size}} bytes is not {field.name}')"
            )
        writer.line(2, "p = end")
        writer.line(1, "return p, tags")
        writer.end_function()
        self._in_tags = False


def _has_view(content: AnyConstruct) -> bool:
    """Returns whether `content` has records. Tagged fields have none."""
    if isinstance(content, CountedArray):
        return _has_view(content.element)
    if isinstance(content, Entity):
        return any(_has_view(field) for _, field in content.fields)
    return isinstance(content, Blob) and content.is_view
