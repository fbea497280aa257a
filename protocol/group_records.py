"""The records of `__consumer_offsets`: committed offsets, and classic groups with their members.

Keys and values each begin with an int16: in a key it is the type of the record, in a value the version of what follows.
A null value (a tombstone) takes back what the same key said before.

| key type | key                     | value versions | written |
|----------|-------------------------|----------------|---------|
| 0, 1     | group, topic, partition | 0-4            | 4; 1 where a client of old said how long to keep the offset |
| 2        | group                   | 0-4            | 3       |

    >>> key, value = encode_offset_commit("g", "t", 3, OffsetCommitValue(offset=7, metadata="", commit_timestamp=9))
    >>> key.hex(" ")
    '00 01 00 01 67 00 01 74 00 00 00 03'
    >>> value.hex(" ")
    '00 04 00 00 00 00 00 00 00 07 ff ff ff ff 01 00 00 00 00 00 00 00 09 00'

Where commits may delete records (KIP-68) an offset has two tagged fields of Lowtide's own: who committed, and whether
with DELETE on the topic. Readers that don't know them skip them.

Groups of KIP-848 have records of their own (`consumer_group_records`), which `decode_record` reads too; it gives None
for keys of other types. A version above the known ones is an error, for it may mean anything. Migration: a new version
is added to the declaration; what is written changes when every broker of a cluster reads it.

Source: Kafka's GroupMetadataKey/Value, OffsetCommitKey/Value and `GroupCoordinatorRecordHelpers`, and
`CoordinatorRecordType`.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, ClassVar, Final, TypeAlias, TypeVar

import msgspec

from lowtide.protocol.compiler import codec_for
from lowtide.protocol.consumer_group_records import ConsumerGroupChange, decode_change
from lowtide.protocol.errors import ProtocolError
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
)
from lowtide.protocol.share_group_records import ShareGroupChange, decode_share_change
from lowtide.protocol.types import NO_LEADER_EPOCH, NO_TIMESTAMP, ZERO_TOPIC_ID, TopicId

CoordinatorRecord: TypeAlias = tuple[bytes, bytes | None]
"""Key and value of one record, as they are in the log."""

OFFSET_COMMIT_TYPES: Final = (0, 1)
GROUP_METADATA_TYPE: Final = 2
OFFSET_COMMIT_VERSION: Final = 4
OFFSET_COMMIT_VERSION_WITH_EXPIRY: Final = 1
GROUP_METADATA_VERSION: Final = 3

COMMITTER_TAG: Final = 10_000
"""The first of Lowtide's own tags, far above Kafka's, which are given out from 0. Who doesn't know a tag skips it (KIP-482)."""

REMEMBERED_KEYS: Final = 4096
REMEMBERED_NAMES_MAX: Final = 500
"""The beginnings of keys of so many pairs of a group and a topic are kept, if both names together are no longer: some megabytes at most."""

V = TypeVar("V", bound=ApiMessage)

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_OFFSET_VALUE = struct.Struct(">hqiB")
"""Version, offset, leader epoch, and the length of the metadata, plus one, if that is one byte."""

_SHORT_METADATA: Final = 127
_NO_TAGS = b"\0"
_TOPIC_ID_FOLLOWS = bytes((1, 0, len(ZERO_TOPIC_ID)))
"""One tagged field, the tag 0, and its size."""

_OFFSET_COMMIT_TYPE = _INT16.pack(1)
_GROUP_METADATA_TYPE = _INT16.pack(GROUP_METADATA_TYPE)


class OffsetCommitKey(ApiMessage, kw_only=True):
    """Whose offset."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("1+")

    group: String
    topic: String
    partition: Int32


class OffsetCommitValue(ApiMessage, kw_only=True):
    """A committed offset: the next one to be read.

    Times are wall-clock milliseconds; without `expire_timestamp` the broker decides.
    """

    VERSIONS: ClassVar = Versions("0-4")
    FLEXIBLE: ClassVar = Versions("4+")

    offset: Int64
    leader_epoch: Annotated[Int32, Versions("3+")] = NO_LEADER_EPOCH
    metadata: String
    commit_timestamp: Int64
    expire_timestamp: Annotated[Int64, Versions("1")] = NO_TIMESTAMP
    topic_id: Annotated[Uuid, Tagged(0, "4+")] = ZERO_TOPIC_ID
    committer: Annotated[String | None, Tagged(COMMITTER_TAG, "4+"), Nullable("4+")] = None
    """Lowtide's own: the principal, where commits may let records go (KIP-68)."""
    may_delete: Annotated[Bool, Tagged(COMMITTER_TAG + 1, "4+")] = False
    """Lowtide's own: whether it had DELETE on the topic, by an authorizer."""


class GroupMetadataKey(ApiMessage, kw_only=True):
    """Which group."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("1+")

    group: String


class MemberMetadata(Message, kw_only=True):
    """A member of a generation, with what it said and what it got."""

    member_id: String
    group_instance_id: Annotated[String | None, Versions("3+"), Nullable("3+")] = None
    client_id: String
    client_host: String
    rebalance_timeout: Annotated[Int32, Versions("1+")] = -1
    session_timeout: Int32
    subscription: Bytes
    assignment: Bytes


class GroupMetadataValue(ApiMessage, kw_only=True):
    """A classic group in one generation. `current_state_timestamp`: since when it is in its state."""

    VERSIONS: ClassVar = Versions("0-4")
    FLEXIBLE: ClassVar = Versions("4+")

    protocol_type: String
    generation: Int32
    protocol: String | None
    leader: String | None
    current_state_timestamp: Annotated[Int64, Versions("2+")] = NO_TIMESTAMP
    members: list[MemberMetadata]


class OffsetCommit(msgspec.Struct, frozen=True):
    """A record of an offset; `value` is None in a tombstone."""

    key: OffsetCommitKey
    value: OffsetCommitValue | None


class OffsetCommits(msgspec.Struct, frozen=True):
    """Records of one group's offsets in one topic, one after the other: the partition, and what was committed for it; at least one."""

    group: str
    topic: str
    values: list[tuple[int, OffsetCommitValue]]


class GroupMetadata(msgspec.Struct, frozen=True):
    """A record of a classic group; `value` is None in a tombstone."""

    group: str
    value: GroupMetadataValue | None


class OffsetRecords:
    """Makes the records of one group's offsets in one topic.

    What they have in common is encoded once: a request commits many. What the codecs of `OffsetCommitKey` and
    `OffsetCommitValue` make, in a fraction of the time: a broker writes tens of thousands in a second.
    """

    __slots__ = ("key_start", "value_end")

    def __init__(self, group: str, topic: str, *, commit_timestamp: int, topic_id: TopicId) -> None:
        """The values have this time and this topic id."""
        self.key_start = _key_start(group, topic)
        self.value_end = _INT64.pack(commit_timestamp) + (
            _NO_TAGS if topic_id == ZERO_TOPIC_ID else _TOPIC_ID_FOLLOWS + topic_id
        )

    def encode_all(self, values: Iterable[tuple[int, OffsetCommitValue]]) -> list[CoordinatorRecord]:
        """The records that keep offsets.

        Most have no metadata and no expiry: these are encoded here, in a loop without calls.
        """
        key_start, end, encode, rows = self.key_start, self.value_end, self.encode, []
        pack_key, pack_value = _INT32.pack, _OFFSET_VALUE.pack
        for partition, value in values:
            if value.metadata or value.expire_timestamp != NO_TIMESTAMP or value.committer is not None:
                rows.append(encode(partition, value))
            else:
                rows.append(
                    (
                        key_start + pack_key(partition),
                        pack_value(OFFSET_COMMIT_VERSION, value.offset, value.leader_epoch, 1) + end,
                    )
                )
        return rows

    def encode(self, partition: int, value: OffsetCommitValue) -> CoordinatorRecord:
        """The record that keeps an offset."""
        key = self.key_start + _INT32.pack(partition)
        if value.expire_timestamp == NO_TIMESTAMP:
            metadata = value.metadata.encode()
            if len(metadata) < _SHORT_METADATA and value.committer is None:
                start = _OFFSET_VALUE.pack(OFFSET_COMMIT_VERSION, value.offset, value.leader_epoch, len(metadata) + 1)
                return key, start + metadata + self.value_end
            version = OFFSET_COMMIT_VERSION
        else:
            version = OFFSET_COMMIT_VERSION_WITH_EXPIRY
        return key, _INT16.pack(version) + codec_for(OffsetCommitValue, version).encode(value)


def encode_offset_commit(group: str, topic: str, partition: int, value: OffsetCommitValue | None) -> CoordinatorRecord:
    """The record that keeps an offset, or with None the one that takes it back."""
    if value is None:
        return _key_start(group, topic) + _INT32.pack(partition), None
    return OffsetRecords(group, topic, commit_timestamp=value.commit_timestamp, topic_id=value.topic_id).encode(
        partition, value
    )


def _key_start(group: str, topic: str) -> bytes:
    """The key of an offset up to the partition.

    Those of the groups that commit again and again are kept, but not large ones.
    """
    return (
        _remembered_key_start(group, topic)
        if len(group) + len(topic) <= REMEMBERED_NAMES_MAX
        else _make_key_start(group, topic)
    )


def _make_key_start(group: str, topic: str) -> bytes:
    names = group.encode(), topic.encode()
    return _OFFSET_COMMIT_TYPE + b"".join(_INT16.pack(len(name)) + name for name in names)


_remembered_key_start = lru_cache(REMEMBERED_KEYS)(_make_key_start)


def encode_group_metadata(group: str, value: GroupMetadataValue | None) -> CoordinatorRecord:
    """The record that keeps a classic group, or with None the one that takes it back."""
    name = group.encode()
    key = _GROUP_METADATA_TYPE + _INT16.pack(len(name)) + name
    if value is None:
        return key, None
    return key, _INT16.pack(GROUP_METADATA_VERSION) + codec_for(GroupMetadataValue, GROUP_METADATA_VERSION).encode(
        value
    )


def decode_record(
    key: bytes | None, value: bytes | None
) -> OffsetCommit | GroupMetadata | ConsumerGroupChange | ShareGroupChange | None:
    """What a record says; None for a type that isn't known here.

    Errors: ProtocolError for bytes that are no such record, and for a version that isn't known.
    """
    if key is None or len(key) < _INT16.size:
        raise ProtocolError("a record of a coordinator without a type")
    kind = _INT16.unpack_from(key)[0]
    if kind in OFFSET_COMMIT_TYPES:
        commit = _decode_value(OffsetCommitValue, value)
        if commit is not None and commit.committer is not None:
            commit.committer = sys.intern(commit.committer)  # Few principals commit many offsets.
        return OffsetCommit(codec_for(OffsetCommitKey, 0).decode(key, _INT16.size, len(key)), commit)
    if kind == GROUP_METADATA_TYPE:
        group = codec_for(GroupMetadataKey, 0).decode(key, _INT16.size, len(key)).group
        return GroupMetadata(group, _decode_value(GroupMetadataValue, value))
    return decode_change(key, value) or decode_share_change(key, value)


def _decode_value(message: type[V], value: bytes | None) -> V | None:
    if value is None:
        return None
    if len(value) < _INT16.size:
        text = f"{message.__name__} without a version"
        raise ProtocolError(text)
    version = _INT16.unpack_from(value)[0]
    if version not in message.VERSIONS:
        text = f"{message.__name__} of version {version}, which isn't known"
        raise ProtocolError(text)
    return codec_for(message, version).decode(value, _INT16.size, len(value))
