"""DeleteRecords as the compiled module reads and answers it, against the plain form.

WALK_EXAMPLES=100000 runs it longer.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.protocol import native
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.headers import read_request_header, request_header, response_writer
from lowtide.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from tests.examples import examples

from .columns import needs_compiled

LONG = settings(deadline=None, max_examples=int(os.environ.get("WALK_EXAMPLES", examples(300))))
BEFORE = b"bytes before"
NAMES = st.text("abcxyz.-_09", min_size=1, max_size=30) | st.sampled_from(["n" * 126, "n" * 127, "n" * 128, "n" * 249])
VERSIONS, PARTITIONS, OFFSETS = st.integers(0, 3), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
TIMES = st.integers(-(2**31), 2**31 - 1)
CHANGES = st.lists(
    st.tuples(st.integers(0, 512), st.integers(0, 255) | st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])), max_size=3
)
CUTS = st.just(0) | st.integers(1, 100)


def delete_of(version: int, **fields: Any) -> bytes:
    """A request, without the length before it."""
    row = DeleteRecordsPartition(partition_index=fields.get("partition", 0), offset=fields.get("offset", 5))
    topic = DeleteRecordsTopic(name=fields.get("topic", "t"), partitions=[row] * fields.get("rows", 1))
    request = DeleteRecordsRequest(
        topics=[topic] * fields.get("topics", 1),
        timeout_ms=fields.get("timeout_ms", 1000),
        leader_only=fields.get("leader_only", False) and version >= 3,
    )
    return request_header(21, version, 7, fields.get("client_id", "c")) + codec_for(
        DeleteRecordsRequest, version
    ).encode(request)


def compiled_read(frame: bytes) -> Any:
    """What the compiled form reads, where the request lies between other bytes."""
    assert native.compiled is not None
    buffer = memoryview(bytearray(BEFORE + frame + BEFORE))
    return native.compiled.read_delete(buffer, len(BEFORE), len(BEFORE) + len(frame))


def plain_read(frame: bytes) -> Any:
    """The same by the plain form; None where it refuses the request."""
    try:
        api_key, version, correlation_id, client_id, position = read_request_header(frame, 0, len(frame))
        request = codec_for(DeleteRecordsRequest, version).decode(memoryview(frame), position, len(frame))
    except ProtocolError:
        return None
    assert api_key == 21
    (topic,) = request.topics
    (row,) = topic.partitions
    result = DeleteRecordsPartitionResult(
        partition_index=row.partition_index, low_watermark=row.offset, leader_log_start_offset=row.offset, error_code=0
    )
    answer = DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(name=topic.name, partitions=[result])])
    write = response_writer(codec_for(DeleteRecordsResponse, version).encode, flexible=version >= 2)
    frame = b"".join(write(correlation_id, answer))
    return client_id, topic.name, row.partition_index, row.offset, request.timeout_ms, request.leader_only, frame


@needs_compiled
@LONG
@given(VERSIONS, NAMES, PARTITIONS, OFFSETS, TIMES, st.booleans(), st.none() | NAMES)
def test_usual_requests_are_read_and_answered_as_by_the_plain_form(
    version: int, topic: str, partition: int, offset: int, timeout_ms: int, leader_only: bool, client_id: str | None
) -> None:
    fields = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timeout_ms": timeout_ms,
        "leader_only": leader_only,
    }
    frame = delete_of(version, client_id=client_id, **fields)
    read = compiled_read(frame)
    assert read is not None
    assert read == plain_read(frame)


@needs_compiled
@LONG
@given(VERSIONS, NAMES, PARTITIONS, OFFSETS, CHANGES, CUTS)
def test_whatever_is_read_of_damaged_requests_the_plain_form_accepts(
    version: int, topic: str, partition: int, offset: int, changes: list[tuple[int, int]], cut: int
) -> None:
    frame = bytearray(delete_of(version, topic=topic, partition=partition, offset=offset, leader_only=True))
    for position, byte in changes:
        frame[position % len(frame)] = byte
    damaged = bytes(frame[: max(len(frame) - cut, 0)])
    read = compiled_read(damaged)
    assert read is None or read == plain_read(damaged)


UNUSUAL: dict[str, bytes] = {
    "two topics": delete_of(2, topics=2),
    "no topic": delete_of(2, topics=0),
    "two partitions": delete_of(1, rows=2),
    "no partition": delete_of(1, rows=0),
    "to the high watermark": delete_of(1, offset=-1),
    "a partition below 0": delete_of(1, partition=-1),
    "topic beyond ASCII": delete_of(2, topic="straße"),
    "client id beyond ASCII": delete_of(2, client_id="straße"),
    "nameless": delete_of(0, topic=""),
    "more bytes": delete_of(0) + b"\0",
    "another API": b"\0\1" + delete_of(0)[2:],
    "a new version": b"\0\x15\0\x04" + delete_of(3)[4:],
    "nothing": b"",
}


@needs_compiled
@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_the_plain_form(name: str) -> None:
    assert compiled_read(UNUSUAL[name]) is None


@needs_compiled
@pytest.mark.parametrize(
    "arguments", [(b"", 0, 1), (b"abc", 2, 1), (b"abc", -1, 2), ("abc", 0, 3), (b"abc", None, 3), (b"abc", 0, 2**70)]
)
def test_places_beyond_the_buffer_are_not_read(arguments: tuple[Any, ...]) -> None:
    assert native.compiled is not None
    assert native.compiled.read_delete(*arguments) is None
