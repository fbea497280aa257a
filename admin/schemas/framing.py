"""What stands before a value whose schema is in a registry, as Confluent's serializers write it.

| bytes | what |
|---|---|
| 0 | 0 |
| 1-4 | the id of the schema, big endian |
| from 5 | the value, in Avro or JSON; in Protobuf the indexes of the message in its file, and then the value |

The indexes are their number, then each, as signed variable-length integers. A single 0 means the first message.
"""

from __future__ import annotations

from typing import Final

HEAD_BYTES: Final = 5
"""Zero, and the id."""

Head = tuple[int, ...]
"""The id of a writer's schema in the registry, and for Protobuf the indexes of its message."""

MAX_INDEXES: Final = 20
_MAX_BITS: Final = 35
_MORE: Final = 0x80
_NO_INDEXES: Final = "the value has no valid indexes of a message after the id of its schema"


class NotPreparedError(Exception):
    """The schema of a value is not known yet: call `SchemaValues.prepare` with the value, in a thread."""


def schema_id_of(value: bytes) -> int | None:
    """Returns the id that a value begins with; None if it does not begin as such values do."""
    return int.from_bytes(value[1:HEAD_BYTES], "big") if len(value) >= HEAD_BYTES and not value[0] else None


def message_head(value: bytes) -> tuple[Head, int]:
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
