"""Keys and values of the records in which coordinators keep their state.

Both begin with an int16: in a key it is the type of the record, in a value the version of the message after it. A null
value (a tombstone) deletes the record with the same key. Sources: Kafka's `CoordinatorRecordSerde`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

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


class GroupRecordChange(Protocol):
    """One record about a modern group; `value` is None in a tombstone."""

    @property
    def kind(self) -> IntEnum:
        """The type of the record."""

    @property
    def group(self) -> str:
        """The group's id."""

    @property
    def name(self) -> str:
        """The member id or the pattern that the record is about; empty if it is about neither."""

    @property
    def value(self) -> ApiMessage | None:
        """The message."""


C = TypeVar("C", bound=GroupRecordChange)


class GroupRecordCodec(Generic[C]):
    """Encodes and decodes the records about modern groups of one kind."""

    def __init__(
        self,
        change: Callable[[Any, str, str, Any], C],
        values: Mapping[Any, type[ApiMessage]],
        named: Collection[IntEnum],
    ) -> None:
        """`change` makes one from kind, group, name and value. Keys of the `named` kinds have a name."""
        self._change = change
        self._values = values
        self._kinds = {int(kind): kind for kind in values}
        self._named = named

    def encode(self, change: C) -> CoordinatorRecord:
        """Returns the record of a change."""
        kind, value = change.kind, change.value
        assert value is None or isinstance(value, self._values[kind]), (
            f"a {type(value).__name__} in a record of {kind.name}"
        )
        key = encode_group_key(kind, change.group, change.name if kind in self._named else None)
        return key, None if value is None else encode_value(value)

    def decode(self, key: bytes, value: bytes | None) -> C | None:
        """Decodes a record whose key has a type; returns None for an unknown type.

        Errors: ProtocolError for invalid bytes, and for an unknown version.
        """
        kind = self._kinds.get(record_type(key))
        if kind is None:
            return None
        group, name = decode_group_key(key, is_named=kind in self._named)
        return self._change(kind, group, name, decode_value(self._values[kind], value))
