"""A request of very many rows is several of a few, and their answers are one: no row is lost, none is answered twice."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.network.request_parts import CUTS, Cut, check_rows, cut_for, cut_request, join_answers
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.errors import ErrorCode, TooManyRowsError
from lowtide.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from lowtide.protocol.primitives import CountedArray, Entity
from lowtide.protocol.schema import wire_form

MOST = 10


def parts_of(request: Any, cut: Cut) -> list[Any]:
    return [part for part in cut_request(request, cut, MOST, 1_000) if part is not None]


def finish(steps: Any) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def offsets(*topics: tuple[str, range]) -> ListOffsetsRequest:
    rows = [(name, [ListOffsetsPartition(partition_index=number, timestamp=-1) for number in numbers]) for name, numbers in topics]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in rows])


def named(request: ListOffsetsRequest) -> list[tuple[str, int]]:
    return [(topic.name, row.partition_index) for topic in request.topics for row in topic.partitions]


def answered(request: ListOffsetsRequest) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        throttle_time_ms=0,
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[ListOffsetsPartitionResponse(partition_index=row.partition_index, error_code=0) for row in topic.partitions],
            )
            for topic in request.topics
        ],
    )


@pytest.mark.parametrize(
    "topics", [[("a", range(95))], [("a", range(3)), ("b", range(40)), ("c", range(1))], [(f"t{n}", range(1)) for n in range(50)]]
)
def test_every_row_is_in_one_part_and_the_answer_has_the_topics_of_the_request(topics: list[tuple[str, range]]) -> None:
    wanted = offsets(*topics)
    rows = named(wanted)
    cut = cut_for(ApiKey.LIST_OFFSETS, 1)
    assert cut is not None
    parts = parts_of(wanted, cut)
    assert [row for part in parts for row in named(part)] == rows
    assert max(len(named(part)) + len(part.topics) for part in parts) <= MOST + 1
    joined = finish(join_answers([answered(part) for part in parts], cut))
    assert joined == answered(offsets(*topics))


def test_rows_that_name_the_same_stay_together() -> None:
    """The first and the last of them: a handler finds it named twice, or takes the last row."""
    wanted = offsets(("a", range(30)), ("b", range(30)), ("a", range(5)), ("a", range(5)))
    wanted.topics[3].partitions[2].timestamp = 77
    cut = cut_for(ApiKey.LIST_OFFSETS, 1)
    assert cut is not None
    for part in parts_of(wanted, cut):
        rows = [(topic.name, row.partition_index, row.timestamp) for topic in part.topics for row in topic.partitions]
        for name, number in {row[:2] for row in rows}:
            times = [time for *row, time in rows if row == [name, number]]
            assert len(times) == (2 if name == "a" and number < 5 else 1)
            assert times[-1] == (77 if (name, number) == ("a", 2) else -1)


def test_a_row_that_cannot_be_cut_and_has_too_many_within_is_refused() -> None:
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[None] * 1001)  # type: ignore[list-item]
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1, validate_only=False)
    cut = cut_for(ApiKey.CREATE_TOPICS, 2)
    assert cut is not None
    with pytest.raises(TooManyRowsError):
        finish(check_rows(request, cut, 1_000))
    topic.configs.pop()
    finish(check_rows(request, cut, 1_000))


def test_an_answer_with_an_error_for_the_whole_request_is_the_answer() -> None:
    cut = cut_for(ApiKey.ELECT_LEADERS, 2)
    assert cut is not None
    make = API[ApiKey.ELECT_LEADERS].response
    fine = make(throttle_time_ms=0, error_code=0, replica_election_results=[])
    failed = make(throttle_time_ms=0, error_code=ErrorCode.NOT_CONTROLLER, replica_election_results=[])
    assert finish(join_answers([fine, failed, fine], cut)) is failed


@pytest.mark.parametrize("key", sorted(CUTS), ids=lambda key: key.name)
def test_the_levels_of_a_cut_are_arrays_of_request_and_answer(key: ApiKey) -> None:
    """In every version that has rows to be cut: what the table says is there."""
    for version in range(API[key].min_version, API[key].max_version + 1):
        cut = cut_for(key, version)
        if cut is None:
            continue
        request: Any = wire_form(API[key].request, version)
        answer: Any = wire_form(API[key].response, version)
        if cut.levels[0][0] not in dict(request.fields):
            assert not any(isinstance(content, CountedArray) for _, content in request.fields)
            continue
        for asked, told in cut.levels:
            assert isinstance(request, Entity)
            assert isinstance(answer, Entity)
            arrays = dict(request.fields)[asked], dict(answer.fields)[told]
            assert all(isinstance(array, CountedArray) for array in arrays)
            request, answer = (array.element for array in arrays)


def test_what_belongs_together_is_looked_at_before_a_part_is_executed() -> None:
    """Also within rows of an inner level: the replicas of one partition."""
    replicas = [[1], [2], list(range(2_000))]
    partitions = [ReassignablePartition(partition_index=number, replicas=row) for number, row in enumerate(replicas)]
    request = AlterPartitionReassignmentsRequest(timeout_ms=1, topics=[ReassignableTopic(name="t", partitions=partitions)])
    cut = cut_for(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0)
    assert cut is not None
    with pytest.raises(TooManyRowsError):
        finish(check_rows(request, cut, 1_000))
