"""Generates the Python source that encodes one message at one version, from its construct: `encode_parts(m)`.

The function collects pieces in a list and joins them once. One `pack` writes adjacent fields of fixed width, a varint
of one byte, and the zero for no tags (`_flush`, `_varint`). Tagged fields are compared with their defaults inline, and
a separate function writes them if one differs. Non-empty records are separate parts without a copy, whatever their
type.

Names in the source: `m` (message), `out` (list of pieces), `w` (its append), `parts`, `part` (its append).
"""

from __future__ import annotations

import struct

from lowtide.protocol.constructs import (
    NULL_STRUCT,
    PRESENT_STRUCT,
    AnyConstruct,
    Blob,
    CountedArray,
    Entity,
    NullableEntity,
    TaggedField,
    TaggedFields,
    Text,
    fixed_format,
)
from lowtide.protocol.source_writer import SMALL_ARRAY, SourceWriter, element_of

_ZERO = ""
"""The argument of padding, a zero byte: none."""


class EncoderSource:
    """Generates the function `encode_parts`, field by field."""

    def __init__(self, writer: SourceWriter, entity: Entity) -> None:
        self.writer = writer
        self._in_parts = True
        self._pending: list[tuple[str, str]] = []
        self._functions: list[tuple[str, TaggedFields]] = []
        writer.line(0, "def encode_parts(m):")
        writer.line(1, "out = []")
        writer.line(1, "w = out.append")
        writer.line(1, "parts = []")
        writer.line(1, "part = parts.append")
        self._write(entity, "m", 1)
        self._flush(1)
        writer.line(1, "if out: part(join(out))")
        writer.line(1, "return parts")
        writer.end_function()
        self._in_parts = False  # No message has records in a tagged field.
        while self._functions:
            self._tags_function(*self._functions.pop())

    # ------------------------------------------------------------ fields of fixed width
    def _flush(self, depth: int) -> None:
        pending, self._pending = self._pending, []
        if not pending:
            return
        form = "".join(letters for letters, _ in pending)
        arguments = ", ".join(argument for _, argument in pending if argument != _ZERO)
        if arguments:
            self.writer.line(depth, f"w({self.writer.struct_method(form, 'pack')}({arguments}))")
        else:
            self.writer.line(depth, f"w({bytes(struct.calcsize('>' + form))!r})")

    def _varint(self, depth: int, number: str, long_form: str = "unsigned_varint") -> None:
        """Generates the varint of the variable `number`, together with the pending fields if it has one byte."""
        pending = self._pending
        if not pending and long_form == "unsigned_varint":
            self.writer.line(depth, f"w(VARINTS[{number}] if {number} < 4096 else unsigned_varint({number}))")
            return
        self.writer.line(depth, f"if {number} < 128:")
        if pending:
            self._pending = [*pending, ("B", number)]
            self._flush(depth + 1)
        else:
            self.writer.line(depth + 1, f"w(VARINTS[{number}])")
        self.writer.line(depth, "else:")
        self._pending = pending
        self._flush(depth + 1)
        self.writer.line(depth + 1, f"w({long_form}({number}))")

    # ------------------------------------------------------------ one field
    def _write(self, content: AnyConstruct, expression: str, depth: int) -> None:
        """Generates the writing of `content`, whose value is `expression`."""
        form = fixed_format(content)
        if form is not None:
            self._pending.append((form, expression))
        elif isinstance(content, Text | Blob | CountedArray):
            self._nullable(content, expression, depth)
        else:
            assert isinstance(content, Entity), f"no way to encode {content!r}"
            if isinstance(content, NullableEntity):
                self._nullable_entity(content, expression, depth)
            else:
                self._entity(content, expression, depth)

    def _nullable(self, content: Text | Blob | CountedArray, expression: str, depth: int) -> None:
        value = self.writer.fresh("s")
        self.writer.line(depth, f"{value} = {expression}")
        if content.nullable:
            pending = list(self._pending)
            null = ("x", _ZERO) if content.compact else ("h" if isinstance(content, Text) else "i", "-1")
            self.writer.line(depth, f"if {value} is None:")
            self._pending.append(null)
            self._flush(depth + 1)
            self.writer.line(depth, "else:")
            self._pending = pending
            depth += 1
        if isinstance(content, CountedArray):
            self._array(content, value, depth)
        else:
            self._counted(content, value, depth)
        if content.nullable:
            self._flush(depth)

    def _counted(self, content: Text | Blob, value: str, depth: int) -> None:
        is_text = isinstance(content, Text)
        as_part = self._in_parts and isinstance(content, Blob) and content.is_view
        if is_text:
            self.writer.line(depth, f"{value} = {value}.encode()")
        if content.compact:
            number = self.writer.fresh("n")
            self.writer.line(depth, f"{number} = len({value}) + 1")
            self._varint(depth, number, "string_prefix" if is_text else "unsigned_varint")
        else:
            self._pending.append(("h" if is_text else "i", f"len({value})"))
            self._flush(depth)
        if as_part:
            self.writer.line(depth, f"if len({value}):")
            self.writer.line(depth + 1, "part(join(out))")
            self.writer.line(depth + 1, "out.clear()")
            self.writer.line(depth + 1, f"part({value})")
        else:
            self.writer.line(depth, f"w({value})")

    # ------------------------------------------------------------ arrays
    def _array(self, array: CountedArray, value: str, depth: int) -> None:
        writer = self.writer
        if array.compact:
            number = writer.fresh("n")
            writer.line(depth, f"{number} = len({value}) + 1")
            self._varint(depth, number)
        else:
            self._pending.append(("i", f"len({value})"))
            self._flush(depth)
        entity, form = element_of(array)
        item = writer.fresh("x")
        if form is not None and entity is None:
            count = writer.fresh("n")
            writer.line(depth, f"{count} = len({value})")
            writer.line(depth, f"if {count} <= {SMALL_ARRAY}:")
            writer.line(depth + 1, f"if {count}: w({writer.struct_methods(form, 'pack')}[{count}](*{value}))")
            writer.line(depth, f"else: out += [{writer.struct_method(form, 'pack')}({item}) for {item} in {value}]")
        elif form is not None and entity is not None and not (entity.tags and entity.tags.fields):
            fields = ", ".join(f"{item}.{name}" for name, _ in entity.fields)
            pack = writer.struct_method(form + ("x" if entity.tags else ""), "pack")
            writer.line(depth, f"if {value}: out += [{pack}({fields}) for {item} in {value}]")
        else:
            writer.line(depth, f"for {item} in {value}:")
            self._write(array.element, item, depth + 1)
            self._flush(depth + 1)

    # ------------------------------------------------------------ structs and their tags
    def _entity(self, entity: Entity, expression: str, depth: int) -> None:
        for name, content in entity.fields:
            self._write(content, f"{expression}.{name}", depth)
        tags = entity.tags
        if tags is None:
            return
        if not tags.fields:
            self._pending.append(("x", _ZERO))
            return
        pending = list(self._pending)
        absent = " and ".join(self._absent(field, f"{expression}.{field.name}") for field in tags.fields.values())
        self.writer.line(depth, f"if {absent}:")
        self._pending.append(("x", _ZERO))
        self._flush(depth + 1)
        self.writer.line(depth, "else:")
        self._pending = pending
        self._flush(depth + 1)
        self.writer.line(depth + 1, f"w({self._tags_name(tags)}({expression}))")

    def _nullable_entity(self, entity: NullableEntity, expression: str, depth: int) -> None:
        value = self.writer.fresh("s")
        pending = list(self._pending)
        self.writer.line(depth, f"{value} = {expression}")
        self.writer.line(depth, f"if {value} is None:")
        self._pending.append(("b", str(NULL_STRUCT)))
        self._flush(depth + 1)
        self.writer.line(depth, "else:")
        self._pending = [*pending, ("b", str(PRESENT_STRUCT))]
        self._entity(entity, value, depth + 1)
        self._flush(depth + 1)

    def _absent(self, field: TaggedField, expression: str) -> str:
        """Returns a quick test for an omitted field. A struct of defaults fails it; `is_absent` is exact."""
        if field.default is None:
            return f"{expression} is None"
        if field.default == []:
            return f"not {expression}"
        return f"{expression} == {field.default!r}"

    def _tags_name(self, tags: TaggedFields) -> str:
        for function, known in self._functions:
            if known is tags:
                return function
        function = self.writer.fresh("write_tags_")
        self._functions.append((function, tags))
        return function

    def _tags_function(self, function: str, tags: TaggedFields) -> None:
        """Generates the writing of a section that may have a field other than its default."""
        writer = self.writer
        writer.line(0, f"def {function}(m):")
        writer.line(1, "n = 0")
        writer.line(1, "section = []")
        for field in tags.fields.values():
            is_absent = writer.refer("is_absent", field.is_absent)
            writer.line(1, f"if not {is_absent}(m.{field.name}):")
            writer.line(2, "out = []")
            writer.line(2, "w = out.append")
            self._write(field.content, f"m.{field.name}", 2)
            self._flush(2)
            writer.line(2, "content = join(out)")
            writer.line(2, f"section += (unsigned_varint({field.tag}), unsigned_varint(len(content)), content)")
            writer.line(2, "n += 1")
        writer.line(1, "return unsigned_varint(n) + join(section)")
        writer.end_function()
