"""Schemas: how the values of records become columns of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowtide.admin.schemas.registry import Registry
from lowtide.pipeline.table.schemas.avro_decoder import avro_decoder
from lowtide.pipeline.table.schemas.decoding import Decoder, RawDecoder, SchemaSettings, arrow_schema_of
from lowtide.pipeline.table.schemas.json_decoder import JsonDecoder
from lowtide.pipeline.table.schemas.protobuf_decoder import protobuf_decoder

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

KINDS: Final = ("raw", "json", "avro", "protobuf")
"""The schemas that `decoder_of` knows."""


def decoder_of(settings: SchemaSettings, table_schema: Schema) -> Decoder:
    """Returns the decoder of a schema, for a table that has `table_schema`. Errors: ValueError."""
    if settings.kind == "raw":
        return RawDecoder()
    if settings.kind == "json":
        return JsonDecoder(arrow_schema_of(table_schema))
    if settings.kind == "avro":
        return avro_decoder(arrow_schema_of(table_schema), Registry(settings.registry))
    if settings.kind == "protobuf":
        return protobuf_decoder(arrow_schema_of(table_schema), Registry(settings.registry))
    raise ValueError(f"the schema {settings.kind} is unknown: it is one of {', '.join(KINDS)}")


def check_settings(settings: SchemaSettings) -> None:
    """Raises ValueError, if the settings of the registry are invalid, or are missing for a schema that needs them."""
    if settings.registry or settings.kind in ("avro", "protobuf"):
        Registry(settings.registry)
