"""The records of `__consumer_offsets`: byte for byte what Apache Kafka writes, and all versions of them are read."""

from __future__ import annotations

import random
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.protocol.compiler import codec_for
from lowtide.protocol.consumer_protocol import subscribed_topics
from lowtide.protocol.coordinator_records import GroupRecordKey
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.group_records import (
    GroupMetadata,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommit,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_record,
    encode_group_metadata,
    encode_offset_commit,
    encode_offset_commits,
)
from lowtide.protocol.schema import ApiMessage, Int32, Int64, String, Tagged, Uuid, versions
from tests.reference_codec import reference_codec

TOPIC_ID = bytes(range(16))
MEMBER = MemberMetadata(
    member_id="m",
    group_instance_id=None,
    client_id="c",
    client_host="/h",
    rebalance_timeout=2,
    session_timeout=1,
    subscription=b"s",
    assignment=b"a",
)
GROUP = GroupMetadataValue(
    protocol_type="consumer", generation=3, protocol="range", leader="m", current_state_timestamp=9, members=[MEMBER]
)


def test_an_offset_with_the_id_of_its_topic():
    """The id is a tagged field: one tag, number 0, sixteen bytes."""
    value = OffsetCommitValue(offset=7, leader_epoch=2, metadata="m", commit_timestamp=9, topic_id=TOPIC_ID)
    key, body = encode_offset_commit("g", "t", 3, value)
    assert key == bytes.fromhex("0001 0001 67 0001 74 00000003")
    assert body == bytes.fromhex("0004 0000000000000007 00000002 02 6d 0000000000000009 01 00 10") + TOPIC_ID
    assert decode_record(key, body) == OffsetCommit(OffsetCommitKey(group="g", topic="t", partition=3), value)


@versions("4", flexible="4+")
class KafkasValue(ApiMessage, kw_only=True):
    """The value without Lowtide's own fields."""

    offset: Int64
    leader_epoch: Int32
    metadata: String
    commit_timestamp: Int64
    topic_id: Annotated[Uuid, Tagged(0, "4+")] = bytes(16)


def test_who_committed_is_skipped_by_readers_that_do_not_know_it():
    """Kafka's and older ones of Lowtide: the fields have tags of their own (KIP-482)."""
    value = OffsetCommitValue(
        offset=7,
        leader_epoch=2,
        metadata="m",
        commit_timestamp=9,
        topic_id=TOPIC_ID,
        committer="User:a",
        may_delete=True,
    )
    key, body = encode_offset_commit("g", "t", 3, value)
    assert body is not None
    assert body.endswith(TOPIC_ID + bytes.fromhex("904e 07 07") + b"User:a" + bytes.fromhex("914e 01 01"))
    assert decode_record(key, body) == OffsetCommit(OffsetCommitKey(group="g", topic="t", partition=3), value)
    found = codec_for(KafkasValue, 4).decode(body, 2, len(body))
    assert (found.offset, found.leader_epoch, found.metadata, found.commit_timestamp, found.topic_id) == (
        7,
        2,
        "m",
        9,
        TOPIC_ID,
    )
    assert encode_offset_commits("g", "t", {3: value}) == [(key, body)]


@settings(deadline=None)
@given(
    group=st.text(max_size=40),
    topic=st.text(max_size=40),
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(-1, 2**63 - 1),
    epoch=st.integers(-1, 2**31 - 1),
    metadata=st.text(max_size=20) | st.integers(120, 140).map("m".__mul__) | st.integers(60, 70).map("ü".__mul__),
    topic_id=st.binary(min_size=16, max_size=16) | st.just(bytes(16)),
)
def test_offsets_are_written_by_hand_as_their_codec_writes_them(
    group: str, topic: str, partition: int, offset: int, epoch: int, metadata: str, topic_id: bytes
):
    """Around the point where the length of the metadata needs a second byte, too."""
    value = OffsetCommitValue(
        offset=offset, leader_epoch=epoch, metadata=metadata, commit_timestamp=offset, topic_id=topic_id
    )
    key, body = encode_offset_commit(group, topic, partition, value)
    assert key[2:] == codec_for(OffsetCommitKey, 0).encode(
        OffsetCommitKey(group=group, topic=topic, partition=partition)
    )
    assert body is not None
    assert body[2:] == codec_for(OffsetCommitValue, 4).encode(value)
    short = OffsetCommitValue(
        offset=offset, leader_epoch=epoch, metadata="", commit_timestamp=offset, topic_id=topic_id
    )
    together = encode_offset_commits(group, topic, {partition: value, partition ^ 1: short})
    assert together == [(key, body), encode_offset_commit(group, topic, partition ^ 1, short)]


def test_an_offset_with_an_expiry_time_is_of_version_1():
    value = OffsetCommitValue(offset=7, metadata="", commit_timestamp=9, expire_timestamp=20)
    key, body = encode_offset_commit("g", "t", 3, value)
    assert encode_offset_commits("g", "t", {3: value}) == [(key, body)]
    assert body == bytes.fromhex("0001 0000000000000007 0000 0000000000000009 0000000000000014")
    assert decode_record(key, body) == OffsetCommit(OffsetCommitKey(group="g", topic="t", partition=3), value)


def test_a_group_and_its_member():
    key, body = encode_group_metadata("g", GROUP)
    assert key == bytes.fromhex("0002 0001 67")
    member = "0001 6d ffff 0001 63 0002 2f68 00000002 00000001 00000001 73 00000001 61"
    assert body == bytes.fromhex(
        f"0003 0008 636f6e73756d6572 00000003 0005 72616e6765 0001 6d 0000000000000009 00000001 {member}"
    )
    assert decode_record(key, body) == GroupMetadata("g", GROUP)


def test_tombstones():
    key, body = encode_offset_commit("g", "t", 3, None)
    assert body is None
    assert decode_record(key, None) == OffsetCommit(OffsetCommitKey(group="g", topic="t", partition=3), None)
    key, body = encode_group_metadata("g", None)
    assert body is None
    assert decode_record(key, None) == GroupMetadata("g", None)


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("kind", [0, 1])
def test_offsets_of_all_versions_are_read(kind: int, version: int):
    """Keys of the types 0 and 1 are the same; values lack the fields that their version does not have."""
    key = bytes((0, kind)) + codec_for(OffsetCommitKey, 0).encode(OffsetCommitKey(group="g", topic="t", partition=3))
    written = OffsetCommitValue(
        offset=7, leader_epoch=2, metadata="m", commit_timestamp=9, expire_timestamp=20, topic_id=TOPIC_ID
    )
    found = decode_record(key, bytes((0, version)) + codec_for(OffsetCommitValue, version).encode(written))
    assert isinstance(found, OffsetCommit)
    assert found.value is not None
    assert (found.value.offset, found.value.metadata, found.value.commit_timestamp) == (7, "m", 9)
    assert found.value.leader_epoch == (2 if version >= 3 else -1)
    assert found.value.expire_timestamp == (20 if version == 1 else -1)
    assert found.value.topic_id == (TOPIC_ID if version == 4 else bytes(16))


@pytest.mark.parametrize("version", range(5))
def test_groups_of_all_versions_are_read(version: int):
    key = bytes((0, 2)) + codec_for(GroupRecordKey, 0).encode(GroupRecordKey(group_id="g"))
    body = bytes((0, version)) + codec_for(GroupMetadataValue, version).encode(GROUP)
    assert body == bytes((0, version)) + reference_codec(GroupMetadataValue, version).encode(GROUP)
    found = decode_record(key, body)
    assert isinstance(found, GroupMetadata)
    assert found.value is not None
    assert found.value.members[0].rebalance_timeout == (2 if version >= 1 else -1)
    assert found.value.current_state_timestamp == (9 if version >= 2 else -1)


@pytest.mark.parametrize("key", [None, b"", b"\x00"])
def test_a_record_without_a_type_is_refused(key: bytes | None):
    with pytest.raises(ProtocolError):
        decode_record(key, b"")


def test_unknown_records_are_distinguished_from_broken_ones():
    assert decode_record(b"\x00\x63\x00\x01g", b"\x00\x00") is None
    key, body = encode_group_metadata("g", GROUP)
    with pytest.raises(ProtocolError, match="version 5"):
        decode_record(key, b"\x00\x05" + body[2:])
    with pytest.raises(ProtocolError):
        decode_record(key, b"\x00")


def test_broken_bytes_raise_nothing_else():
    """A coordinator's log may have any bytes: a broken record is ignored."""
    rng = random.Random(5)
    records = [
        encode_group_metadata("g", GROUP),
        encode_offset_commit("g", "t", 1, OffsetCommitValue(offset=1, metadata="", commit_timestamp=1)),
    ]
    for _ in range(2000):
        key, body = (bytearray(part or b"") for part in rng.choice(records))
        part = rng.choice((key, body))
        part[rng.randrange(len(part))] = rng.randrange(256)
        del body[rng.randrange(len(body) + 1) :]
        try:
            decode_record(bytes(key), bytes(body))
        except ProtocolError:
            continue


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "0000",
        "0000 ffffffff",
        "0000 00000002 0001 61",
        "0000 00000001 ffff",
        "0000 00000001 0001 ff",
        "ffff 00000000",
    ],
)
def test_an_invalid_subscription_is_refused(wrong: str):
    with pytest.raises(ProtocolError):
        subscribed_topics(bytes.fromhex(wrong))


def test_a_subscription_claims_no_more_topics_than_it_has_room_for():
    """Otherwise a few bytes could allocate a list of any length."""
    with pytest.raises(ProtocolError):
        subscribed_topics(bytes.fromhex("0000 7fffffff"))
