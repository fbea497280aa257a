"""The records of `__share_group_state`: snapshots and updates of the state of share partitions (KIP-932).

Keys and values are those of `coordinator_records`: type 0 is a snapshot and 1 an update, both in version 0. The type is
followed by group, topic id and partition. A snapshot without a value deletes the state.

    >>> place = SharePlace("g", bytes(16), 7)
    >>> key, value = encode_share_state(place, None)
    >>> key.hex(" ", -4), value
    ('00000001 67000000 00000000 00000000 00000000 00000000 07', None)

Source: Kafka's ShareSnapshotKey/Value and ShareUpdateKey/Value, `ShareCoordinatorRecordHelpers`; KIP-1226 (the number
of complete deliveries).
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

from lowtide.protocol.compiler import codec_for
from lowtide.protocol.coordinator_records import INT16, CoordinatorRecord, decode_value, encode_value, record_type
from lowtide.protocol.messages.read_share_group_state import ShareStateBatch
from lowtide.protocol.schema import ApiMessage, Int32, Int64, String, Tagged, Uuid, versions
from lowtide.protocol.types import Offset, TopicId

SNAPSHOT_TYPE: Final = 0
UPDATE_TYPE: Final = 1

UNKNOWN_COUNT: Final = -1
"""An earlier version does not store the number of complete deliveries."""

UNKNOWN_START: Final[Offset] = -1
"""The leader has not chosen a start offset yet."""


class SharePlace(NamedTuple):
    """A share partition: a group and a partition."""

    group_id: str
    topic_id: TopicId
    partition: int


@versions("0", flexible="1+")
class _Key(ApiMessage, kw_only=True):
    group_id: String
    topic_id: Uuid
    partition: Int32


@versions("0", flexible="0+")
class ShareSnapshot(ApiMessage, kw_only=True):
    """The state of a share partition.

    Times are wall-clock milliseconds: of the last change, and of this record.
    """

    snapshot_epoch: Int32
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    delivery_complete_count: Annotated[Int32, Tagged(0, "0+")] = UNKNOWN_COUNT
    create_timestamp: Int64
    write_timestamp: Int64
    state_batches: list[ShareStateBatch]


@versions("0", flexible="0+")
class ShareUpdate(ApiMessage, kw_only=True):
    """The changes since the last snapshot or update. `start_offset` is -1 if unchanged."""

    snapshot_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    delivery_complete_count: Annotated[Int32, Tagged(0, "0+")] = UNKNOWN_COUNT
    state_batches: list[ShareStateBatch]


ShareStateValue: TypeAlias = ShareSnapshot | ShareUpdate

_VALUES: Final[dict[int, type[ShareSnapshot | ShareUpdate]]] = {SNAPSHOT_TYPE: ShareSnapshot, UPDATE_TYPE: ShareUpdate}


class ShareStateChange(msgspec.Struct, frozen=True):
    """One record; `value` is None if the state is deleted."""

    place: SharePlace
    value: ShareStateValue | None


def encode_share_state(place: SharePlace, value: ShareStateValue | None) -> CoordinatorRecord:
    """Encodes a state, or its deletion for None."""
    kind = UPDATE_TYPE if isinstance(value, ShareUpdate) else SNAPSHOT_TYPE
    key = _Key(group_id=place.group_id, topic_id=place.topic_id, partition=place.partition)
    return INT16.pack(kind) + codec_for(_Key, 0).encode(key), None if value is None else encode_value(value)


def decode_share_state(key: bytes | None, value: bytes | None) -> ShareStateChange | None:
    """Decodes a record; returns None for an unknown type, and for an update without a value.

    Errors: ProtocolError for invalid bytes, and for an unknown version.
    """
    kind = record_type(key)
    message = _VALUES.get(kind)
    if message is None or key is None:
        return None
    named = codec_for(_Key, 0).decode(key, INT16.size, len(key))
    place = SharePlace(named.group_id, named.topic_id, named.partition)
    if value is None and kind != SNAPSHOT_TYPE:
        return None
    return ShareStateChange(place, decode_value(message, value))
