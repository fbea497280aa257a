"""The topics of a commit: which there are, and one row for each partition in the response, in either case."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.groups.commit_topics import CommitTopics
from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId

TYPES = (OffsetCommitResponseTopic, OffsetCommitResponsePartition)
T, U, UNKNOWN = (bytes([number]) * 16 for number in (1, 2, 3))
NONE, NO_PARTITION, NO_ID = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID
FAILED = ErrorCode.NOT_COORDINATOR


def image() -> MetadataImage:
    """Topic `t` has two partitions, `u` has one."""
    partition = PartitionImage((1,), (1,), (1,), 1, 0, 0, 1)
    topics = {"t": TopicImage("t", T, (partition, partition), {}, 1), "u": TopicImage("u", U, (partition,), {}, 1)}
    return MetadataImage(topics=topics, topic_names={topic.topic_id: name for name, topic in topics.items()})


def asked(*numbers: int, name: str = "", topic_id: TopicId = ZERO_TOPIC_ID) -> OffsetCommitRequestTopic:
    partitions = [
        OffsetCommitRequestPartition(partition_index=number, committed_offset=5, committed_metadata="")
        for number in numbers
    ]
    return OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=partitions)


def commit(*topics: OffsetCommitRequestTopic, by_id: bool = False) -> CommitTopics[Any, Any]:
    return CommitTopics(image(), topics, TYPES, by_id=by_id)


def known(topics: CommitTopics[Any, Any]) -> list[tuple[str, TopicId, list[int]]]:
    return [(topic.name, topic.topic_id, [row.partition_index for row in topic.partitions]) for topic in topics.known]


def rows(topics: list[Any]) -> list[tuple[str, TopicId, list[tuple[int, int]]]]:
    return [
        (topic.name, topic.topic_id, [(row.partition_index, row.error_code) for row in topic.partitions])
        for topic in topics
    ]


@pytest.mark.parametrize("by_id", [True, False])
def test_what_is_there_is_known_by_name_and_id(*, by_id: bool) -> None:
    given = [asked(1, 0, topic_id=T), asked(0, topic_id=U)] if by_id else [asked(1, 0, name="t"), asked(0, name="u")]
    topics = commit(*given, by_id=by_id)
    assert known(topics) == [("t", T, [1, 0]), ("u", U, [0])]
    assert topics.refused == []
    kept: list[Any] = [object()]
    assert topics.merged(kept) is kept


@pytest.mark.parametrize("by_id", [True, False])
def test_a_topic_that_is_not_there_is_refused_as_it_was_named(*, by_id: bool) -> None:
    topics = commit(asked(0, 7, name="v", topic_id=UNKNOWN), by_id=by_id)
    assert known(topics) == []
    error = NO_ID if by_id else NO_PARTITION
    assert rows(topics.refused) == [("v", UNKNOWN if by_id else ZERO_TOPIC_ID, [(0, error), (7, error)])]


@pytest.mark.parametrize("by_id", [True, False])
def test_partitions_that_are_not_there_are_refused_and_the_others_known(*, by_id: bool) -> None:
    topics = commit(asked(2, 1, -1, 0, name="t", topic_id=T), by_id=by_id)
    assert known(topics) == [("t", T, [1, 0])]
    assert rows(topics.refused) == [("t", T, [(2, NO_PARTITION), (-1, NO_PARTITION)])]


def test_a_topic_without_any_of_the_partitions_is_not_known() -> None:
    topics = commit(asked(5, name="t"), asked(0, name="u"))
    assert known(topics) == [("u", U, [0])]
    assert rows(topics.refused) == [("t", T, [(5, NO_PARTITION)])]


def test_each_topic_has_one_row_in_the_response_with_all_of_its_partitions() -> None:
    topics = commit(asked(0, 2, name="t"), asked(0, name="v"), asked(0, name="u"))
    assert rows(topics.failed(FAILED)) == [
        ("t", T, [(2, NO_PARTITION), (0, FAILED)]),
        ("v", ZERO_TOPIC_ID, [(0, NO_PARTITION)]),
        ("u", U, [(0, FAILED)]),
    ]


def test_a_failure_is_of_all_partitions_that_are_there() -> None:
    assert rows(commit(asked(1, 0, name="t")).failed(FAILED)) == [("t", T, [(1, FAILED), (0, FAILED)])]
