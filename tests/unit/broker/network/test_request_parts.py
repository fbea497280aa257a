"""A request of very many rows is split into several, and their responses are merged: no row is lost or answered twice."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from lowtide.broker.network.packed_part import PackedPart
from lowtide.broker.network.repeated_rows import REPEATED_MAX
from lowtide.broker.network.request_parts import (
    CUTS,
    PLAIN_BYTES_MIN,
    PLAIN_FACTOR,
    CutRequest,
    Split,
    cut_for,
    split_for,
)
from lowtide.broker.pending import NO_ANSWER
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.constructs import CountedArray, Entity
from lowtide.protocol.errors import ErrorCode, ProtocolError, TooManyRowsError
from lowtide.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from lowtide.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from lowtide.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from lowtide.protocol.row_decoder import RowLimits
from lowtide.protocol.row_encoder import CHUNK_BYTES
from lowtide.protocol.schema import wire_form

MOST = 10
VERSION = 1
LIMITS = RowLimits(100_000, 1_000, MOST)


def split(key: ApiKey, version: int) -> Split:
    found = split_for(key, version)
    assert found is not None
    return found


def cut(key: ApiKey, version: int, request: Any) -> CutRequest:
    frame = codec_for(API[key].request, version).encode(request)
    return CutRequest(split(key, version), (b"head" + frame, 4, 4 + len(frame)), LIMITS, lambda: 1)


def parts_of(key: ApiKey, version: int, request: Any) -> list[Any]:
    reading = cut(key, version, request)
    finish(reading.look())
    return [part for part in reading.parts() if part is not None]


def finish(steps: Any) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def offsets(*topics: tuple[str, range]) -> ListOffsetsRequest:
    rows = [
        (name, [ListOffsetsPartition(partition_index=number, timestamp=-1) for number in numbers])
        for name, numbers in topics
    ]
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in rows]
    )


def named(request: ListOffsetsRequest) -> list[tuple[str, int]]:
    return [(topic.name, row.partition_index) for topic in request.topics for row in topic.partitions]


def answered(request: ListOffsetsRequest) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        throttle_time_ms=0,
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=row.partition_index, error_code=0)
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


@pytest.mark.parametrize(
    "topics",
    [
        [("a", range(95))],
        [("a", range(3)), ("b", range(40)), ("c", range(1))],
        [(f"t{n}", range(1)) for n in range(50)],
        [("a", range(9)), ("empty", range(0)), ("b", range(9))],
        [],
    ],
)
def test_every_row_is_in_one_part_and_the_answer_has_the_topics_of_the_request(topics: list[tuple[str, range]]) -> None:
    wanted = offsets(*topics)
    parts = parts_of(ApiKey.LIST_OFFSETS, VERSION, wanted)
    assert [row for part in parts for row in named(part)] == named(wanted)
    assert max(len(named(part)) + len(part.topics) for part in parts) <= MOST + 1
    joined = split(ApiKey.LIST_OFFSETS, VERSION).joined(100, lambda: 1)
    for part in parts:
        finish(joined.add(answered(part)))
    assert b"".join(joined.finish()) == codec_for(ListOffsetsResponse, VERSION).encode(answered(wanted))


@pytest.mark.parametrize(
    ("request_bytes", "at_once", "plain_max"),
    [(150_000, 1, PLAIN_FACTOR * 150_000), (1_000, 1, PLAIN_BYTES_MIN), (1_000, 50, PLAIN_BYTES_MIN // 50)],
    ids=["large", "small", "fifty"],
)
def test_an_answer_much_larger_than_its_request_is_packed_until_it_is_sent(
    request_bytes: int, at_once: int, plain_max: int
) -> None:
    wanted = answered(offsets(("a", range(50_000))))
    joined = split(ApiKey.LIST_OFFSETS, VERSION).joined(request_bytes, lambda: at_once)
    for start in range(0, 50_000, 100):
        finish(joined.add(answered(offsets(("a", range(start, start + 100))))))
    parts = joined.finish()
    packed = [part for part in parts if isinstance(part, PackedPart)]
    plain_bytes = sum(len(part) for part in parts if not isinstance(part, PackedPart))
    assert plain_max - 2 * CHUNK_BYTES <= plain_bytes <= plain_max + 2 * CHUNK_BYTES
    assert sum(len(part.packed) for part in packed) < sum(map(len, packed)) / 4
    whole = b"".join(part.content() if isinstance(part, PackedPart) else part for part in parts)  # type: ignore[misc,arg-type]
    assert whole == codec_for(ListOffsetsResponse, VERSION).encode(wanted)


def test_rows_that_name_the_same_stay_together() -> None:
    """The first and the last of them: a handler detects the duplicate, or uses the last row."""
    wanted = offsets(("a", range(30)), ("b", range(30)), ("a", range(5)), ("a", range(5)))
    wanted.topics[3].partitions[2].timestamp = 77
    seen = []
    for part in parts_of(ApiKey.LIST_OFFSETS, VERSION, wanted):
        rows = [(topic.name, row.partition_index, row.timestamp) for topic in part.topics for row in topic.partitions]
        seen += rows
        for name, number in {row[:2] for row in rows}:
            times = [time for *row, time in rows if row == [name, number]]
            assert len(times) == (2 if name == "a" and number < 5 else 1)
            assert times[-1] == (77 if (name, number) == ("a", 2) else -1)
    assert len(seen) == 65


def test_names_that_are_repeated_are_bounded() -> None:
    names = [f"t{number}" for number in range(REPEATED_MAX)]
    parts = parts_of(ApiKey.DELETE_TOPICS, 1, DeleteTopicsRequest(topic_names=names * 3, timeout_ms=1))
    assert sorted(name for part in parts for name in part.topic_names) == sorted(names * 2)
    with pytest.raises(TooManyRowsError, match="name what others name"):
        finish(
            cut(ApiKey.DELETE_TOPICS, 1, DeleteTopicsRequest(topic_names=[*names, "one more"] * 2, timeout_ms=1)).look()
        )


def test_names_with_the_same_mark_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide.broker.network.repeated_rows._MARK", 0x3F)
    names = [f"t{number}" for number in range(500)]
    parts = parts_of(ApiKey.DELETE_TOPICS, 1, DeleteTopicsRequest(topic_names=[*names, "t7"], timeout_ms=1))
    assert [name for part in parts for name in part.topic_names] == [*names[:8], "t7", *names[8:]]


def test_many_names_are_noted_and_found_again() -> None:
    names = [f"t{number}" for number in range(9_000)]
    parts = parts_of(ApiKey.DELETE_TOPICS, 1, DeleteTopicsRequest(topic_names=[*names, "t7", "t8999"], timeout_ms=1))
    assert [name for part in parts for name in part.topic_names] == [*names[:8], "t7", *names[8:], "t8999"]


def test_a_row_that_cannot_be_cut_and_has_too_many_within_is_refused() -> None:
    configs = [CreatableTopicConfig(name="c", value=None)] * 1001
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=configs)
    request = CreateTopicsRequest(topics=[topic, topic], timeout_ms=1, validate_only=False)
    with pytest.raises(TooManyRowsError, match="1000 rows that belong together"):
        finish(cut(ApiKey.CREATE_TOPICS, 2, request).look())
    configs.pop()
    assert finish(cut(ApiKey.CREATE_TOPICS, 2, request).look()) == 2_002


def test_a_request_that_is_cut_short_is_found_before_a_part_is_executed() -> None:
    frame = codec_for(ListOffsetsRequest, VERSION).encode(offsets(("a", range(95))))[:-1]
    with pytest.raises(ProtocolError):
        finish(CutRequest(split(ApiKey.LIST_OFFSETS, VERSION), (frame, 0, len(frame)), LIMITS, lambda: 1).look())


def test_bytes_behind_a_request_are_no_part_of_it() -> None:
    frame = codec_for(ListOffsetsRequest, VERSION).encode(offsets(("a", range(95))))
    request = CutRequest(split(ApiKey.LIST_OFFSETS, VERSION), (frame + b"x", 0, len(frame) + 1), LIMITS, lambda: 1)
    assert finish(request.look()) == 96
    assert (request.has_surplus, request.size) == (True, len(frame))


@pytest.mark.parametrize("silent", [None, NO_ANSWER])
def test_an_answer_for_the_whole_request_is_the_answer(silent: object) -> None:
    make = API[ApiKey.ELECT_LEADERS].response
    fine = make(throttle_time_ms=0, error_code=0, replica_election_results=[])
    failed = make(throttle_time_ms=0, error_code=ErrorCode.NOT_CONTROLLER, replica_election_results=[])
    for answers, wanted in (([fine, failed, fine, silent], failed), ([fine, silent, failed], silent)):
        joined = split(ApiKey.ELECT_LEADERS, 2).joined(100, lambda: 1)
        for answer in answers:
            finish(joined.add(answer))
        assert joined.is_replaced
        assert joined.instead is wanted


@pytest.mark.parametrize("key", sorted(CUTS), ids=lambda key: key.name)
def test_the_levels_of_a_cut_are_arrays_of_request_and_answer(key: ApiKey) -> None:
    """In every version with rows to split, the arrays that the table names exist."""
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
            arrays: Any = dict(request.fields)[asked], dict(answer.fields)[told]
            assert all(isinstance(array, CountedArray) for array in arrays)
            request, answer = (array.element for array in arrays)


def test_what_belongs_together_is_checked_before_a_part_is_executed() -> None:
    """Also within rows of an inner level: the replicas of one partition."""
    replicas = [[1], [2], list(range(2_000))]
    partitions = [ReassignablePartition(partition_index=number, replicas=row) for number, row in enumerate(replicas)]
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=1, topics=[ReassignableTopic(name="t", partitions=partitions)]
    )
    with pytest.raises(TooManyRowsError):
        finish(cut(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request).look())


def test_a_request_of_too_many_rows_goes_without_the_collector() -> None:
    """It was in a cycle with its error: three of 12 MB stayed in memory until a collection of all generations."""
    frame = codec_for(API[ApiKey.LIST_OFFSETS].request, VERSION).encode(offsets(("t", range(MOST + 1))))
    reading = CutRequest(
        split(ApiKey.LIST_OFFSETS, VERSION), (frame, 0, len(frame)), RowLimits(MOST, MOST, MOST), lambda: 1
    )
    gone = weakref.ref(reading)
    gc.collect()
    gc.disable()
    try:
        try:
            finish(reading.look())
        except TooManyRowsError as error:
            assert error.rows_max == MOST
        del reading
        assert gone() is None
    finally:
        gc.enable()
