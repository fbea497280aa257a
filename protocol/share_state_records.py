"""The records of `__share_group_state`: snapshots of the state of a share partition, and what has changed since (KIP-932).

Key and value each begin with an int16: in the key it is the type of the record, 0 for a snapshot and 1 for an update, in the value the
version of what follows, 0. After a key's type come group, topic id and partition. A snapshot without a value takes the state back.

    >>> place = SharePlace("g", bytes(16), 7)
    >>> key, value = encode_share_state(place, None)
    >>> key.hex(" ", -4), value
    ('00000001 67000000 00000000 00000000 00000000 00000000 07', None)

Source: Kafka's ShareSnapshotKey/Value and ShareUpdateKey/Value, `ShareCoordinatorRecordHelpers`; KIP-1226 (the complete count).
"""

from __future__ import annotations

import struct
from typing import Annotated, ClassVar, Final, NamedTuple, TypeAlias

import msgspec

from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.group_records import CoordinatorRecord
from lowtide.protocol.messages.read_share_group_state import ShareStateBatch
from lowtide.protocol.schema import ApiMessage, Int32, Int64, String, Tagged, Uuid, Versions
from lowtide.protocol.types import Offset, TopicId

SNAPSHOT_TYPE: Final = 0
UPDATE_TYPE: Final = 1

UNKNOWN_COUNT: Final = -1
"""A leader of an earlier version doesn't tell how many deliveries are complete."""

UNKNOWN_START: Final[Offset] = -1
"""Where a share partition starts whose leader hasn't chosen that yet."""

_INT16 = struct.Struct(">h")
_VERSION: Final = _INT16.pack(0)


class SharePlace(NamedTuple):
    """A share partition: one group's view of one partition."""

    group_id: str
    topic_id: TopicId
    partition: int


class _Key(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("1+")

    group_id: String
    topic_id: Uuid
    partition: Int32


class ShareSnapshot(ApiMessage, kw_only=True):
    """The whole state of a share partition.

    Times are wall-clock milliseconds: of the last change, and of this record.
    """

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    snapshot_epoch: Int32
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    delivery_complete_count: Annotated[Int32, Tagged(0, "0+")] = UNKNOWN_COUNT
    create_timestamp: Int64
    write_timestamp: Int64
    state_batches: list[ShareStateBatch]


class ShareUpdate(ApiMessage, kw_only=True):
    """What has changed since a snapshot and the updates after it. `start_offset` is -1 where it hasn't."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    snapshot_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    delivery_complete_count: Annotated[Int32, Tagged(0, "0+")] = UNKNOWN_COUNT
    state_batches: list[ShareStateBatch]


ShareStateValue: TypeAlias = ShareSnapshot | ShareUpdate

_VALUES: Final[dict[int, type[ShareSnapshot | ShareUpdate]]] = {SNAPSHOT_TYPE: ShareSnapshot, UPDATE_TYPE: ShareUpdate}


class ShareStateChange(msgspec.Struct, frozen=True):
    """One record; `value` is None in one that takes the state back."""

    place: SharePlace
    value: ShareStateValue | None


def encode_share_state(place: SharePlace, value: ShareStateValue | None) -> CoordinatorRecord:
    """Key and value of the record that says this."""
    kind = UPDATE_TYPE if isinstance(value, ShareUpdate) else SNAPSHOT_TYPE
    key = _Key(group_id=place.group_id, topic_id=place.topic_id, partition=place.partition)
    encoded = None if value is None else _VERSION + codec_for(type(value), 0).encode(value)
    return _INT16.pack(kind) + codec_for(_Key, 0).encode(key), encoded


def decode_share_state(key: bytes | None, value: bytes | None) -> ShareStateChange | None:
    """What a record says; None for a type that isn't known here, and for an update without a value, which says nothing.

    Errors: ProtocolError for bytes that are no such record, and for a version that isn't known.
    """
    if key is None or len(key) < _INT16.size:
        raise ProtocolError("a record of a share partition's state without a key")
    kind = _INT16.unpack_from(key)[0]
    known = _VALUES.get(kind)
    if known is None:
        return None
    named = codec_for(_Key, 0).decode(key, _INT16.size, len(key))
    place = SharePlace(named.group_id, named.topic_id, named.partition)
    if value is None:
        return ShareStateChange(place, None) if kind == SNAPSHOT_TYPE else None
    version = _INT16.unpack_from(value)[0] if len(value) >= _INT16.size else -1
    if version not in known.VERSIONS:
        raise ProtocolError(f"{known.__name__} of version {version}, which isn't known")
    decoded = codec_for(known, version).decode(value, _INT16.size, len(value))
    return ShareStateChange(place, decoded)
