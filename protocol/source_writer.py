"""Collects generated Python: indented lines, fresh names, and the objects that the lines refer to.

Used by `decoder_source` and `encoder_source`.
"""

from __future__ import annotations

import struct
from typing import Any

from lowtide.protocol import primitives
from lowtide.protocol.constructs import CountedArray, Entity, fixed_format
from lowtide.protocol.errors import ProtocolError

SMALL_ARRAY = 8
"""A prepared Struct reads and writes arrays of at most this many numbers, mostly lists of replicas."""

_PRIMITIVES = (
    *("ROWS_UNLIMITED", "VARINTS", "unsigned_varint", "string_prefix", "read_varint", "skip_tags", "spanned"),
    *("continue_varint", "continue_tag_count", "continue_string_length"),
    *("refuse_count", "refuse_size", "refuse_end", "refuse_rows"),
)
"""The names of `primitives` that generated code uses."""


class SourceWriter:
    """Collects the source of one generated module."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {
            "ProtocolError": ProtocolError,
            "StructError": struct.error,
            "join": b"".join,
            **{name: getattr(primitives, name) for name in _PRIMITIVES},
        }
        self._count = 0
        self._functions: list[str] = []
        self.lines: list[str] = []

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def end_function(self) -> None:
        """Ends the function of the lines so far."""
        self._functions.append("\n".join(self.lines))
        self.lines = []

    def struct_method(self, form: str, method: str) -> str:
        """Returns the name of a method (`pack`, `unpack_from`, `iter_unpack`) of the big-endian Struct of `form`."""
        name = f"{method}_{form.replace('?', 't')}"
        self.names.setdefault(name, getattr(struct.Struct(f">{form}"), method))
        return name

    def struct_methods(self, form: str, method: str) -> str:
        """Returns the name of a tuple of such methods, for 0 to `SMALL_ARRAY` items of `form`."""
        name = f"{method}s_{form}"
        self.names.setdefault(
            name, tuple(getattr(struct.Struct(f">{form * count}"), method) for count in range(SMALL_ARRAY + 1))
        )
        return name

    def refer(self, prefix: str, target: object) -> str:
        """Returns the name by which generated code refers to `target`."""
        for name, known in self.names.items():
            if known is target:
                return name
        name = self.fresh(prefix)
        self.names[name] = target
        return name

    def source(self) -> str:
        """Returns the source, for `exec` with `names` as its globals."""
        return "\n\n".join(self._functions) + "\n"


def fixed_width(entity: Entity) -> str | None:
    """Returns the `struct` format of an entity's fields, without its tags; None if one has no fixed width."""
    forms = [fixed_format(content) for _, content in entity.fields]
    return None if not forms or None in forms else "".join(form for form in forms if form is not None)


def element_of(array: CountedArray) -> tuple[Entity | None, str | None]:
    """Returns the array's element if it is an entity, and the format of the element if it has a fixed width."""
    if isinstance(array.element, Entity):
        return array.element, fixed_width(array.element)
    return None, fixed_format(array.element)
