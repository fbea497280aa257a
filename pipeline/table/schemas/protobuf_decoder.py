"""Reads Protobuf values by the schema of their writer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lowtide.admin.schemas.framing import Head, message_head
from lowtide.admin.schemas.protobuf_files import message_class
from lowtide.admin.schemas.registry import RegisteredSchema, Registry
from lowtide.pipeline.table.schemas.framed_decoder import FramedDecoder, ValueFormat, built
from lowtide.pipeline.table.schemas.protobuf_types import MessageColumns


def protobuf_decoder(schema: pa.Schema, registry: Registry) -> FramedDecoder:
    """Returns the decoder. Errors: ValueError."""
    return FramedDecoder(schema, registry, ValueFormat(kind="PROTOBUF", translate=ProtobufWriter, head_of=message_head))


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
