"""The records of consumer groups in `__consumer_offsets` (KIP-848); keys and values are those of `coordinator_records`.

A group has many records, so that a change is small.

| key type | key                  | content | written |
|----------|----------------------|------|---------|
| 3        | group                | the group epoch, and a hash of its topics | 0 |
| 4        | group                | the topics, in Kafka before 4.1 | tombstones only |
| 5        | group, member        | the member and its subscription | 0 |
| 6        | group                | the epoch of the target assignment | 0 |
| 7        | group, member        | the target assignment of the member | 0 |
| 8        | group, member        | the current assignment and epoch of the member | 0 |
| 16       | group, pattern       | the topics that match a pattern | 0 |

    >>> change = ConsumerGroupChange(RecordType.TARGET_EPOCH, "g", "", TargetAssignmentEpoch(assignment_epoch=3))
    >>> key, value = encode_change(change)
    >>> key.hex(" "), value.hex(" ")
    ('00 06 00 01 67', '00 00 00 00 00 03 00')
    >>> decode_change(key, value) == change
    True

An invalid record of these types is an error; other types are ignored. Migration: as in `group_records`.

Source: Kafka's ConsumerGroup*Key/Value, `GroupCoordinatorRecordHelpers`; KIP-848, KIP-1101 (the hash instead of the
topics).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final, TypeAlias

import msgspec

from lowtide.protocol.coordinator_records import GroupRecordCodec
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
    versions,
)


class RecordType(IntEnum):
    """The type of a record, at the beginning of its key."""

    GROUP = 3
    TOPICS = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    PATTERN = 16


@versions("0", flexible="0+")
class GroupEpoch(ApiMessage, kw_only=True):
    """The group epoch, and the hash of the topics for which it was increased."""

    epoch: Int32
    metadata_hash: Annotated[Int64, Tagged(0, "0+")] = 0


class PartitionRacks(Message, kw_only=True):
    """The racks of a partition's replicas."""

    partition: Int32
    racks: list[String]


class TopicMetadata(Message, kw_only=True):
    """A topic in the records of older coordinators."""

    topic_id: Uuid
    topic_name: String
    num_partitions: Int32
    partition_metadata: list[PartitionRacks]


@versions("0", flexible="0+")
class SubscribedTopics(ApiMessage, kw_only=True):
    """The topics of a group, in records before the hash."""

    topics: list[TopicMetadata]


class ClassicProtocol(Message, kw_only=True):
    """A protocol of a classic member."""

    name: String
    metadata: Bytes


class ClassicMemberMetadata(Message, kw_only=True):
    """The metadata of a member with the classic protocol."""

    session_timeout_ms: Int32
    supported_protocols: list[ClassicProtocol]


@versions("0", flexible="0+")
class MemberSubscription(ApiMessage, kw_only=True):
    """A member and its subscription."""

    instance_id: String | None
    rack_id: String | None
    client_id: String
    client_host: String
    subscribed_topic_names: list[String]
    subscribed_topic_regex: String | None
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, Tagged(0, "0+"), Nullable("0+")] = None


@versions("0", flexible="0+")
class TargetAssignmentEpoch(ApiMessage, kw_only=True):
    """The epoch of a target assignment, and its time in wall-clock milliseconds; 0 if unknown."""

    assignment_epoch: Int32
    assignment_timestamp: Annotated[Int64, Tagged(0, "0+")] = 0


class TargetTopicPartitions(Message, kw_only=True):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: list[Int32]


@versions("0", flexible="0+")
class MemberTarget(ApiMessage, kw_only=True):
    """The target assignment of a member."""

    topic_partitions: list[TargetTopicPartitions]


class CurrentTopicPartitions(Message, kw_only=True):
    """Partitions of one topic with their assignment epochs, which older coordinators do not store (KIP-1251)."""

    topic_id: Uuid
    partitions: list[Int32]
    assignment_epochs: Annotated[list[Int32] | None, Tagged(0, "0+")] = None


@versions("0", flexible="0+")
class MemberCurrent(ApiMessage, kw_only=True):
    """The current assignment, pending revocations and epoch of a member."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    assigned_partitions: list[CurrentTopicPartitions]
    partitions_pending_revocation: list[CurrentTopicPartitions]


@versions("0", flexible="0+")
class PatternTopics(ApiMessage, kw_only=True):
    """The topics that match a pattern, at a metadata revision and a time in wall-clock milliseconds."""

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


class ConsumerGroupChange(msgspec.Struct, frozen=True):
    """One record. `name` is a member id, a pattern, or empty; `value` is None in a tombstone."""

    kind: RecordType
    group: str
    name: str
    value: ChangeValue | None


_RECORDS: Final = GroupRecordCodec(ConsumerGroupChange, _VALUES, _NAMED)
encode_change = _RECORDS.encode
decode_change = _RECORDS.decode
