"""The shape of a message as nested tuples, from which the compiled module decodes and encodes it (`shapes.h`).

Each tuple begins with a letter: those of `struct` for numbers, `u` uuid, `s` text, `y` bytes, `v` records, `a` array,
`o` struct.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from lowtide.protocol.constructs import (
    Blob,
    CountedArray,
    Entity,
    NullableEntity,
    TaggedField,
    Text,
    fixed_format,
    size_min,
)

if TYPE_CHECKING:
    from lowtide.protocol.constructs import AnyConstruct

Shape = tuple[Any, ...]


def shape_of(content: AnyConstruct) -> Shape:
    """Returns the shape of a construct of `schema.wire_form`."""
    form = fixed_format(content)
    if form is not None:
        return ("u" if form == "16s" else form,)
    if isinstance(content, Text):
        return "s", content.nullable, content.compact
    if isinstance(content, Blob):
        return "v" if content.is_view else "y", content.nullable, content.compact
    if isinstance(content, CountedArray):
        element = content.element
        return "a", content.nullable, content.compact, (shape_of(element),), size_min(element)
    assert isinstance(content, Entity), f"no shape for {content!r}"
    names = tuple(sys.intern(name) for name, _ in content.fields)
    fields = tuple(shape_of(field) for _, field in content.fields)
    tags = None if content.tags is None else tuple(_tag(tag) for tag in content.tags.fields.values())
    return "o", isinstance(content, NullableEntity), content.make, names, fields, tags


def _tag(tag: TaggedField) -> Shape:
    is_struct = isinstance(tag.content, Entity) and not isinstance(tag.content, NullableEntity)
    absent = None if is_struct else tag.default
    return tag.tag, sys.intern(tag.name), absent, tag.is_absent if is_struct else None, shape_of(tag.content)
