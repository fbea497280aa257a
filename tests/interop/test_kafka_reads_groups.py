"""Kafka's own tool reads the records of consumer groups, as Kafka's coordinator would."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupChange,
    CurrentTopicPartitions,
    GroupEpoch,
    MemberCurrent,
    MemberSubscription,
    MemberTarget,
    PatternTopics,
    RecordType,
    TargetAssignmentEpoch,
    TargetTopicPartitions,
    encode_change,
)

from .kafka import TOOL_TIMEOUT_S, java

pytestmark = pytest.mark.interop

TOPIC_ID = bytes(15) + b"\1"
SUBSCRIPTION = MemberSubscription(
    instance_id="i",
    rack_id=None,
    client_id="c",
    client_host="/h",
    subscribed_topic_names=["t"],
    subscribed_topic_regex="t.*",
    rebalance_timeout_ms=9,
    server_assignor="range",
    classic_member_metadata=ClassicMemberMetadata(
        session_timeout_ms=5, supported_protocols=[ClassicProtocol(name="range", metadata=b"xy")]
    ),
)
CURRENT = MemberCurrent(
    member_epoch=3,
    previous_member_epoch=2,
    state=1,
    assigned_partitions=[CurrentTopicPartitions(topic_id=TOPIC_ID, partitions=[0, 1], assignment_epochs=[2, 3])],
    partitions_pending_revocation=[],
)
TARGET = MemberTarget(topic_partitions=[TargetTopicPartitions(topic_id=TOPIC_ID, partitions=[0])])
CHANGES = [
    ConsumerGroupChange(RecordType.GROUP, "g", "", GroupEpoch(epoch=3, metadata_hash=-5)),
    ConsumerGroupChange(RecordType.TOPICS, "g", "", None),
    ConsumerGroupChange(RecordType.MEMBER, "g", "m", SUBSCRIPTION),
    ConsumerGroupChange(
        RecordType.TARGET_EPOCH, "g", "", TargetAssignmentEpoch(assignment_epoch=3, assignment_timestamp=7)
    ),
    ConsumerGroupChange(RecordType.TARGET, "g", "m", TARGET),
    ConsumerGroupChange(RecordType.CURRENT, "g", "m", CURRENT),
    ConsumerGroupChange(RecordType.PATTERN, "g", "t.*", PatternTopics(topics=["t"], version=4, timestamp=9)),
]


def test_dump_log_segments_prints_what_was_written(jars: Path, tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(build_batch([(1, *encode_change(change), ()) for change in CHANGES]))
    command = java(jars, "org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", str(path))
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=True)
    told = [(json.loads(key), payload) for key, payload in re.findall(r" key: (\{.*?\}\}) payload: (.*)", done.stdout)]
    assert [int(key["type"]) for key, _ in told] == [int(change.kind) for change in CHANGES]
    assert {key["data"]["groupId"] for key, _ in told} == {"g"}
    values = [None if payload == "<DELETE>" else json.loads(payload)["data"] for _, payload in told]
    group, topics, member, target_epoch, target, current, pattern = values
    assert (group, topics) == ({"epoch": 3, "metadataHash": -5}, None)
    assert (
        member["instanceId"],
        member["subscribedTopicRegex"],
        member["classicMemberMetadata"]["sessionTimeoutMs"],
    ) == ("i", "t.*", 5)
    assert [protocol["name"] for protocol in member["classicMemberMetadata"]["supportedProtocols"]] == ["range"]
    assert target_epoch == {"assignmentEpoch": 3, "assignmentTimestamp": 7}
    assert [row["partitions"] for row in target["topicPartitions"]] == [[0]]
    assert (current["memberEpoch"], current["previousMemberEpoch"], current["state"]) == (3, 2, 1)
    assert [(row["partitions"], row["assignmentEpochs"]) for row in current["assignedPartitions"]] == [([0, 1], [2, 3])]
    assert pattern == {"topics": ["t"], "version": 4, "timestamp": 9}
