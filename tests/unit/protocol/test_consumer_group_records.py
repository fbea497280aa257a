"""The records of groups that the broker assigns: byte for byte what Apache Kafka writes and reads."""

from __future__ import annotations

import pytest

from lowtide.protocol.compiler import codec_for
from lowtide.protocol.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupChange,
    CurrentTopicPartitions,
    GroupEpoch,
    MemberCurrent,
    MemberSubscription,
    MemberTarget,
    PartitionRacks,
    PatternTopics,
    RecordType,
    SubscribedTopics,
    TargetAssignmentEpoch,
    TargetTopicPartitions,
    TopicMetadata,
    decode_change,
    encode_change,
)
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.group_records import decode_record
from tests.reference_codec import reference_codec

TOPIC_ID = bytes(range(16))
SUBSCRIPTION = MemberSubscription(
    instance_id=None,
    rack_id="r",
    client_id="c",
    client_host="/h",
    subscribed_topic_names=["t"],
    subscribed_topic_regex=None,
    server_assignor=None,
)
CLASSIC = ClassicMemberMetadata(
    session_timeout_ms=5, supported_protocols=[ClassicProtocol(name="range", metadata=b"xy")]
)
WRITTEN = {
    "a group": (
        ConsumerGroupChange(RecordType.GROUP, "g", "", GroupEpoch(epoch=3)),
        "0003 0001 67",
        "0000 00000003 00",
    ),
    "a group and its topics' hash": (
        ConsumerGroupChange(RecordType.GROUP, "g", "", GroupEpoch(epoch=3, metadata_hash=-2)),
        "0003 0001 67",
        "0000 00000003 01 00 08 fffffffffffffffe",
    ),
    "topics, of old": (
        ConsumerGroupChange(
            RecordType.TOPICS,
            "g",
            "",
            SubscribedTopics(
                topics=[
                    TopicMetadata(
                        topic_id=TOPIC_ID,
                        topic_name="t",
                        num_partitions=1,
                        partition_metadata=[PartitionRacks(partition=0, racks=["r"])],
                    )
                ]
            ),
        ),
        "0004 0001 67",
        "0000 02 000102030405060708090a0b0c0d0e0f 02 74 00000001 02 00000000 02 02 72 00 00 00",
    ),
    "a member": (
        ConsumerGroupChange(RecordType.MEMBER, "g", "m", SUBSCRIPTION),
        "0005 0001 67 0001 6d",
        "0000 00 02 72 02 63 03 2f68 02 02 74 00 ffffffff 00 00",
    ),
    "a member with the classic protocol: a tagged struct that may be null, with the mark of a struct": (
        ConsumerGroupChange(
            RecordType.MEMBER,
            "g",
            "m",
            MemberSubscription(
                instance_id="i",
                rack_id=None,
                client_id="",
                client_host="",
                subscribed_topic_names=[],
                subscribed_topic_regex="",
                rebalance_timeout_ms=9,
                server_assignor="range",
                classic_member_metadata=CLASSIC,
            ),
        ),
        "0005 0001 67 0001 6d",
        "0000 02 69 00 01 01 01 01 00000009 06 72616e6765 01 00 11 01 00000005 02 06 72616e6765 03 7879 00 00",
    ),
    "the epoch of a target": (
        ConsumerGroupChange(
            RecordType.TARGET_EPOCH, "g", "", TargetAssignmentEpoch(assignment_epoch=3, assignment_timestamp=7)
        ),
        "0006 0001 67",
        "0000 00000003 01 00 08 0000000000000007",
    ),
    "a target": (
        ConsumerGroupChange(
            RecordType.TARGET,
            "g",
            "m",
            MemberTarget(topic_partitions=[TargetTopicPartitions(topic_id=TOPIC_ID, partitions=[0, 2])]),
        ),
        "0007 0001 67 0001 6d",
        "0000 02 000102030405060708090a0b0c0d0e0f 03 00000000 00000002 00 00",
    ),
    "the partitions of a member, with the epochs that newer coordinators write": (
        ConsumerGroupChange(
            RecordType.CURRENT,
            "g",
            "m",
            MemberCurrent(
                member_epoch=2,
                previous_member_epoch=1,
                state=1,
                assigned_partitions=[CurrentTopicPartitions(topic_id=TOPIC_ID, partitions=[4])],
                partitions_pending_revocation=[
                    CurrentTopicPartitions(topic_id=TOPIC_ID, partitions=[5], assignment_epochs=[1])
                ],
            ),
        ),
        "0008 0001 67 0001 6d",
        (
            "0000 00000002 00000001 01 02 000102030405060708090a0b0c0d0e0f 02 00000004 00"
            " 02 000102030405060708090a0b0c0d0e0f 02 00000005 01 00 05 02 00000001 00"
        ),
    ),
    "a pattern": (
        ConsumerGroupChange(RecordType.PATTERN, "g", "t.*", PatternTopics(topics=["t"], version=4, timestamp=9)),
        "0010 0001 67 0003 742e2a",
        "0000 02 02 74 0000000000000004 0000000000000009 00",
    ),
}


@pytest.mark.parametrize("what", WRITTEN)
def test_records_are_written_and_read(what):
    change, key, value = WRITTEN[what]
    assert encode_change(change) == (bytes.fromhex(key), bytes.fromhex(value))
    assert decode_record(bytes.fromhex(key), bytes.fromhex(value)) == change


@pytest.mark.parametrize("kind", RecordType)
def test_a_tombstone_has_no_value(kind):
    name = "m" if kind in (RecordType.MEMBER, RecordType.TARGET, RecordType.CURRENT, RecordType.PATTERN) else ""
    change = ConsumerGroupChange(kind, "g", name, None)
    key, value = encode_change(change)
    assert value is None
    assert decode_record(key, None) == change


def test_records_of_other_types_are_not_known():
    """12 is Kafka's type of share groups' members; 18 was never used."""
    assert decode_change(bytes.fromhex("000a 0001 67 0001 6d"), b"\0\0") is None
    assert decode_record(bytes.fromhex("0012 0001 67"), b"\0\0") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("0005 0001 67", "0000"),
        ("0003 0001 67", "0001 00000003 00"),
        ("0003 0001 67", "00"),
        ("0003 0001 67", "0000 000000"),
        ("0003 0001 67 00", "0000 00000003 00"),
    ],
    ids=["a member without a name", "an unknown version", "no version", "cut short", "something behind the key"],
)
def test_an_unreadable_record_is_an_error(key, value):
    with pytest.raises(ProtocolError):
        decode_record(bytes.fromhex(key), bytes.fromhex(value))


@pytest.mark.parametrize("what", WRITTEN)
def test_the_compiled_codec_is_the_reference(what):
    change = WRITTEN[what][0]
    assert change.value is not None
    kind = type(change.value)
    assert reference_codec(kind, 0).encode(change.value) == codec_for(kind, 0).encode(change.value)
