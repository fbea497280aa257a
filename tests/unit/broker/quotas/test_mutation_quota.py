"""What a quota of changed partitions lets in, by API and version."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.network.routing.routes import ChangedPartitions
from lowtide.broker.quotas.mutation_quota import CREATIONS, DELETIONS, GROWTH, add_refused, admit, costs_of
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from lowtide.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

TEN = SimpleNamespace(partitions=range(10))
IMAGE: Any = SimpleNamespace(topics={"ten": TEN}, topic_names={b"i" * 16: "ten"})
REFUSED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class Rate:
    """What is left, and what was taken of it."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int, force: bool) -> int:
        if self.left <= 0 and not force:
            return 1_500
        self.left -= count
        return 700 if force and self.left < 0 else 0


def creation(name: str, partitions: int = -1, assignments: int = 0) -> CreatableTopic:
    rows = [CreatableReplicaAssignment(partition_index=number, broker_ids=[0]) for number in range(assignments)]
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, assignments=rows, configs=[])


def test_creations_cost_their_partitions() -> None:
    request = CreateTopicsRequest(
        topics=[creation("a", 5), creation("b"), creation("c", -1, 3)], timeout_ms=1, validate_only=False
    )
    assert [count for _, count in costs_of(CREATIONS, request, 7, IMAGE, 4)] == [5, 4, 3]
    request.validate_only = True
    assert [count for _, count in costs_of(CREATIONS, request, 7, IMAGE, 4)] == [0, 0, 0]


def test_growth_costs_what_is_added() -> None:
    rows = [CreatePartitionsTopic(name=name, count=12, assignments=None) for name in ("ten", "unknown")]
    request = CreatePartitionsRequest(topics=rows, timeout_ms=1, validate_only=False)
    assert [count for _, count in costs_of(GROWTH, request, 3, IMAGE, 4)] == [2, 0]


def test_what_no_request_may_ask_for_costs_nothing() -> None:
    """It is refused; its cost would be a debt of days for all clients that share the quota."""
    rows = [CreatePartitionsTopic(name="ten", count=2**31 - 1, assignments=None)]
    growth = CreatePartitionsRequest(topics=rows, timeout_ms=1, validate_only=False)
    assert [count for _, count in costs_of(GROWTH, growth, 3, IMAGE, 4)] == [0]
    made = CreateTopicsRequest(topics=[creation("a", 2**31 - 1)], timeout_ms=1, validate_only=False)
    assert [count for _, count in costs_of(CREATIONS, made, 7, IMAGE, 4)] == [0]


def test_deletions_cost_what_is_lost_by_name_and_by_id() -> None:
    by_name = DeleteTopicsRequest(topic_names=["ten", "unknown"], timeout_ms=1)
    assert [count for _, count in costs_of(DELETIONS, by_name, 5, IMAGE, 4)] == [10, 0]
    by_id = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=None, topic_id=b"i" * 16), DeleteTopicState(name=None, topic_id=b"j" * 16)],
        timeout_ms=1,
    )
    assert [count for _, count in costs_of(DELETIONS, by_id, 6, IMAGE, 4)] == [10, 0]


@pytest.mark.parametrize(("version", "carried_out", "refused"), [(6, ["a", "b"], ["c"]), (5, ["a", "b", "c"], [])])
def test_a_version_that_can_tell_is_refused_and_others_wait(
    version: int, carried_out: list[str], refused: list[str]
) -> None:
    request = CreateTopicsRequest(topics=[creation(name, 5) for name in "abc"], timeout_ms=1, validate_only=False)
    rate = Rate(7)
    admitted = admit(CREATIONS, request, version, costs_of(CREATIONS, request, version, IMAGE, 4), rate.take)
    assert [topic.name for topic in admitted.request.topics] == carried_out
    assert [(row.name, row.error_code) for row in admitted.refused] == [(name, REFUSED) for name in refused]
    assert admitted.wait_ms > 0


@pytest.mark.parametrize(
    ("changes", "request_", "version", "answer", "field"),
    [
        (
            CREATIONS,
            CreateTopicsRequest(topics=[creation("a", 5)], timeout_ms=1, validate_only=False),
            7,
            CreateTopicsResponse(topics=[]),
            "topics",
        ),
        (
            GROWTH,
            CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name="ten", count=12, assignments=None)],
                timeout_ms=1,
                validate_only=False,
            ),
            3,
            CreatePartitionsResponse(throttle_time_ms=0, results=[]),
            "results",
        ),
        (
            DELETIONS,
            DeleteTopicsRequest(topic_names=["ten"], timeout_ms=1),
            5,
            DeleteTopicsResponse(throttle_time_ms=0, responses=[]),
            "responses",
        ),
        (
            DELETIONS,
            DeleteTopicsRequest(topics=[DeleteTopicState(name="ten", topic_id=bytes(16))], timeout_ms=1),
            6,
            DeleteTopicsResponse(throttle_time_ms=0, responses=[]),
            "responses",
        ),
    ],
)
def test_each_answer_has_rows_for_what_was_not_let_in(
    changes: ChangedPartitions, request_: Any, version: int, answer: Any, field: str
) -> None:
    admitted = admit(changes, request_, version, costs_of(changes, request_, version, IMAGE, 4), Rate(0).take)
    (row,) = getattr(add_refused(changes, answer, admitted.refused), field)
    assert row.error_code == REFUSED
    assert getattr(answer, field) == []
    left = admitted.request.topic_names if field == "responses" and version < 6 else admitted.request.topics
    assert left == []
