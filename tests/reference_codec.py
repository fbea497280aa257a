"""The codec that defines what the compiled and the generated one do: slow, and obviously right."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

import construct

from lowtide.protocol.compiler import Codec
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.schema import ApiMessage, wire_form

if TYPE_CHECKING:
    from lowtide.protocol.primitives import Buffer

M = TypeVar("M", bound=ApiMessage)


def reference_codec(message: type[M], version: int) -> Codec[M]:
    """Returns a codec that lets construct interpret the message. Records are copied, and are encoded from bytes."""
    entity = wire_form(message, version)

    def decode(buffer: Buffer, start: int, end: int) -> M:
        if not 0 <= start <= end <= len(buffer):
            raise ProtocolError(f"no frame from {start} to {end} in {len(buffer)} bytes")
        whole = construct.Struct("message" / entity, construct.Terminated)
        try:
            decoded: M = whole.parse(bytes(buffer[start:end])).message
        except (construct.ConstructError, UnicodeDecodeError) as error:
            raise ProtocolError(str(error)) from error
        return decoded

    def encode(message: M) -> bytes:
        return entity.build(message)

    made = {"decode": decode, "encode": encode, "encode_parts": lambda message: [encode(message)]}
    return Codec(version, {name: functools.partial(_itself, function) for name, function in made.items()})


def _itself(function: Any) -> Any:
    return function
