"""The records of streams groups: the same bytes as Kafka's, and nothing but them."""

from __future__ import annotations

import pytest

from lowtide.protocol.consumer_group_records import TargetAssignmentEpoch
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.group_records import decode_record
from lowtide.protocol.messages.streams_group_heartbeat import (
    HeartbeatCopartitionGroup,
    HeartbeatSubtopology,
    StreamsEndpoint,
    StreamsKeyValue,
    StreamsTaskIds,
    StreamsTopicInfo,
)
from lowtide.protocol.streams_group_records import (
    CurrentTaskIds,
    StreamsGroupChange,
    StreamsGroupEpoch,
    StreamsGroupTopology,
    StreamsMemberCurrent,
    StreamsMemberMetadata,
    StreamsMemberTarget,
    StreamsRecordType,
    encode_streams_change,
)


def ids(name: str, *numbers: int) -> StreamsTaskIds:
    return StreamsTaskIds(subtopology_id=name, partitions=list(numbers))


def current(name: str, numbers: list[int], epochs: list[int] | None = None) -> CurrentTaskIds:
    return CurrentTaskIds(subtopology_id=name, partitions=numbers, assignment_epochs=epochs)


KAFKA = [
    (
        StreamsGroupChange(
            StreamsRecordType.MEMBER,
            "g",
            "m",
            StreamsMemberMetadata(
                instance_id="i",
                rack_id="r",
                client_id="c",
                client_host="/h",
                rebalance_timeout_ms=1_000,
                topology_epoch=2,
                process_id="p",
                user_endpoint=StreamsEndpoint(host="e", port=40_000),
                client_tags=[StreamsKeyValue(key="zone", value="z")],
            ),
        ),
        "001300016700016d",
        "0000026902720263032f68000003e80000000202700102659c400002057a6f6e65027a0000",
    ),
    (
        StreamsGroupChange(
            StreamsRecordType.CURRENT,
            "g",
            "m",
            StreamsMemberCurrent(
                member_epoch=5,
                previous_member_epoch=4,
                state=2,
                active_tasks=[current("0", [1, 2], [5, 3])],
                standby_tasks=[current("1", [0])],
                warmup_tasks=[current("1", [2])],
                active_tasks_pending_revocation=[current("1", [7], [3])],
                standby_tasks_pending_revocation=[],
                warmup_tasks_pending_revocation=[],
            ),
        ),
        "001600016700016d",
        (
            "000000000005000000040202023003000000010000000201000903000000050000000302023102000000000002023102000000020002023102"
            "000000070100050200000003010100"
        ),
    ),
    (
        StreamsGroupChange(
            StreamsRecordType.TARGET,
            "g",
            "m",
            StreamsMemberTarget(active_tasks=[ids("0", 1, 2)], standby_tasks=[ids("1", 0)], warmup_tasks=[]),
        ),
        "001500016700016d",
        "0000020230030000000100000002000202310200000000000100",
    ),
    (
        StreamsGroupChange(
            StreamsRecordType.TARGET_EPOCH,
            "g",
            "",
            TargetAssignmentEpoch(assignment_epoch=6, assignment_timestamp=77),
        ),
        "0014000167",
        "000000000006010008000000000000004d",
    ),
    (
        StreamsGroupChange(
            StreamsRecordType.GROUP,
            "g",
            "",
            StreamsGroupEpoch(
                epoch=6,
                metadata_hash=99,
                validated_topology_epoch=2,
                last_assignment_configs=[StreamsKeyValue(key="num.standby.replicas", value="1")],
            ),
        ),
        "0011000167",
        "000000000006000000000000006302000400000002011902156e756d2e7374616e6462792e7265706c69636173023100",
    ),
    (
        StreamsGroupChange(
            StreamsRecordType.TOPOLOGY,
            "g",
            "",
            StreamsGroupTopology(
                epoch=2,
                subtopologies=[
                    HeartbeatSubtopology(
                        subtopology_id="0",
                        source_topics=["t"],
                        source_topic_regex=[],
                        state_changelog_topics=[
                            StreamsTopicInfo(
                                name="c",
                                partitions=0,
                                replication_factor=3,
                                topic_configs=[StreamsKeyValue(key="cleanup.policy", value="compact")],
                            )
                        ],
                        repartition_sink_topics=["x"],
                        repartition_source_topics=[
                            StreamsTopicInfo(name="r", partitions=4, replication_factor=0, topic_configs=[])
                        ],
                        copartition_groups=[
                            HeartbeatCopartitionGroup(
                                source_topics=[0], source_topic_regex=[], repartition_source_topics=[0]
                            )
                        ],
                    )
                ],
            ),
        ),
        "0017000167",
        (
            "00000000000202023002027401020263000000000003020f636c65616e75702e706f6c69637908636f6d7061637400000202780202720000"
            "0004000001000202000001020000000000"
        ),
    ),
    (StreamsGroupChange(StreamsRecordType.MEMBER, "g", "m", None), "001300016700016d", None),
    (StreamsGroupChange(StreamsRecordType.TOPOLOGY, "g", "", None), "0017000167", None),
]
"""Changes with the keys and values that Kafka 4.4.0's `GroupCoordinatorRecordSerde` writes for them, in hex."""


@pytest.mark.parametrize(("change", "key", "value"), KAFKA)
def test_records_are_those_of_kafka(change: StreamsGroupChange, key: str, value: str | None) -> None:
    record = bytes.fromhex(key), None if value is None else bytes.fromhex(value)
    assert encode_streams_change(change) == record
    assert decode_record(*record) == change


@pytest.mark.parametrize(("change", "key", "value"), [row for row in KAFKA if row[2] is not None])
def test_a_record_that_is_cut_short_is_refused(change: StreamsGroupChange, key: str, value: str) -> None:
    for length in range(len(value) // 2):
        with pytest.raises(ProtocolError):
            decode_record(bytes.fromhex(key), bytes.fromhex(value)[:length])
