"""Schemas: how the values of records become columns of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowtide.pipeline.table.schemas.decoding import Decoder, RawDecoder, SchemaSettings

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

KINDS: Final = ("raw",)
"""The schemas that `decoder_of` knows."""


def decoder_of(settings: SchemaSettings, table_schema: Schema) -> Decoder:  # noqa: ARG001 - raw needs no schema
    """Returns the decoder of a schema, for a table that has `table_schema`. Errors: ValueError."""
    if settings.kind == "raw":
        return RawDecoder()
    raise ValueError(f"the schema {settings.kind} is unknown: it is one of {', '.join(KINDS)}")
