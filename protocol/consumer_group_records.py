"""The records of `__consumer_offsets` about groups whose partitions the broker assigns (KIP-848).

One group is many records, so that a change costs what it changes. Keys and values begin as those of `group_records`.

| key type | key                  | says | written |
|----------|----------------------|------|---------|
| 3        | group                | the group's epoch, and a hash of the topics it was made for | 0 |
| 4        | group                | the topics themselves, as Kafka kept them before 4.1 | tombstones only |
| 5        | group, member        | what a member says of itself | 0 |
| 6        | group                | the epoch of the target assignment | 0 |
| 7        | group, member        | what the member is to have | 0 |
| 8        | group, member        | what the member has, and the epoch in which it does | 0 |
| 16       | group, pattern       | the topics that match a pattern | 0 |

    >>> change = ConsumerGroupChange(RecordType.TARGET_EPOCH, "g", "", TargetAssignmentEpoch(assignment_epoch=3))
    >>> key, value = encode_change(change)
    >>> key.hex(" "), value.hex(" ")
    ('00 06 00 01 67', '00 00 00 00 00 03 00')
    >>> decode_change(key, value) == change
    True

A record of these types that can't be read is an error; other types are ignored here. Migration: as in `group_records`.

Source: Kafka's ConsumerGroup*Key/Value, `GroupCoordinatorRecordHelpers`; KIP-848, KIP-1101 (the hash instead of the
topics).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Annotated, ClassVar, Final, TypeAlias

import msgspec

from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.schema import (
    ApiMessage,
    Bytes,
    Int8,
    Int32,
    Int64,
    Message,
    Nullable,
    String,
    Tagged,
    Uuid,
    Versions,
)

_INT16 = struct.Struct(">h")
_VERSION: Final = _INT16.pack(0)


class RecordType(IntEnum):
    """What a record is about: the number that its key begins with."""

    GROUP = 3
    TOPICS = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    PATTERN = 16


class _GroupKey(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("1+")

    group_id: String


class _NamedKey(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("1+")

    group_id: String
    name: String


class GroupEpoch(ApiMessage, kw_only=True):
    """In which epoch a group is, and for which topics, as a hash."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    epoch: Int32
    metadata_hash: Annotated[Int64, Tagged(0, "0+")] = 0


class PartitionRacks(Message, kw_only=True):
    """Where the replicas of a partition are."""

    partition: Int32
    racks: list[String]


class TopicMetadata(Message, kw_only=True):
    """A topic as an older coordinator saw it."""

    topic_id: Uuid
    topic_name: String
    num_partitions: Int32
    partition_metadata: list[PartitionRacks]


class SubscribedTopics(ApiMessage, kw_only=True):
    """The topics of a group, as Kafka kept them before it kept a hash."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    topics: list[TopicMetadata]


class ClassicProtocol(Message, kw_only=True):
    """A protocol that a member of a classic group speaks."""

    name: String
    metadata: Bytes


class ClassicMemberMetadata(Message, kw_only=True):
    """What a member says that speaks the classic protocol."""

    session_timeout_ms: Int32
    supported_protocols: list[ClassicProtocol]


class MemberSubscription(ApiMessage, kw_only=True):
    """What a member says of itself."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    instance_id: String | None
    rack_id: String | None
    client_id: String
    client_host: String
    subscribed_topic_names: list[String]
    subscribed_topic_regex: String | None
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, Tagged(0, "0+"), Nullable("0+")] = None


class TargetAssignmentEpoch(ApiMessage, kw_only=True):
    """The epoch of a target assignment, and when it was computed, in wall-clock milliseconds; 0 if unknown."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    assignment_epoch: Int32
    assignment_timestamp: Annotated[Int64, Tagged(0, "0+")] = 0


class TargetTopicPartitions(Message, kw_only=True):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: list[Int32]


class MemberTarget(ApiMessage, kw_only=True):
    """What a member is to have."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    topic_partitions: list[TargetTopicPartitions]


class CurrentTopicPartitions(Message, kw_only=True):
    """Partitions of one topic, and the epochs in which each was given; older coordinators don't tell these (KIP-1251)."""

    topic_id: Uuid
    partitions: list[Int32]
    assignment_epochs: Annotated[list[Int32] | None, Tagged(0, "0+")] = None


class MemberCurrent(ApiMessage, kw_only=True):
    """What a member has, what it is asked to give back, and in which epoch it is."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    assigned_partitions: list[CurrentTopicPartitions]
    partitions_pending_revocation: list[CurrentTopicPartitions]


class PatternTopics(ApiMessage, kw_only=True):
    """The topics that match a pattern, at a revision of the metadata, found at a time in wall-clock milliseconds."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    topics: list[String]
    version: Int64
    timestamp: Int64


ChangeValue: TypeAlias = (
    GroupEpoch
    | SubscribedTopics
    | MemberSubscription
    | TargetAssignmentEpoch
    | MemberTarget
    | MemberCurrent
    | PatternTopics
)

_VALUES: Final[dict[RecordType, type[ApiMessage]]] = {
    RecordType.GROUP: GroupEpoch,
    RecordType.TOPICS: SubscribedTopics,
    RecordType.MEMBER: MemberSubscription,
    RecordType.TARGET_EPOCH: TargetAssignmentEpoch,
    RecordType.TARGET: MemberTarget,
    RecordType.CURRENT: MemberCurrent,
    RecordType.PATTERN: PatternTopics,
}
_NAMED: Final = frozenset({RecordType.MEMBER, RecordType.TARGET, RecordType.CURRENT, RecordType.PATTERN})
_TYPES: Final = {int(kind): kind for kind in RecordType}


class ConsumerGroupChange(msgspec.Struct, frozen=True):
    """One record. `name` is the member's id, or the pattern, or empty; `value` is None in a tombstone."""

    kind: RecordType
    group: str
    name: str
    value: ChangeValue | None


def encode_change(change: ConsumerGroupChange) -> tuple[bytes, bytes | None]:
    """Key and value of the record that says this."""
    kind, value = change.kind, change.value
    if kind in _NAMED:
        key = codec_for(_NamedKey, 0).encode(_NamedKey(group_id=change.group, name=change.name))
    else:
        key = codec_for(_GroupKey, 0).encode(_GroupKey(group_id=change.group))
    if value is None:
        return _INT16.pack(kind) + key, None
    assert isinstance(value, _VALUES[kind]), f"a {type(value).__name__} in a record of {kind.name}"
    return _INT16.pack(kind) + key, _VERSION + codec_for(type(value), 0).encode(value)


def decode_change(key: bytes, value: bytes | None) -> ConsumerGroupChange | None:
    """What a record says; None for a type that isn't known here. `key` has a type.

    Errors: ProtocolError for bytes that are no such record, and for a version that isn't known.
    """
    kind = _TYPES.get(_INT16.unpack_from(key)[0])
    if kind is None:
        return None
    group, name = _decode_key(kind, key)
    if value is None:
        return ConsumerGroupChange(kind, group, name, None)
    message = _VALUES[kind]
    version = _INT16.unpack_from(value)[0] if len(value) >= _INT16.size else -1
    if version not in message.VERSIONS:
        text = f"{message.__name__} of version {version}, which isn't known"
        raise ProtocolError(text)
    decoded = codec_for(message, version).decode(value, _INT16.size, len(value))
    return ConsumerGroupChange(kind, group, name, decoded)


def _decode_key(kind: RecordType, key: bytes) -> tuple[str, str]:
    if kind in _NAMED:
        named = codec_for(_NamedKey, 0).decode(key, _INT16.size, len(key))
        return named.group_id, named.name
    return codec_for(_GroupKey, 0).decode(key, _INT16.size, len(key)).group_id, ""
