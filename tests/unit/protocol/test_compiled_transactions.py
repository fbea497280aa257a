"""Requests of transactions as the compiled module reads and answers them, against the plain form.

For any bytes: what the compiled form reads the plain form accepts, with the same fields. WALK_EXAMPLES=100000 runs them
longer.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol import native
from lowtide.protocol.api_keys import API, ApiKey, request_header_is_flexible
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.headers import request_header
from lowtide.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from lowtide.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from lowtide.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from lowtide.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from lowtide.protocol.types import ZERO_TOPIC_ID

from .columns import needs_compiled
from .test_compiled_commit import (
    CHANGES,
    CUTS,
    IDS,
    INT64,
    LONG,
    NAMES,
    ROWS,
    compiled_read,
    damaged,
    plain_decoded,
    plain_frame,
)

EPOCHS, GENERATIONS = st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1)
LAST_VERSIONS = {
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 6,
    ApiKey.END_TXN: 4,
}
"""Those that the compiled form reads."""

READERS = {
    ApiKey.ADD_PARTITIONS_TO_TXN: "read_added_partitions",
    ApiKey.ADD_OFFSETS_TO_TXN: "read_added_offsets",
    ApiKey.TXN_OFFSET_COMMIT: "read_transactional_commit",
    ApiKey.END_TXN: "read_end",
}


def frame_of(key: ApiKey, version: int, request: Any, client_id: str | None = "c") -> bytes:
    return request_header(key, version, 7, client_id) + codec_for(type(request), version).encode(request)


def added_partitions(
    version: int, partitions: list[int], *, name: str = "x", topic: str = "t", topics: int = 1, **fields: Any
) -> bytes:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=fields.get("producer_id", 5),
        v3_and_below_producer_epoch=fields.get("producer_epoch", 1),
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=partitions)] * topics,
    )
    return frame_of(ApiKey.ADD_PARTITIONS_TO_TXN, version, request, fields.get("client_id", "c"))


def added_offsets(version: int, name: str = "x", group: str = "g", producer: tuple[int, int] = (5, 1)) -> bytes:
    request = AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], group_id=group
    )
    return frame_of(ApiKey.ADD_OFFSETS_TO_TXN, version, request)


def end(version: int, name: str = "x", producer: tuple[int, int] = (5, 1), *, is_commit: bool = True) -> bytes:
    request = EndTxnRequest(
        transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], committed=is_commit
    )
    return frame_of(ApiKey.END_TXN, version, request)


def commit(version: int, rows: list[Any], *, name: str = "x", topics: int = 1, **fields: Any) -> bytes:
    partitions = [
        TxnOffsetCommitRequestPartition(
            partition_index=number,
            committed_offset=offset,
            committed_leader_epoch=epoch if version >= 2 else -1,
            committed_metadata=text,
        )
        for number, offset, epoch, text in rows
    ]
    has_id, has_members = version >= 6, version >= 3
    topic = TxnOffsetCommitRequestTopic(
        name="" if has_id else fields.get("topic", "t"),
        topic_id=fields.get("topic_id", b"i" * 16) if has_id else ZERO_TOPIC_ID,
        partitions=partitions,
    )
    request = TxnOffsetCommitRequest(
        transactional_id=name,
        group_id=fields.get("group", "g"),
        producer_id=5,
        producer_epoch=1,
        generation_id_or_member_epoch=fields.get("generation", -1) if has_members else -1,
        member_id=fields.get("member_id", "") if has_members else "",
        group_instance_id=fields.get("instance_id") if has_members else None,
        topics=[topic] * topics,
    )
    return frame_of(ApiKey.TXN_OFFSET_COMMIT, version, request)


def plain_added_partitions(version: int, request: AddPartitionsToTxnRequest) -> Any:
    (topic,) = request.v3_and_below_topics
    assert len(set(topic.partitions)) == len(topic.partitions) > 0 <= min(topic.partitions)
    results = [
        AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=0) for number in topic.partitions
    ]
    row = AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=results)
    producer = request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
    fields = (
        request.v3_and_below_transactional_id,
        *producer,
        topic.name,
        max(topic.partitions),
        tuple(topic.partitions),
    )
    return fields, AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[row])


def plain_added_offsets(version: int, request: AddOffsetsToTxnRequest) -> Any:
    fields = request.transactional_id, request.producer_id, request.producer_epoch, request.group_id
    return fields, AddOffsetsToTxnResponse(error_code=0)


def plain_end(version: int, request: EndTxnRequest) -> Any:
    fields = request.transactional_id, request.producer_id, request.producer_epoch, request.committed
    return fields, EndTxnResponse(error_code=0)


def plain_commit(version: int, request: TxnOffsetCommitRequest) -> Any:
    (topic,) = request.topics
    rows = tuple((row.partition_index, row.committed_offset, row.committed_leader_epoch) for row in topic.partitions)
    assert not any(row.committed_metadata for row in topic.partitions)
    partitions = [TxnOffsetCommitResponsePartition(partition_index=number, error_code=0) for number, _, _ in rows]
    answer = TxnOffsetCommitResponse(
        topics=[TxnOffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)]
    )
    who = request.group_id, request.generation_id_or_member_epoch, request.member_id, request.group_instance_id
    name = topic.topic_id if version >= 6 else topic.name
    producer = request.transactional_id, request.producer_id, request.producer_epoch
    return (*producer, *who, version, name, max(number for number, _, _ in rows), rows), answer


PLAIN: dict[ApiKey, Any] = {
    ApiKey.ADD_PARTITIONS_TO_TXN: plain_added_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: plain_added_offsets,
    ApiKey.TXN_OFFSET_COMMIT: plain_commit,
    ApiKey.END_TXN: plain_end,
}


def plain_read(key: ApiKey, frame: bytes) -> Any:
    """What the plain form reads of a request, with the frame that answers it where there is no error; None where it refuses it."""
    decoded = plain_decoded(key, frame)
    if decoded is None:
        return None
    version, correlation_id, request = decoded
    assert version <= LAST_VERSIONS[key]
    fields, answer = PLAIN[key](version, request)
    return *fields, plain_frame(key, version, correlation_id, answer)


PARTITIONS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6, unique=True) | st.just(list(range(64)))
PRODUCERS = st.tuples(INT64, EPOCHS)
USUAL = st.one_of(
    st.tuples(
        st.just(ApiKey.ADD_PARTITIONS_TO_TXN),
        st.builds(
            lambda version, partitions, name, topic, producer, client_id: added_partitions(
                version, partitions, name=name, topic=topic, producer_id=producer[0], producer_epoch=producer[1], client_id=client_id
            ),
            st.integers(0, 3), PARTITIONS, NAMES, NAMES.filter(bool), PRODUCERS, st.none() | NAMES,
        ),
    ),
    st.tuples(st.just(ApiKey.ADD_OFFSETS_TO_TXN), st.builds(added_offsets, st.integers(0, 4), NAMES, NAMES, PRODUCERS)),
    st.tuples(st.just(ApiKey.END_TXN), st.builds(end, st.integers(0, 4), NAMES, PRODUCERS, is_commit=st.booleans())),
    st.tuples(
        st.just(ApiKey.TXN_OFFSET_COMMIT),
        st.builds(
            commit, st.integers(0, 6), ROWS, name=NAMES, group=NAMES, generation=GENERATIONS, member_id=NAMES,
            instance_id=st.none() | NAMES, topic=NAMES.filter(bool), topic_id=IDS.filter(any),
        ),
    ),
)  # fmt: skip


@needs_compiled
@LONG
@given(USUAL)
def test_usual_requests_are_read_and_answered_as_by_the_plain_form(usual: tuple[ApiKey, bytes]) -> None:
    key, frame = usual
    read = compiled_read(READERS[key], frame)
    assert read is not None
    assert read == plain_read(key, frame)


@needs_compiled
@LONG
@given(USUAL, CHANGES, CUTS)
def test_whatever_is_read_of_damaged_requests_the_plain_form_accepts(
    usual: tuple[ApiKey, bytes], changes: list[tuple[int, int]], cut: int
) -> None:
    frame = damaged(usual[1], changes, cut)
    for key, name in READERS.items():
        read = compiled_read(name, frame)
        assert read is None or read == plain_read(key, frame)


ROW = [(0, 5, -1, "")]
UNUSUAL: dict[str, tuple[ApiKey, bytes]] = {
    "a partition twice": (ApiKey.ADD_PARTITIONS_TO_TXN, added_partitions(0, [1, 2, 1])),
    "a partition below 0": (ApiKey.ADD_PARTITIONS_TO_TXN, added_partitions(3, [-1])),
    "no partition": (ApiKey.ADD_PARTITIONS_TO_TXN, added_partitions(0, [])),
    "many partitions": (ApiKey.ADD_PARTITIONS_TO_TXN, added_partitions(0, list(range(65)))),
    "two topics": (ApiKey.ADD_PARTITIONS_TO_TXN, added_partitions(0, [1], topics=2)),
    "no topic": (ApiKey.ADD_PARTITIONS_TO_TXN, added_partitions(0, [1], topics=0)),
    "nameless": (ApiKey.ADD_PARTITIONS_TO_TXN, added_partitions(0, [1], topic="")),
    "topic beyond ASCII": (ApiKey.ADD_PARTITIONS_TO_TXN, added_partitions(3, [1], topic="straße")),
    "id beyond ASCII": (ApiKey.ADD_OFFSETS_TO_TXN, added_offsets(0, "straße")),
    "group beyond ASCII": (ApiKey.ADD_OFFSETS_TO_TXN, added_offsets(3, "x", "straße")),
    "a version for brokers": (ApiKey.ADD_PARTITIONS_TO_TXN, b"\0\x18\0\x04" + added_partitions(3, [1])[4:]),
    "an end with an identity": (ApiKey.END_TXN, end(5)),
    "neither true nor false": (ApiKey.END_TXN, end(0)[:-1] + b"\2"),
    "metadata": (ApiKey.TXN_OFFSET_COMMIT, commit(0, [(0, 1, -1, "m")])),
    "compact metadata": (ApiKey.TXN_OFFSET_COMMIT, commit(3, [(0, 1, -1, "m")])),
    "offsets of two topics": (ApiKey.TXN_OFFSET_COMMIT, commit(3, ROW, topics=2)),
    "no topic id": (ApiKey.TXN_OFFSET_COMMIT, commit(6, ROW, topic_id=ZERO_TOPIC_ID)),
    "more bytes": (ApiKey.TXN_OFFSET_COMMIT, commit(3, ROW) + b"\0"),
    "another API": (ApiKey.END_TXN, added_offsets(0)),
    "nothing": (ApiKey.END_TXN, b""),
}


@needs_compiled
@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_the_plain_form(name: str) -> None:
    key, frame = UNUSUAL[name]
    assert compiled_read(READERS[key], frame) is None


@needs_compiled
@pytest.mark.parametrize("name", READERS.values())
@pytest.mark.parametrize(
    "arguments", [(b"", 0, 1), (b"abc", 2, 1), (b"abc", -1, 2), ("abc", 0, 3), (b"abc", None, 3), (b"abc", 0, 2**70)]
)
def test_places_beyond_the_buffer_are_not_read(name: str, arguments: tuple[Any, ...]) -> None:
    assert getattr(native.compiled, name)(*arguments) is None


def test_the_versions_are_those_that_are_served() -> None:
    """Versions that come to be served are read by the plain form, until the compiled one has them."""
    served = {key: (API[key].min_version, API[key].max_version) for key in READERS}
    assert served == {
        ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
        ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
        ApiKey.TXN_OFFSET_COMMIT: (0, 6),
        ApiKey.END_TXN: (0, 5),
    }
    assert all([request_header_is_flexible(key, version) for version in (2, 3)] == [False, True] for key in READERS)
