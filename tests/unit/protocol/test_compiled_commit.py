"""OffsetCommit and Heartbeat as the compiled module reads and answers them, and the records of offsets, against the plain form.

For any bytes: what the compiled form reads the plain form accepts, with the same fields. WALK_EXAMPLES=100000 runs them longer.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lowtide.protocol import native
from lowtide.protocol.api_keys import API, ApiKey, request_header_is_flexible, response_header_is_flexible
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.group_records import OffsetCommitValue, OffsetRecords
from lowtide.protocol.headers import read_request_header, request_header, response_writer
from lowtide.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from lowtide.protocol.types import ZERO_TOPIC_ID
from tests.examples import examples

from .columns import needs_compiled

LONG = settings(deadline=None, max_examples=int(os.environ.get("WALK_EXAMPLES", examples(300))))
BEFORE = b"bytes before"
ROWS_MAX = 256
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
NAMES = st.text("abcxyz.-_09", max_size=30) | st.sampled_from(["n" * 126, "n" * 127, "n" * 128, "n" * 249])
IDS = st.binary(min_size=16, max_size=16)
ROWS = st.lists(st.tuples(st.integers(0, 2**31 - 1), INT64, INT32, st.sampled_from([None, ""])), min_size=1, max_size=5)
MEMBERS = st.fixed_dictionaries(
    {
        "group_id": NAMES,
        "generation_id_or_member_epoch": INT32,
        "member_id": NAMES,
        "group_instance_id": st.none() | NAMES,
    }
)
CHANGES = st.lists(
    st.tuples(st.integers(0, 4096), st.integers(0, 255) | st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])), max_size=3
)
CUTS = st.just(0) | st.integers(1, 200)
ONE_ROW = [(0, 5, -1, "")]
MEMBER = {"group_id": "g", "generation_id_or_member_epoch": 1, "member_id": "m", "group_instance_id": None}


def fields_of(version: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Without the instance, where a version doesn't have it."""
    return fields if version >= 7 else fields | {"group_instance_id": None}


def commit_of(version: int, rows: list[Any], member: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """A request, without the length before it."""
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=number, committed_offset=offset, committed_leader_epoch=epoch, committed_metadata=text
        )
        for number, offset, epoch, text in rows
    ]
    name, topic_id = fields.pop("topic", "t"), fields.pop("topic_id", b"i" * 16)
    has_id = version >= 10
    topic = OffsetCommitRequestTopic(
        name="" if has_id else name, topic_id=topic_id if has_id else ZERO_TOPIC_ID, partitions=partitions
    )
    count, client_id = fields.pop("topics", 1), fields.pop("client_id", "c")
    request = OffsetCommitRequest(
        **fields_of(version, MEMBER if member is None else member), topics=[topic] * count, **fields
    )
    return request_header(8, version, 7, client_id) + codec_for(OffsetCommitRequest, version).encode(request)


def heartbeat_of(version: int, member: dict[str, Any]) -> bytes:
    instance_id = member["group_instance_id"] if version >= 3 else None
    request = HeartbeatRequest(
        group_id=member["group_id"],
        generation_id=member["generation_id_or_member_epoch"],
        member_id=member["member_id"],
        group_instance_id=instance_id,
    )
    return request_header(12, version, 7, "c") + codec_for(HeartbeatRequest, version).encode(request)


def compiled_read(name: str, frame: bytes) -> Any:
    """What the compiled form reads, where the request lies between other bytes."""
    buffer = memoryview(bytearray(BEFORE + frame + BEFORE))
    return getattr(native.compiled, name)(buffer, len(BEFORE), len(BEFORE) + len(frame))


def plain_decoded(key: ApiKey, frame: bytes) -> tuple[int, int, Any] | None:
    """Version, correlation id and request; None where the plain form refuses it."""
    try:
        api_key, version, correlation_id, _, position = read_request_header(frame, 0, len(frame))
        assert api_key == key
        return (
            version,
            correlation_id,
            codec_for(API[key].request, version).decode(memoryview(frame), position, len(frame)),
        )
    except ProtocolError:
        return None


def plain_frame(key: ApiKey, version: int, correlation_id: int, answer: Any) -> bytes:
    flexible = response_header_is_flexible(key, version)
    return b"".join(
        response_writer(codec_for(API[key].response, version).encode, flexible=flexible)(correlation_id, answer)
    )


def plain_commit(frame: bytes) -> Any:
    decoded = plain_decoded(ApiKey.OFFSET_COMMIT, frame)
    if decoded is None:
        return None
    version, correlation_id, request = decoded
    (topic,) = request.topics
    rows = tuple((row.partition_index, row.committed_offset, row.committed_leader_epoch) for row in topic.partitions)
    assert request.retention_time_ms == -1
    assert not any(row.committed_metadata for row in topic.partitions)
    partitions = [OffsetCommitResponsePartition(partition_index=number, error_code=0) for number, _, _ in rows]
    answer = OffsetCommitResponse(
        topics=[OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)]
    )
    return (
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        version,
        topic.topic_id if version >= 10 else topic.name,
        max(number for number, _, _ in rows),
        rows,
        plain_frame(ApiKey.OFFSET_COMMIT, version, correlation_id, answer),
    )


def plain_heartbeat(frame: bytes) -> Any:
    decoded = plain_decoded(ApiKey.HEARTBEAT, frame)
    if decoded is None:
        return None
    version, correlation_id, request = decoded
    answer = plain_frame(ApiKey.HEARTBEAT, version, correlation_id, HeartbeatResponse(error_code=0))
    return request.group_id, request.generation_id, request.member_id, request.group_instance_id, answer


def damaged(frame: bytes, changes: list[tuple[int, int]], cut: int) -> bytes:
    changed = bytearray(frame)
    for position, byte in changes:
        changed[position % len(changed)] = byte
    return bytes(changed[: max(len(changed) - cut, 0)])


@needs_compiled
@LONG
@given(st.integers(2, 10), ROWS, MEMBERS, NAMES.filter(bool), IDS.filter(any), st.none() | NAMES)
@example(8, [(number, 1, 1, "") for number in range(ROWS_MAX)], MEMBER, "t", b"i" * 16, None)
@example(2, [(number, 1, 1, "") for number in range(127)], MEMBER, "t", b"i" * 16, None)
def test_usual_commits_are_read_and_answered_as_by_the_plain_form(
    version: int, rows: list[Any], member: dict[str, Any], topic: str, topic_id: bytes, client_id: str | None
) -> None:
    frame = commit_of(version, rows, member, topic=topic, topic_id=topic_id, client_id=client_id)
    read = compiled_read("read_commit", frame)
    assert read is not None
    assert read == plain_commit(frame)


@needs_compiled
@LONG
@given(st.integers(2, 10), ROWS, MEMBERS, CHANGES, CUTS)
def test_whatever_is_read_of_damaged_commits_the_plain_form_accepts(
    version: int, rows: list[Any], member: dict[str, Any], changes: list[tuple[int, int]], cut: int
) -> None:
    frame = damaged(commit_of(version, rows, member), changes, cut)
    read = compiled_read("read_commit", frame)
    assert read is None or read == plain_commit(frame)


@needs_compiled
@LONG
@given(st.integers(0, 4), MEMBERS, CHANGES, CUTS)
def test_heartbeats_are_read_and_answered_as_by_the_plain_form(
    version: int, member: dict[str, Any], changes: list[tuple[int, int]], cut: int
) -> None:
    """Or not at all, where they are damaged."""
    whole = heartbeat_of(version, member)
    frame = damaged(whole, changes, cut)
    read = compiled_read("read_heartbeat", frame)
    assert read is not None or frame != whole
    assert read is None or read == plain_heartbeat(frame)


UNUSUAL: dict[str, bytes] = {
    "metadata": commit_of(2, [(0, 1, -1, "m")]),
    "compact metadata": commit_of(8, [(0, 1, -1, "m")]),
    "a time to keep them": commit_of(2, ONE_ROW, retention_time_ms=1000),
    "two topics": commit_of(8, ONE_ROW, topics=2),
    "no topic": commit_of(8, ONE_ROW, topics=0),
    "no offset": commit_of(8, []),
    "many offsets": commit_of(2, [(number, 1, -1, "") for number in range(ROWS_MAX + 1)]),
    "a partition below 0": commit_of(2, [(-1, 1, -1, "")]),
    "group beyond ASCII": commit_of(2, ONE_ROW, MEMBER | {"group_id": "straße"}),
    "member beyond ASCII": commit_of(8, ONE_ROW, MEMBER | {"member_id": "straße"}),
    "instance beyond ASCII": commit_of(8, ONE_ROW, MEMBER | {"group_instance_id": "straße"}),
    "topic beyond ASCII": commit_of(8, ONE_ROW, topic="straße"),
    "client id beyond ASCII": commit_of(8, ONE_ROW, client_id="straße"),
    "nameless": commit_of(2, ONE_ROW, topic=""),
    "no topic id": commit_of(10, ONE_ROW, topic_id=ZERO_TOPIC_ID),
    "more bytes": commit_of(2, ONE_ROW) + b"\0",
    "another API": b"\0\1" + commit_of(2, ONE_ROW)[2:],
    "an old version": b"\0\x08\0\x01" + commit_of(2, ONE_ROW)[4:],
    "a new version": b"\0\x08\0\x0b" + commit_of(10, ONE_ROW)[4:],
    "nothing": b"",
}


@needs_compiled
@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_the_plain_form(name: str) -> None:
    assert compiled_read("read_commit", UNUSUAL[name]) is None


@needs_compiled
@pytest.mark.parametrize("name", ["read_commit", "read_heartbeat"])
@pytest.mark.parametrize(
    "arguments", [(b"", 0, 1), (b"abc", 2, 1), (b"abc", -1, 2), ("abc", 0, 3), (b"abc", None, 3), (b"abc", 0, 2**70)]
)
def test_places_beyond_the_buffer_are_not_read(name: str, arguments: tuple[Any, ...]) -> None:
    assert getattr(native.compiled, name)(*arguments) is None


@needs_compiled
@LONG
@given(
    st.text(max_size=20),
    st.text(max_size=20),
    INT64,
    st.just(ZERO_TOPIC_ID) | IDS,
    st.lists(st.tuples(INT32, INT64, INT32), max_size=5),
)
def test_the_records_of_offsets_are_those_of_the_plain_form(
    group: str, topic: str, time_ms: int, topic_id: bytes, rows: list[tuple[int, int, int]]
) -> None:
    assert native.compiled is not None
    common = OffsetRecords(group, topic, commit_timestamp=time_ms, topic_id=topic_id)
    values = [
        (
            number,
            OffsetCommitValue(
                offset=offset, leader_epoch=epoch, metadata="", commit_timestamp=time_ms, topic_id=topic_id
            ),
        )
        for number, offset, epoch in rows
    ]
    assert native.compiled.offset_records(common.key_start, common.value_end, tuple(rows)) == common.encode_all(values)


@needs_compiled
@pytest.mark.parametrize(
    "arguments",
    [
        ("k", b"v", ()),
        (b"k", "v", ()),
        (b"k", b"v", [(0, 1, 2)]),
        (b"k", b"v", (None,)),
        (b"k", b"v", ((0, 1),)),
        (b"k", b"v", ((2**31, 1, 2),)),
        (b"k", b"v", ((0, 2**63, 2),)),
        (b"k", b"v", ((0, 1, "2"),)),
    ],
)
def test_rows_that_no_request_could_have_give_no_records(arguments: Any) -> None:
    assert native.compiled is not None
    assert native.compiled.offset_records(*arguments) is None


def test_the_versions_are_those_that_are_served() -> None:
    """Versions that come to be served are read by the plain form, until the compiled one has them."""
    assert (API[ApiKey.OFFSET_COMMIT].min_version, API[ApiKey.OFFSET_COMMIT].max_version) == (2, 10)
    assert (API[ApiKey.HEARTBEAT].min_version, API[ApiKey.HEARTBEAT].max_version) == (0, 4)
    assert [request_header_is_flexible(ApiKey.OFFSET_COMMIT, version) for version in (7, 8)] == [False, True]
