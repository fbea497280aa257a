"""A request of many rows is cut into several, and their answers are joined: no row is lost or answered twice."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import lowtide.broker.handlers
from lowtide.broker.network.routing.request_parts import Cut, joined, parts_of, row_count
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.constructs import CountedArray, Entity
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from lowtide.protocol.messages.fetch import NodeEndpoint
from lowtide.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from lowtide.protocol.messages.offset_delete import OffsetDeleteResponse
from lowtide.protocol.messages.produce import ProduceResponse
from lowtide.protocol.schema import wire_form

MOST = 10
CUT = Cut(levels=(("topics", "topics"), ("partitions", "partitions")))
NAMED = Cut(levels=CUT.levels, names=("name", "partition_index"))


def offsets(*topics: tuple[str, Any]) -> ListOffsetsRequest:
    rows = [
        ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=n, timestamp=-1) for n in numbers])
        for name, numbers in topics
    ]
    return ListOffsetsRequest(replica_id=-1, topics=rows)


def rows_of(message: Any) -> list[tuple[str, int]]:
    return [(topic.name, row.partition_index) for topic in message.topics for row in topic.partitions]


def answered(request: ListOffsetsRequest, throttle_time_ms: int = 0) -> ListOffsetsResponse:
    topics = [
        ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                ListOffsetsPartitionResponse(partition_index=row.partition_index, error_code=0)
                for row in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return ListOffsetsResponse(throttle_time_ms=throttle_time_ms, topics=topics)


@pytest.mark.parametrize(
    "topics",
    [
        [("a", range(95))],
        [("a", range(3)), ("b", range(40)), ("c", range(1))],
        [(f"t{n}", range(1)) for n in range(50)],
        [("a", range(9)), ("empty", range(0)), ("b", range(9))],
    ],
)
@pytest.mark.parametrize("cut", [CUT, NAMED], ids=["rows", "names"])
def test_every_row_is_in_one_part_and_the_answer_has_the_topics_of_the_request(topics: Any, cut: Cut) -> None:
    whole = offsets(*topics)
    parts = list(parts_of(whole, cut, MOST))
    assert [row for part in parts for row in rows_of(part)] == rows_of(whole)
    assert max(len(rows_of(part)) for part in parts) <= MOST
    answers = [answered(part) for part in parts]
    first = answered(parts[0])
    assert joined(answers, cut) == answered(whole)
    assert answers[0] == first, "an answer may be kept by its handler: it isn't changed"


def test_of_rows_with_one_name_the_first_and_the_last_are_in_one_part() -> None:
    """A handler that refuses a repeated name finds it repeated; one for which the last row counts finds that."""
    topics = [("a", [0, *range(1, 30), 0]), ("b", range(5)), ("a", [7, 0])]
    whole = offsets(*topics)
    whole.topics[2].partitions[1].timestamp = 5
    parts = list(parts_of(whole, NAMED, MOST))
    with_0 = [part for part in parts if ("a", 0) in rows_of(part)]
    assert len(with_0) == 1
    found = [row.timestamp for topic in with_0[0].topics for row in topic.partitions if row.partition_index == 0]
    assert found == [-1, 5]
    assert {row for part in parts for row in rows_of(part)} == set(rows_of(whole))


def test_rows_that_are_names_themselves() -> None:
    cut = Cut(levels=(("topic_names", "responses"),), names=())
    request = DeleteTopicsRequest(topic_names=["t1", "t2", "t1", "t3", "t1"], timeout_ms=1)
    assert [part.topic_names for part in parts_of(request, cut, 2)] == [["t1", "t1"], ["t2", "t3"]]


def test_an_error_for_the_whole_request_counts_for_all_parts() -> None:
    cut = Cut(levels=(("topics", "topics"),))
    fine, failed = (
        OffsetDeleteResponse(error_code=code, throttle_time_ms=0, topics=[])
        for code in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR)
    )
    assert joined([fine, failed, fine], cut) is failed


def test_what_an_answer_says_beside_its_rows_is_kept() -> None:
    """Where other brokers are, each once, and the longest time to wait."""
    endpoints = [NodeEndpoint(node_id=number, host="h", port=1, rack=None) for number in (1, 2)]
    answers = [
        ProduceResponse(responses=[], throttle_time_ms=3, node_endpoints=endpoints[:1]),
        ProduceResponse(responses=[], throttle_time_ms=7, node_endpoints=endpoints),
    ]
    whole = joined(answers, Cut(levels=(("responses", "responses"),)))
    assert (whole.throttle_time_ms, whole.node_endpoints) == (7, endpoints)


def cuts() -> Iterator[tuple[str, ApiKey, Cut, int]]:
    """What the handlers declare, for each version."""
    for module in pkgutil.walk_packages(lowtide.broker.handlers.__path__, "lowtide.broker.handlers."):
        declared = importlib.import_module(module.name)
        name = module.name.rpartition(".")[2]
        key = ApiKey.__members__.get(name.upper())
        cut = getattr(declared, "CUT", None) or getattr(declared, "cut", None)
        if key is None or cut is None:
            continue
        for version in range(API[key].min_version, API[key].max_version + 1):
            of_version = cut if isinstance(cut, Cut) else cut(version)
            if of_version is not None and of_version.fields[0] in dict(wire_form(API[key].request, version).fields):
                yield name, key, of_version, version


CUTS = list(cuts())


def test_the_cuts_are_found() -> None:
    assert len({name for name, *_ in CUTS}) > 28


@pytest.mark.parametrize(("key", "cut", "version"), [entry[1:] for entry in CUTS])
def test_a_cut_names_arrays_of_its_request_and_answer(key: ApiKey, cut: Cut, version: int) -> None:
    for message, fields in ((API[key].request, cut.fields), (API[key].response, cut.answer_fields)):
        entity: Any = wire_form(message, version)
        for field in fields:
            assert isinstance(entity, Entity)
            array = dict(entity.fields)[field]
            assert isinstance(array, CountedArray)
            entity = array.element


def test_rows_of_all_levels_are_counted() -> None:
    assert row_count(offsets(("a", range(3)), ("b", range(2))), CUT.fields) == 7
