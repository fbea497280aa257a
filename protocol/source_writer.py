"""What the two source generators share: lines of Python with indentation, fresh names, and the objects that the lines refer to.

Used by `decoder_source.py` and `encoder_source.py`, and by nothing that runs per request.
"""

from __future__ import annotations

import struct
from typing import Any

from lowtide.protocol import primitives
from lowtide.protocol.constructs import CountedArray, Entity, fixed_format
from lowtide.protocol.errors import ProtocolError

SMALL_ARRAY = 8
"""Arrays of numbers with at most so many items are read and written by a prepared Struct: mostly they are replica lists."""


class SourceWriter:
    """Collects the source of one generated module."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {
            "ProtocolError": ProtocolError,
            "StructError": struct.error,
            "ROWS_UNLIMITED": primitives.ROWS_UNLIMITED,
            "join": b"".join,
            "VARINTS": primitives.VARINTS,
            "unsigned_varint": primitives.unsigned_varint,
            "string_prefix": primitives.string_prefix,
            "continue_varint": primitives.continue_varint,
            "continue_tag_count": primitives.continue_tag_count,
            "continue_string_length": primitives.continue_string_length,
            "read_varint": primitives.read_varint,
            "skip_tags": primitives.skip_tags,
            "spanned": primitives.spanned,
            "refuse_count": primitives.refuse_count,
            "refuse_size": primitives.refuse_size,
            "refuse_end": primitives.refuse_end,
            "refuse_rows": primitives.refuse_rows,
        }
        self._count = 0
        self._functions: list[str] = []
        self.lines: list[str] = []

    def fresh(self, prefix: str) -> str:
        """A local or global name not used before."""
        self._count += 1
        return f"{prefix}{self._count}"

    def line(self, depth: int, text: str) -> None:
        """Add a line, indented by `depth` levels."""
        self.lines.append("    " * depth + text)

    def end_function(self) -> None:
        """The lines so far are a whole function."""
        self._functions.append("\n".join(self.lines))
        self.lines = []

    def struct_method(self, form: str, method: str) -> str:
        """The name of a method (`pack`, `unpack_from`, `iter_unpack`) of the big-endian Struct of `form`."""
        name = f"{method}_{form.replace('?', 't')}"
        self.names.setdefault(name, getattr(struct.Struct(f">{form}"), method))
        return name

    def struct_methods(self, form: str, method: str) -> str:
        """The name of a tuple of such methods: for none, one, two, ... up to `SMALL_ARRAY` items of `form`."""
        name = f"{method}s_{form}"
        self.names.setdefault(
            name, tuple(getattr(struct.Struct(f">{form * count}"), method) for count in range(SMALL_ARRAY + 1))
        )
        return name

    def refer(self, prefix: str, target: object) -> str:
        """The name by which generated code refers to `target`."""
        for name, known in self.names.items():
            if known is target:
                return name
        name = self.fresh(prefix)
        self.names[name] = target
        return name

    def source(self) -> str:
        """Everything written, ready for `exec` with `names` as its globals."""
        return "\n\n".join(self._functions) + "\n"


def fixed_width(entity: Entity) -> str | None:
    """The `struct` format of all fields of an entity when each has a fixed width, else None; its tags aren't part of it."""
    forms = [fixed_format(content) for _, content in entity.fields]
    return None if not forms or None in forms else "".join(form for form in forms if form is not None)


def element_of(array: CountedArray) -> tuple[Entity | None, str | None]:
    """The array's element as an entity if it's one, and the format of all its fields if these are of fixed width."""
    if isinstance(array.element, Entity):
        return array.element, fixed_width(array.element)
    return None, fixed_format(array.element)
