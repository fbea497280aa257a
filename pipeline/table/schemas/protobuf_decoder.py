"""Reads Protobuf values by the schema of their writer.

After the id stand the indexes of the message in its file: their number, then each, as signed variable-length integers.
A single 0 means the first message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from lowtide.pipeline.table.schemas.evolution import Head
from lowtide.pipeline.table.schemas.framed_decoder import HEAD_BYTES, FramedDecoder, ValueFormat, built
from lowtide.pipeline.table.schemas.protobuf_files import message_class
from lowtide.pipeline.table.schemas.protobuf_types import MessageColumns
from lowtide.pipeline.table.schemas.registry import RegisteredSchema, Registry

MAX_INDEXES: Final = 20
_MAX_BITS: Final = 35
_MORE: Final = 0x80
_NO_INDEXES: Final = "the value has no valid indexes of a message after the id of its schema"


def protobuf_decoder(schema: pa.Schema, registry: Registry) -> FramedDecoder:
    """Returns the decoder. Errors: ValueError."""
    return FramedDecoder(schema, registry, ValueFormat(kind="PROTOBUF", translate=ProtobufWriter, head_of=head_of))


def head_of(value: bytes) -> tuple[Head, int]:
    """Returns the id and the indexes of the message, and where it begins. Errors: ValueError."""
    schema_id = int.from_bytes(value[1:HEAD_BYTES], "big")
    if value[HEAD_BYTES : HEAD_BYTES + 1] == b"\0":
        return (schema_id, 0), HEAD_BYTES + 1
    count, at = _signed(value, HEAD_BYTES)
    if not 0 < count <= MAX_INDEXES:
        raise ValueError(_NO_INDEXES)
    head = [schema_id]
    for _ in range(count):
        index, at = _signed(value, at)
        if index < 0:
            raise ValueError(_NO_INDEXES)
        head.append(index)
    return tuple(head), at


def _signed(value: bytes, at: int) -> tuple[int, int]:
    """Reads a signed integer of variable length. Returns it and where it ends. Errors: ValueError."""
    found = 0
    for shift in range(0, _MAX_BITS, 7):
        if at >= len(value):
            break
        one = value[at]
        at += 1
        found |= (one & ~_MORE) << shift
        if not one & _MORE:
            return (found >> 1) ^ -(found & 1), at
    raise ValueError(_NO_INDEXES)


class ProtobufWriter:
    """Reads the messages of one type."""

    def __init__(self, registered: RegisteredSchema, references: dict[str, str], head: Head) -> None:
        """Errors: UnsupportedSchemaError; ImportError, which says what to install."""
        try:
            from google.protobuf import message  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ImportError(f"Protobuf needs protobuf: install Lowtide with its extra `table` ({error})") from error
        self._class = message_class(registered.text, references, head[1:])
        self._columns = MessageColumns(self._class.DESCRIPTOR)
        self._fault = message.DecodeError

    @property
    def column(self) -> pa.DataType:
        return self._columns.type

    def read(self, values: Sequence[bytes], dead: dict[int, str]) -> pa.Array:
        found: list[Any] = []
        parse = self._class.FromString
        for place, value in enumerate(values):
            try:
                found.append(parse(value))
            except self._fault as error:
                dead[place] = f"the value is not Protobuf of its schema: {error}"
        return built(found, self._columns.built, dead)
