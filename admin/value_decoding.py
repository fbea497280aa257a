"""Decodes values for filters and pages: JSON, MessagePack, and the formats of a schema registry.

Guards: large values are left out by the callers. A decoder raises ValueError for a value of another format, with the
reason.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from lowtide.admin.schemas.framing import schema_id_of
from lowtide.runtime.json_text import decode_json

if TYPE_CHECKING:
    from lowtide.admin.schemas.values import SchemaValues


class ValueDecoder:
    """Decodes values. With `schemas`, those that begin with the id of a schema are read by it."""

    def __init__(self, schemas: SchemaValues | None = None, *, is_msgpack: bool = False) -> None:
        self._schemas = schemas
        self._otherwise = decode_msgpack if is_msgpack else decode_json

    def decode(self, value: bytes) -> Any:
        """Decodes a value. Errors: ValueError; NotPreparedError, if a schema must be asked for first."""
        found = None if self._schemas is None else self._schemas.decoded(value)
        return self._otherwise(value) if found is None else found.value

    async def prepare(self, value: bytes) -> None:
        """Asks for the schema of a value, in a thread."""
        if self._schemas is not None and schema_id_of(value) is not None:
            await asyncio.to_thread(self._schemas.prepare, value)


def decode_msgpack(value: bytes) -> Any:
    """Decodes MessagePack. Errors: ValueError."""
    try:
        return msgspec.msgpack.decode(value)
    except (ValueError, RecursionError, TypeError) as error:
        raise ValueError(f"it is not MessagePack: {error}") from None
