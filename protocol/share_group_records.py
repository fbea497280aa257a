"""The records of `__consumer_offsets` about share groups (KIP-932). Keys and values begin as those of `group_records`.

| key type | key           | says |
|----------|---------------|------|
| 10       | group, member | what a member says of itself |
| 11       | group         | the group's epoch, and a hash of the topics it was made for |
| 12       | group         | the epoch of the target assignment |
| 13       | group, member | what the member is to have |
| 14       | group, member | what the member has, and the epoch in which it does |
| 15       | group         | the share partitions whose state has begun, is about to, or is being deleted |

    >>> change = ShareGroupChange(ShareRecordType.GROUP, "g", "", ShareGroupEpoch(epoch=2, metadata_hash=0))
    >>> key, value = encode_share_change(change)
    >>> key.hex(" "), value.hex(" ")
    ('00 0b 00 01 67', '00 00 00 00 00 02 00 00 00 00 00 00 00 00 00')
    >>> decode_share_change(key, value) == change
    True

All are written in version 0. Migration: as in `group_records`. Source: Kafka's ShareGroup*Key/Value,
`GroupCoordinatorRecordHelpers`.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Annotated, ClassVar, Final, TypeAlias

import msgspec

from lowtide.protocol.compiler import codec_for
from lowtide.protocol.consumer_group_records import MemberTarget, TargetAssignmentEpoch, TargetTopicPartitions
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.schema import ApiMessage, Int8, Int32, Int64, Message, String, Tagged, Uuid, Versions

UNKNOWN_PARTITION_COUNT: Final = -1

_INT16 = struct.Struct(">h")
_VERSION: Final = _INT16.pack(0)


class ShareRecordType(IntEnum):
    """What a record is about: the number that its key begins with."""

    MEMBER = 10
    GROUP = 11
    TARGET_EPOCH = 12
    TARGET = 13
    CURRENT = 14
    STATES = 15


class _GroupKey(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("1+")

    group_id: String


class _MemberKey(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("1+")

    group_id: String
    member_id: String


class ShareGroupEpoch(ApiMessage, kw_only=True):
    """In which epoch a group is, and for which topics and share partitions, as a hash."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    epoch: Int32
    metadata_hash: Int64


class ShareMemberSubscription(ApiMessage, kw_only=True):
    """What a member says of itself."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    rack_id: String | None
    client_id: String
    client_host: String
    subscribed_topic_names: list[String]


class ShareMemberCurrent(ApiMessage, kw_only=True):
    """What a member has, and in which epoch it is. `state` is 0, stable: nothing has to be given back."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8 = 0
    assigned_partitions: list[TargetTopicPartitions]


class StatePartitions(Message, kw_only=True):
    """Partitions of one topic; `create_timestamp` is when their state was asked to begin, in wall-clock milliseconds.

    `first_count` is Lowtide's own, in a tag far above those of Kafka: how many partitions the topic had when the group first knew it, -1 in
    records of versions that didn't note it.
    """

    topic_id: Uuid
    topic_name: String
    partitions: list[Int32]
    create_timestamp: Int64 = 0
    first_count: Annotated[Int32, Tagged(10_000, "0+")] = UNKNOWN_PARTITION_COUNT


class StateTopic(Message, kw_only=True):
    """A topic whose states are being deleted."""

    topic_id: Uuid
    topic_name: String


class SharePartitionStates(ApiMessage, kw_only=True):
    """The share partitions that have a state at the share coordinator, or are about to have or to lose it."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    initializing_topics: list[StatePartitions]
    initialized_topics: list[StatePartitions]
    deleting_topics: list[StateTopic]


ShareChangeValue: TypeAlias = (
    ShareGroupEpoch
    | ShareMemberSubscription
    | TargetAssignmentEpoch
    | MemberTarget
    | ShareMemberCurrent
    | SharePartitionStates
)

_VALUES: Final[dict[ShareRecordType, type[ApiMessage]]] = {
    ShareRecordType.MEMBER: ShareMemberSubscription,
    ShareRecordType.GROUP: ShareGroupEpoch,
    ShareRecordType.TARGET_EPOCH: TargetAssignmentEpoch,
    ShareRecordType.TARGET: MemberTarget,
    ShareRecordType.CURRENT: ShareMemberCurrent,
    ShareRecordType.STATES: SharePartitionStates,
}
_OF_MEMBERS: Final = frozenset({ShareRecordType.MEMBER, ShareRecordType.TARGET, ShareRecordType.CURRENT})
_TYPES: Final = {int(kind): kind for kind in ShareRecordType}


class ShareGroupChange(msgspec.Struct, frozen=True):
    """One record. `name` is the member's id, or empty; `value` is None in a tombstone."""

    kind: ShareRecordType
    group: str
    name: str
    value: ShareChangeValue | None


def encode_share_change(change: ShareGroupChange) -> tuple[bytes, bytes | None]:
    """Key and value of the record that says this."""
    kind, value = change.kind, change.value
    if kind in _OF_MEMBERS:
        key = codec_for(_MemberKey, 0).encode(_MemberKey(group_id=change.group, member_id=change.name))
    else:
        key = codec_for(_GroupKey, 0).encode(_GroupKey(group_id=change.group))
    if value is None:
        return _INT16.pack(kind) + key, None
    assert isinstance(value, _VALUES[kind]), f"a {type(value).__name__} in a record of {kind.name}"
    return _INT16.pack(kind) + key, _VERSION + codec_for(type(value), 0).encode(value)


def decode_share_change(key: bytes, value: bytes | None) -> ShareGroupChange | None:
    """What a record says; None for a type that isn't known here. `key` has a type.

    Errors: ProtocolError for bytes that are no such record, and for a version that isn't known.
    """
    kind = _TYPES.get(_INT16.unpack_from(key)[0])
    if kind is None:
        return None
    name = ""
    if kind in _OF_MEMBERS:
        of_member = codec_for(_MemberKey, 0).decode(key, _INT16.size, len(key))
        group, name = of_member.group_id, of_member.member_id
    else:
        group = codec_for(_GroupKey, 0).decode(key, _INT16.size, len(key)).group_id
    if value is None:
        return ShareGroupChange(kind, group, name, None)
    message = _VALUES[kind]
    version = _INT16.unpack_from(value)[0] if len(value) >= _INT16.size else -1
    if version not in message.VERSIONS:
        text = f"{message.__name__} of version {version}, which isn't known"
        raise ProtocolError(text)
    decoded = codec_for(message, version).decode(value, _INT16.size, len(value))
    return ShareGroupChange(kind, group, name, decoded)
