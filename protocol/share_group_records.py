"""The records of share groups in `__consumer_offsets` (KIP-932); keys and values are those of `coordinator_records`.

| key type | key           | content |
|----------|---------------|------|
| 10       | group, member | the member and its subscription |
| 11       | group         | the group epoch, and a hash of its topics and share partitions |
| 12       | group         | the epoch of the target assignment |
| 13       | group, member | the target assignment of the member |
| 14       | group, member | the current assignment and epoch of the member |
| 15       | group         | the share partitions whose state is initialized, being initialized, or being deleted |

    >>> change = ShareGroupChange(ShareRecordType.GROUP, "g", "", ShareGroupEpoch(epoch=2, metadata_hash=0))
    >>> key, value = encode_share_change(change)
    >>> key.hex(" "), value.hex(" ")
    ('00 0b 00 01 67', '00 00 00 00 00 02 00 00 00 00 00 00 00 00 00')
    >>> decode_share_change(key, value) == change
    True

All have version 0. Migration: as in `group_records`. Source: Kafka's ShareGroup*Key/Value,
`GroupCoordinatorRecordHelpers`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final, TypeAlias

import msgspec

from lowtide.protocol.consumer_group_records import MemberTarget, TargetAssignmentEpoch, TargetTopicPartitions
from lowtide.protocol.coordinator_records import GroupRecordCodec
from lowtide.protocol.schema import ApiMessage, Int8, Int32, Int64, Message, String, Tagged, Uuid, versions

UNKNOWN_PARTITION_COUNT: Final = -1


class ShareRecordType(IntEnum):
    """The type of a record, at the beginning of its key."""

    MEMBER = 10
    GROUP = 11
    TARGET_EPOCH = 12
    TARGET = 13
    CURRENT = 14
    STATES = 15


@versions("0", flexible="0+")
class ShareGroupEpoch(ApiMessage, kw_only=True):
    """The group epoch, and the hash of the topics and share partitions for which it was increased."""

    epoch: Int32
    metadata_hash: Int64


@versions("0", flexible="0+")
class ShareMemberSubscription(ApiMessage, kw_only=True):
    """A member and its subscription."""

    rack_id: String | None
    client_id: String
    client_host: String
    subscribed_topic_names: list[String]


@versions("0", flexible="0+")
class ShareMemberCurrent(ApiMessage, kw_only=True):
    """The current assignment and epoch of a member. `state` is always 0, stable."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8 = 0
    assigned_partitions: list[TargetTopicPartitions]


class StatePartitions(Message, kw_only=True):
    """Partitions of one topic; `create_timestamp` is when their initialization started, in wall-clock milliseconds.

    `first_count` is Lowtide's own tag: the number of partitions when the group first saw the topic, -1 if not recorded.
    """

    topic_id: Uuid
    topic_name: String
    partitions: list[Int32]
    create_timestamp: Int64 = 0
    first_count: Annotated[Int32, Tagged(10_000, "0+")] = UNKNOWN_PARTITION_COUNT


class DeletingStateTopic(Message, kw_only=True):
    """A topic whose state is being deleted."""

    topic_id: Uuid
    topic_name: String


@versions("0", flexible="0+")
class SharePartitionStates(ApiMessage, kw_only=True):
    """The share partitions whose state is initialized, being initialized, or being deleted."""

    initializing_topics: list[StatePartitions]
    initialized_topics: list[StatePartitions]
    deleting_topics: list[DeletingStateTopic]


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


class ShareGroupChange(msgspec.Struct, frozen=True):
    """One record. `name` is a member id, or empty; `value` is None in a tombstone."""

    kind: ShareRecordType
    group: str
    name: str
    value: ShareChangeValue | None


_RECORDS: Final = GroupRecordCodec(ShareGroupChange, _VALUES, _OF_MEMBERS)
encode_share_change = _RECORDS.encode
decode_share_change = _RECORDS.decode
