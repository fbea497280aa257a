"""Keys and values of the records in which coordinators keep their state.

Both begin with an int16: in a key it is the type of the record, in a value the version of the message after it. A null
value (a tombstone) deletes the record with the same key. Sources: Kafka's `CoordinatorRecordSerde`.
"""

from __future__ import annotations

import struct
from typing import TypeAlias, TypeVar

from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.schema import ApiMessage, String, versions

CoordinatorRecord: TypeAlias = tuple[bytes, bytes | None]

V = TypeVar("V", bound=ApiMessage)

INT16 = struct.Struct(">h")


@versions("0", flexible="1+")
class GroupRecordKey(ApiMessage, kw_only=True):
    """The key of a record about a whole group or a transactional id."""

    group_id: String


@versions("0", flexible="1+")
class NamedRecordKey(ApiMessage, kw_only=True):
    """The key of a record about a member or a pattern of a group."""

    group_id: String
    name: String


def record_type(key: bytes | None) -> int:
    """Returns the type of a record. Errors: ProtocolError for a key without one."""
    if key is None or len(key) < INT16.size:
        raise ProtocolError("a record of a coordinator without a type")
    kind: int = INT16.unpack_from(key)[0]
    return kind


def encode_value(value: ApiMessage, version: int = 0) -> bytes:
    """Encodes the value of a record."""
    return INT16.pack(version) + codec_for(type(value), version).encode(value)


def decode_value(message: type[V], value: bytes | None) -> V | None:
    """Returns the message of a value; None for a tombstone. Errors: ProtocolError, also for an unknown version."""
    if value is None:
        return None
    version = INT16.unpack_from(value)[0] if len(value) >= INT16.size else -1
    if version not in message.VERSIONS:
        raise ProtocolError(f"{message.__name__} has the unknown version {version}")
    decoded: V = codec_for(message, version).decode(value, INT16.size, len(value))
    return decoded


def encode_group_key(kind: int, group: str, name: str | None) -> bytes:
    """Returns the key of a record about a group, a transactional id, or the member or pattern `name` of a group."""
    if name is None:
        return INT16.pack(kind) + codec_for(GroupRecordKey, 0).encode(GroupRecordKey(group_id=group))
    return INT16.pack(kind) + codec_for(NamedRecordKey, 0).encode(NamedRecordKey(group_id=group, name=name))


def decode_group_key(key: bytes, *, is_named: bool) -> tuple[str, str]:
    """Returns the group of a key, and the name or an empty text. Errors: ProtocolError."""
    if not is_named:
        return codec_for(GroupRecordKey, 0).decode(key, INT16.size, len(key)).group_id, ""
    named = codec_for(NamedRecordKey, 0).decode(key, INT16.size, len(key))
    return named.group_id, named.name
