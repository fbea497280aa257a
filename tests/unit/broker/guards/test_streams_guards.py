"""Who may ask about streams groups: members READ the group, DESCRIBE the topology's topics, CREATE internal ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.authorizer.resources import CLUSTER, Operation, topic
from lowtide.broker.guards import streams_groups as guards
from lowtide.broker.handlers import streams_group_heartbeat as handler
from lowtide.broker.security.principal import ANONYMOUS
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.streams_group_describe import (
    DescribedStreamsGroup,
    DescribedSubtopology,
    DescribedTopology,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from lowtide.protocol.messages.streams_group_heartbeat import (
    HeartbeatStatus,
    HeartbeatSubtopology,
    HeartbeatTopology,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsStatus,
    StreamsTopicInfo,
)

from .asking import Only
from .test_share_guards import asker

READ, DESCRIBE, CREATE = Operation.READ, Operation.DESCRIBE, Operation.CREATE


def internal(name: str) -> StreamsTopicInfo:
    return StreamsTopicInfo(name=name, partitions=0, replication_factor=0, topic_configs=[])


def heartbeat(source: str, *allowed: tuple[Operation, str]) -> ErrorCode | None:
    row = HeartbeatSubtopology(
        subtopology_id="0",
        source_topics=[source],
        source_topic_regex=[],
        state_changelog_topics=[internal("c")],
        repartition_sink_topics=["s"],
        repartition_source_topics=[internal("r")],
        copartition_groups=[],
    )
    request = StreamsGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        endpoint_information_epoch=0,
        topology=HeartbeatTopology(epoch=0, subtopologies=[row]),
    )
    verdict = guards.streams_group_heartbeat(request, asker(*allowed))
    return None if verdict.request is request else ErrorCode(verdict.answer.error_code)


def test_a_member_reads_the_group_and_sees_all_topics_of_its_topology() -> None:
    group, topics = (READ, "g"), [(DESCRIBE, name) for name in "tscr"]
    assert heartbeat("t", group, *topics) is None
    assert heartbeat("t", *topics) == ErrorCode.GROUP_AUTHORIZATION_FAILED
    for hidden in topics:
        assert heartbeat("t", group, *(each for each in topics if each != hidden)) == (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )


def test_names_are_checked_after_the_group_and_before_the_topics() -> None:
    assert heartbeat("a b", (READ, "g")) == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert heartbeat("__consumer_offsets", (READ, "g")) == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert heartbeat("a b") == ErrorCode.GROUP_AUTHORIZATION_FAILED


def described(group_id: str, **topics: Any) -> DescribedStreamsGroup:
    given = {
        "source_topics": [],
        "repartition_sink_topics": [],
        "state_changelog_topics": [],
        "repartition_source_topics": [],
    }
    rows = [DescribedSubtopology(subtopology_id="0", **(given | topics))]
    return DescribedStreamsGroup(group_id=group_id, topology=DescribedTopology(epoch=0, subtopologies=rows))


@pytest.mark.parametrize(
    "hidden",
    [
        {"source_topics": ["x"]},
        {"repartition_sink_topics": ["x"]},
        {"state_changelog_topics": [internal("x")]},
        {"repartition_source_topics": [internal("x")]},
    ],
)
def test_only_what_may_be_seen_is_described(hidden: dict[str, Any]) -> None:
    request = StreamsGroupDescribeRequest(group_ids=["a", "b", "c"], include_authorized_operations=False)
    client = asker((DESCRIBE, "a"), (DESCRIBE, "b"), (DESCRIBE, "seen"))
    verdict = guards.streams_group_describe(request, client)
    assert verdict.request.group_ids == ["a", "b"]
    answer = StreamsGroupDescribeResponse(groups=[described("a", source_topics=["seen"]), described("b", **hidden)])
    assert verdict.merge is not None
    rows = verdict.merge(answer).groups
    assert [(row.group_id, row.error_code, row.topology is None) for row in rows] == [
        ("c", ErrorCode.GROUP_AUTHORIZATION_FAILED, True),
        ("a", ErrorCode.NONE, False),
        ("b", ErrorCode.TOPIC_AUTHORIZATION_FAILED, True),
    ]


def test_internal_topics_are_created_for_clients_that_may() -> None:
    """On the cluster, or on each topic."""
    specs: Any = {"r": None, "c": None}

    def denied(*allowed: tuple[Operation, Any]) -> list[str]:
        groups: Any = SimpleNamespace(broker=SimpleNamespace(authorizer=Only(*allowed)))
        context: Any = SimpleNamespace(principal=ANONYMOUS)
        return handler._not_allowed(groups, context, specs)

    assert denied((CREATE, CLUSTER)) == []
    assert denied((CREATE, topic("r")), (CREATE, topic("c"))) == []
    assert denied((CREATE, topic("r"))) == ["c"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], [(StreamsStatus.MISSING_INTERNAL_TOPICS, "why")]),
        (
            [
                HeartbeatStatus(status_code=StreamsStatus.STALE_TOPOLOGY, status_detail="old"),
                HeartbeatStatus(status_code=StreamsStatus.MISSING_INTERNAL_TOPICS, status_detail="which"),
            ],
            [(StreamsStatus.STALE_TOPOLOGY, "old"), (StreamsStatus.MISSING_INTERNAL_TOPICS, "which; why")],
        ),
    ],
)
def test_the_reason_is_added_to_the_status(before: list[HeartbeatStatus], after: list[tuple[int, str]]) -> None:
    response = handler._with_detail(StreamsGroupHeartbeatResponse(status=before), "why")
    assert [(row.status_code, row.status_detail) for row in response.status or ()] == after
