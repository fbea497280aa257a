"""Reads Avro values by the schema of their writer, with fastavro."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lowtide.admin.schemas.framing import HEAD_BYTES, Head
from lowtide.admin.schemas.registry import RegisteredSchema, Registry, UnsupportedSchemaError
from lowtide.admin.schemas.values import DECODING_FAULTS
from lowtide.pipeline.table.schemas.avro_types import AvroType, translate
from lowtide.pipeline.table.schemas.conforming import conform
from lowtide.pipeline.table.schemas.framed_decoder import FramedDecoder, ValueFormat, built


def avro_decoder(schema: pa.Schema, registry: Registry) -> FramedDecoder:
    """Returns the decoder. Errors: ValueError."""
    return FramedDecoder(schema, registry, ValueFormat(kind="AVRO", translate=avro_writer, head_of=_head_of))


def avro_writer(registered: RegisteredSchema, references: dict[str, str], _head: Head) -> AvroWriter:
    """Translates the schema of a writer. Errors: UnsupportedSchemaError."""
    return AvroWriter(translate(registered.text, references))


def _head_of(value: bytes) -> tuple[Head, int]:
    return (int.from_bytes(value[1:HEAD_BYTES], "big"),), HEAD_BYTES


class AvroWriter:
    """Reads the values of one schema."""

    def __init__(self, translated: AvroType) -> None:
        try:
            import fastavro  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ImportError(f"Avro needs fastavro: install Lowtide with its extra `table` ({error})") from error

        self._type = translated
        self._read = fastavro.schemaless_reader
        try:
            self._schema = fastavro.parse_schema(translated.read_as)
        except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, ValueError) as error:
            raise UnsupportedSchemaError(f"fastavro refuses it: {error}") from error
        self._arrow = translated.arrow if not pa.types.is_null(translated.arrow) else pa.struct([])
        self._column = translated.column if not pa.types.is_null(translated.column) else pa.struct([])

    @property
    def column(self) -> pa.DataType:
        return self._column

    def read(self, values: Sequence[bytes], dead: dict[int, str]) -> pa.Array:
        found = []
        for place, value in enumerate(values):
            stream = io.BytesIO(value)
            try:
                found.append(self._read(stream, self._schema))
            except DECODING_FAULTS as error:
                dead[place] = f"the value is not Avro of its schema: {str(error) or type(error).__name__}"
                continue
            if stream.tell() != len(value):
                found.pop()
                dead[place] = f"the value has {len(value) - stream.tell()} bytes after its last field"
        return built(found, self._built, dead)

    def _built(self, items: Sequence[Any]) -> pa.Array:
        return conform(pa.array(items, self._arrow), self._column)
