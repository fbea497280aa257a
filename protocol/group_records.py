"""The records of committed offsets and classic groups in `__consumer_offsets`.

Keys and values are those of `coordinator_records`.

| key type | key                     | value versions | written |
|----------|-------------------------|----------------|---------|
| 0, 1     | group, topic, partition | 0-4            | 4; 1 if an old client set the retention time |
| 2        | group                   | 0-4            | 3       |

    >>> key, value = encode_offset_commit("g", "t", 3, OffsetCommitValue(offset=7, metadata="", commit_timestamp=9))
    >>> key.hex(" ")
    '00 01 00 01 67 00 01 74 00 00 00 03'
    >>> value.hex(" ")
    '00 04 00 00 00 00 00 00 00 07 ff ff ff ff 01 00 00 00 00 00 00 00 09 00'

If commits can delete records (KIP-68), an offset has two tagged fields of Lowtide's own: the committer, and whether it
had DELETE on the topic. Other readers skip them.

`decode_record` also decodes the records of consumer and share groups, and returns None for other types. An unknown
version is an error. Migration: a new version is added to the declaration, and written once all brokers can read it.

Source: Kafka's GroupMetadataKey/Value, OffsetCommitKey/Value and `GroupCoordinatorRecordHelpers`, and
`CoordinatorRecordType`.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from lowtide.protocol.compiler import codec_for
from lowtide.protocol.consumer_group_records import ConsumerGroupChange, decode_change
from lowtide.protocol.coordinator_records import (
    INT16,
    CoordinatorRecord,
    decode_group_key,
    decode_value,
    encode_group_key,
    encode_value,
    record_type,
)
from lowtide.protocol.schema import (
    ApiMessage,
    Bool,
    Bytes,
    Int32,
    Int64,
    Message,
    Nullable,
    String,
    Tagged,
    Uuid,
    Versions,
    versions,
)
from lowtide.protocol.share_group_records import ShareGroupChange, decode_share_change
from lowtide.protocol.streams_group_records import StreamsGroupChange, decode_streams_change
from lowtide.protocol.types import NO_LEADER_EPOCH, NO_TIMESTAMP, ZERO_TOPIC_ID

OFFSET_COMMIT_TYPES: Final = (0, 1)
GROUP_METADATA_TYPE: Final = 2
OFFSET_COMMIT_VERSION: Final = 4
OFFSET_COMMIT_VERSION_WITH_EXPIRY: Final = 1
GROUP_METADATA_VERSION: Final = 3

COMMITTER_TAG: Final = 10_000
"""The first of Lowtide's own tags, far above Kafka's, which start at 0. Readers skip unknown tags (KIP-482)."""

REMEMBERED_KEYS: Final = 4096
REMEMBERED_NAMES_MAX: Final = 500
"""The number of cached key prefixes, and the maximum length of both names in one: some megabytes in total."""

_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_OFFSET_VALUE = struct.Struct(">hqiB")
"""Version, offset, leader epoch, and the metadata length plus one, if that fits into one byte."""

_SHORT_METADATA: Final = 127
_NO_TAGS = b"\0"
_TOPIC_ID_FOLLOWS = bytes((1, 0, len(ZERO_TOPIC_ID)))
"""One tagged field, tag 0, and its size."""

_PLAIN_VALUE = struct.Struct(f"{_OFFSET_VALUE.format}{_INT64.size + len(_NO_TAGS)}s")
_PLAIN_VALUE_WITH_TOPIC_ID = struct.Struct(
    f"{_OFFSET_VALUE.format}{_INT64.size + len(_TOPIC_ID_FOLLOWS) + len(ZERO_TOPIC_ID)}s"
)
"""A value without metadata; its end is the commit timestamp and the tagged fields."""

_OFFSET_COMMIT_TYPE = INT16.pack(1)


@versions("0", flexible="1+")
class OffsetCommitKey(ApiMessage, kw_only=True):
    """The group, topic and partition of an offset."""

    group: String
    topic: String
    partition: Int32


@versions("0-4", flexible="4+")
class OffsetCommitValue(ApiMessage, kw_only=True):
    """A committed offset: the next one to be read.

    Times are wall-clock milliseconds; without `expire_timestamp` the broker's retention applies.
    """

    offset: Int64
    leader_epoch: Annotated[Int32, Versions("3+")] = NO_LEADER_EPOCH
    metadata: String
    commit_timestamp: Int64
    expire_timestamp: Annotated[Int64, Versions("1")] = NO_TIMESTAMP
    topic_id: Annotated[Uuid, Tagged(0, "4+")] = ZERO_TOPIC_ID
    committer: Annotated[String | None, Tagged(COMMITTER_TAG, "4+"), Nullable("4+")] = None
    """Lowtide's own: the principal, if commits can delete records (KIP-68)."""
    may_delete: Annotated[Bool, Tagged(COMMITTER_TAG + 1, "4+")] = False
    """Lowtide's own: whether the principal had DELETE on the topic."""


class MemberMetadata(Message, kw_only=True):
    """A member of a generation, with its subscription and assignment."""

    member_id: String
    group_instance_id: Annotated[String | None, Versions("3+"), Nullable("3+")] = None
    client_id: String
    client_host: String
    rebalance_timeout: Annotated[Int32, Versions("1+")] = -1
    session_timeout: Int32
    subscription: Bytes
    assignment: Bytes


@versions("0-4", flexible="4+")
class GroupMetadataValue(ApiMessage, kw_only=True):
    """A classic group in one generation. `current_state_timestamp` is the time of its last state change."""

    protocol_type: String
    generation: Int32
    protocol: String | None
    leader: String | None
    current_state_timestamp: Annotated[Int64, Versions("2+")] = NO_TIMESTAMP
    members: list[MemberMetadata]


class OffsetCommit(msgspec.Struct, frozen=True):
    """An offset; `value` is None in a tombstone."""

    key: OffsetCommitKey
    value: OffsetCommitValue | None


class OffsetCommits(msgspec.Struct, frozen=True):
    """Consecutive offsets of one group and topic; at least one."""

    group: str
    topic: str
    values: dict[int, OffsetCommitValue]
    """By partition, in the order of their records."""
    metadata_size: int
    """The characters of their metadata together."""


class GroupMetadata(msgspec.Struct, frozen=True):
    """A classic group; `value` is None in a tombstone."""

    group: str
    value: GroupMetadataValue | None


def encode_offset_commits(group: str, topic: str, values: Mapping[int, OffsetCommitValue]) -> list[CoordinatorRecord]:
    """Encodes offsets of one commit, by partition: they have the same times, topic id and committer.

    The result equals that of the codecs of `OffsetCommitKey` and `OffsetCommitValue`, in a fraction of the time: a
    broker writes tens of thousands per second. Common parts are encoded once.
    """
    key_start, pack_key, common = _key_start(group, topic), _INT32.pack, next(iter(values.values()))
    if common.expire_timestamp != NO_TIMESTAMP or common.committer is not None:
        version = (
            OFFSET_COMMIT_VERSION if common.expire_timestamp == NO_TIMESTAMP else OFFSET_COMMIT_VERSION_WITH_EXPIRY
        )
        return [(key_start + pack_key(partition), encode_value(value, version)) for partition, value in values.items()]
    has_topic_id = common.topic_id != ZERO_TOPIC_ID
    end = _INT64.pack(common.commit_timestamp) + (_TOPIC_ID_FOLLOWS + common.topic_id if has_topic_id else _NO_TAGS)
    pack_value = (_PLAIN_VALUE_WITH_TOPIC_ID if has_topic_id else _PLAIN_VALUE).pack
    records: list[CoordinatorRecord] = []
    for partition, value in values.items():
        if value.metadata:
            encoded = _encode_with_metadata(value, end)
        else:
            encoded = pack_value(OFFSET_COMMIT_VERSION, value.offset, value.leader_epoch, 1, end)
        records.append((key_start + pack_key(partition), encoded))
    return records


def _encode_with_metadata(value: OffsetCommitValue, end: bytes) -> bytes:
    metadata = value.metadata.encode()
    if len(metadata) >= _SHORT_METADATA:
        return encode_value(value, OFFSET_COMMIT_VERSION)
    start = _OFFSET_VALUE.pack(OFFSET_COMMIT_VERSION, value.offset, value.leader_epoch, len(metadata) + 1)
    return start + metadata + end


def encode_offset_commit(group: str, topic: str, partition: int, value: OffsetCommitValue | None) -> CoordinatorRecord:
    """Encodes an offset, or a tombstone for None."""
    if value is None:
        return _key_start(group, topic) + _INT32.pack(partition), None
    return encode_offset_commits(group, topic, {partition: value})[0]


def _key_start(group: str, topic: str) -> bytes:
    """Returns the key of an offset up to the partition, cached unless it is large."""
    return (
        _remembered_key_start(group, topic)
        if len(group) + len(topic) <= REMEMBERED_NAMES_MAX
        else _make_key_start(group, topic)
    )


def _make_key_start(group: str, topic: str) -> bytes:
    names = group.encode(), topic.encode()
    return _OFFSET_COMMIT_TYPE + b"".join(INT16.pack(len(name)) + name for name in names)


_remembered_key_start = lru_cache(REMEMBERED_KEYS)(_make_key_start)


def encode_group_metadata(group: str, value: GroupMetadataValue | None) -> CoordinatorRecord:
    """Encodes a classic group, or a tombstone for None."""
    key = encode_group_key(GROUP_METADATA_TYPE, group, None)
    return key, None if value is None else encode_value(value, GROUP_METADATA_VERSION)


def decode_record(
    key: bytes | None, value: bytes | None
) -> OffsetCommit | GroupMetadata | ConsumerGroupChange | ShareGroupChange | StreamsGroupChange | None:
    """Decodes a record; returns None for an unknown type.

    Errors: ProtocolError for invalid bytes, and for an unknown version.
    """
    kind = record_type(key)
    assert key is not None
    if kind in OFFSET_COMMIT_TYPES:
        commit = decode_value(OffsetCommitValue, value)
        if commit is not None and commit.committer is not None:
            commit.committer = sys.intern(commit.committer)  # Many offsets share few principals.
        return OffsetCommit(codec_for(OffsetCommitKey, 0).decode(key, INT16.size, len(key)), commit)
    if kind == GROUP_METADATA_TYPE:
        group, _ = decode_group_key(key, is_named=False)
        return GroupMetadata(group, decode_value(GroupMetadataValue, value))
    return decode_change(key, value) or decode_share_change(key, value) or decode_streams_change(key, value)
