"""The records of streams groups in `__consumer_offsets` (KIP-1071); keys and values are those of `coordinator_records`.

| key type | key           | content |
|----------|---------------|------|
| 17       | group         | the group epoch, a hash of its topics, and the topology epoch that was checked |
| 19       | group, member | the member and its process |
| 20       | group         | the epoch of the target assignment |
| 21       | group, member | the target assignment of the member |
| 22       | group, member | the current assignment and epoch of the member |
| 23       | group         | the topology |

    >>> change = StreamsGroupChange(StreamsRecordType.GROUP, "g", "", StreamsGroupEpoch(epoch=2, metadata_hash=0))
    >>> key, value = encode_streams_change(change)
    >>> key.hex(" "), value.hex(" ")
    ('00 11 00 01 67', '00 00 00 00 00 02 00 00 00 00 00 00 00 00 00')
    >>> decode_streams_change(key, value) == change
    True

All have version 0. Migration: as in `group_records`. Source: Kafka's StreamsGroup*Key/Value,
`StreamsCoordinatorRecordHelpers`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final, TypeAlias

import msgspec

from lowtide.protocol.consumer_group_records import TargetAssignmentEpoch
from lowtide.protocol.coordinator_records import GroupRecordCodec
from lowtide.protocol.messages.streams_group_heartbeat import (
    HeartbeatSubtopology,
    StreamsEndpoint,
    StreamsKeyValue,
    StreamsTaskIds,
)
from lowtide.protocol.schema import ApiMessage, Int8, Int32, Int64, Message, Nullable, String, Tagged, versions

NO_TOPOLOGY_EPOCH: Final = -1


class StreamsRecordType(IntEnum):
    """The type of a record, at the beginning of its key."""

    GROUP = 17
    MEMBER = 19
    TARGET_EPOCH = 20
    TARGET = 21
    CURRENT = 22
    TOPOLOGY = 23


@versions("0", flexible="0+")
class StreamsGroupEpoch(ApiMessage, kw_only=True):
    """The group epoch and what it was increased for. Topology epochs are -1 if there is none."""

    epoch: Int32
    metadata_hash: Int64
    validated_topology_epoch: Annotated[Int32, Tagged(0, "0+")] = NO_TOPOLOGY_EPOCH
    last_assignment_configs: Annotated[list[StreamsKeyValue] | None, Tagged(1, "0+"), Nullable("0+")] = None
    stored_description_topology_epoch: Annotated[Int32, Tagged(2, "0+")] = NO_TOPOLOGY_EPOCH
    failed_description_topology_epoch: Annotated[Int32, Tagged(3, "0+")] = NO_TOPOLOGY_EPOCH


@versions("0", flexible="0+")
class StreamsMemberMetadata(ApiMessage, kw_only=True):
    """A member and the process that it belongs to."""

    instance_id: String | None
    rack_id: String | None
    client_id: String
    client_host: String
    rebalance_timeout_ms: Int32 = -1
    topology_epoch: Int32
    process_id: String
    user_endpoint: Annotated[StreamsEndpoint | None, Nullable("0+")] = None
    client_tags: list[StreamsKeyValue]


@versions("0", flexible="0+")
class StreamsMemberTarget(ApiMessage, kw_only=True):
    """The target assignment of a member."""

    active_tasks: list[StreamsTaskIds]
    standby_tasks: list[StreamsTaskIds]
    warmup_tasks: list[StreamsTaskIds]


class CurrentTaskIds(Message, kw_only=True):
    """Tasks of one subtopology; active ones with the epoch in which the member got them."""

    subtopology_id: String
    partitions: list[Int32]
    assignment_epochs: Annotated[list[Int32] | None, Tagged(0, "0+")] = None


@versions("0", flexible="0+")
class StreamsMemberCurrent(ApiMessage, kw_only=True):
    """The current assignment, pending revocations and epoch of a member."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    active_tasks: list[CurrentTaskIds]
    standby_tasks: list[CurrentTaskIds]
    warmup_tasks: list[CurrentTaskIds]
    active_tasks_pending_revocation: list[CurrentTaskIds]
    standby_tasks_pending_revocation: list[CurrentTaskIds]
    warmup_tasks_pending_revocation: list[CurrentTaskIds]


@versions("0", flexible="0+")
class StreamsGroupTopology(ApiMessage, kw_only=True):
    """The topology; its subtopologies have the same form as in a heartbeat."""

    epoch: Int32
    subtopologies: list[HeartbeatSubtopology]


StreamsChangeValue: TypeAlias = (
    StreamsGroupEpoch
    | StreamsMemberMetadata
    | TargetAssignmentEpoch
    | StreamsMemberTarget
    | StreamsMemberCurrent
    | StreamsGroupTopology
)

_VALUES: Final[dict[StreamsRecordType, type[ApiMessage]]] = {
    StreamsRecordType.GROUP: StreamsGroupEpoch,
    StreamsRecordType.MEMBER: StreamsMemberMetadata,
    StreamsRecordType.TARGET_EPOCH: TargetAssignmentEpoch,
    StreamsRecordType.TARGET: StreamsMemberTarget,
    StreamsRecordType.CURRENT: StreamsMemberCurrent,
    StreamsRecordType.TOPOLOGY: StreamsGroupTopology,
}
_OF_MEMBERS: Final = frozenset({StreamsRecordType.MEMBER, StreamsRecordType.TARGET, StreamsRecordType.CURRENT})


class StreamsGroupChange(msgspec.Struct, frozen=True):
    """One record. `name` is a member id, or empty; `value` is None in a tombstone."""

    kind: StreamsRecordType
    group: str
    name: str
    value: StreamsChangeValue | None


_RECORDS: Final = GroupRecordCodec(StreamsGroupChange, _VALUES, _OF_MEMBERS)
encode_streams_change = _RECORDS.encode
decode_streams_change = _RECORDS.decode
