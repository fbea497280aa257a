"""Anything but an exact message is refused, and a refusal uses no more memory than the frame itself."""

from __future__ import annotations

import contextlib
import tracemalloc
from typing import Any

import pytest

from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ProtocolError, SurplusBytesError
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.protocol.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tests.examples import rounds
from tests.own_process import Run

from .conftest import Case, RandomMessages, each_case

OVER_LONG = (b"\x7f\xff\xff\xff", b"\x7f\xff", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\x7f", b"\xff\x7f")
"""The largest counts: of an array or bytes, of a string, and as varints of five, four and two bytes."""

PLACES = rounds(300)
"""At how many places at least a frame is cut or changed: `make test` has a part of them."""

ALLOWANCE_BYTES = 24 * 1024
"""The memory of an exception with its traceback; the test adds that of the decoded message."""


@pytest.mark.newest
@pytest.mark.seeds
@each_case
def test_every_truncation_is_refused(case: Case, seed: str) -> None:
    """A frame cut at any place is refused, also if the rest is still in the buffer behind `end`."""
    random_messages = RandomMessages(seed)
    codec = codec_for(case.message, case.version)
    frame = codec.encode(random_messages.message(case))
    for end in range(0, len(frame), 1 + len(frame) // PLACES):
        with pytest.raises(ProtocolError):
            codec.decode(frame[:end], 0, end)
        with pytest.raises(ProtocolError):
            codec.decode(frame, 0, end)


@pytest.mark.newest
@each_case
def test_trailing_bytes_are_refused(case: Case, seed: str) -> None:
    """A byte too many means that the two sides disagree about the message.

    What reads requests may take it all the same.
    """
    random_messages = RandomMessages(seed)
    codec = codec_for(case.message, case.version)
    for _ in range(3):
        frame = codec.encode(random_messages.message(case))
        want = codec.decode(frame, 0, len(frame))
        for tail in (b"\x00", b"\x01", bytes(40)):
            longer, stop = frame + tail, len(frame) + len(tail)
            with pytest.raises(SurplusBytesError) as caught:
                codec.decode(longer, 0, stop)
            assert (caught.value.value, caught.value.position) == (want, len(frame))


def test_a_message_that_runs_over_its_end_is_no_surplus() -> None:
    """The bytes behind the end are there, as those of the next request are in the buffer of all connections."""
    frame = codec_for(MetadataRequest, 12).encode(MetadataRequest(topics=None))
    for end in range(len(frame)):
        with pytest.raises(ProtocolError) as caught:
            codec_for(MetadataRequest, 12).decode(frame + bytes(100), 0, end)
        assert not isinstance(caught.value, SurplusBytesError)


@pytest.mark.newest
@pytest.mark.seeds
@each_case
def test_over_long_counts_cost_nothing(case: Case, seed: str) -> None:
    """A huge count anywhere in a frame is refused, or read as part of a number, without its memory."""
    random_messages = RandomMessages(seed)
    codec = codec_for(case.message, case.version)
    frame = codec.encode(random_messages.message(case))[:200]
    budget = ALLOWANCE_BYTES + 60 * len(frame)
    tracemalloc.start()
    try:
        for position in range(0, len(frame), 1 + len(frame) // PLACES):
            for count in OVER_LONG:
                wrong = frame[:position] + count + frame[position + len(count) :]
                taken = min_bytes_taken(codec, wrong, budget)
                assert taken < budget, f"{count.hex()} at {position} took {taken} bytes"
    finally:
        tracemalloc.stop()


def min_bytes_taken(codec: Any, wrong: bytes, budget: int) -> int:
    """Returns the least of a few measurements, because other work in this process is measured too."""
    least = budget
    for _ in range(20):
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        with contextlib.suppress(ProtocolError):
            codec.decode(wrong, 0, len(wrong))
        _, peak = tracemalloc.get_traced_memory()
        least = min(least, peak - before)
        if least < budget:
            break
    return least


def refused(message: type, version: int, text: str) -> str:
    """Returns the codec's message about the frame with this hex."""
    frame = bytes.fromhex(text)
    with pytest.raises(ProtocolError) as caught:
        codec_for(message, version).decode(frame, 0, len(frame))
    return str(caught.value)


@pytest.mark.parametrize(
    ("message", "version", "text", "reason"),
    [
        (DeleteRecordsRequest, 1, "ffffffff 00000000", "DeleteRecordsRequest.topics is null"),
        (DeleteRecordsRequest, 1, "fffffffe 00000000", "DeleteRecordsRequest.topics has the count -2"),
        (
            DeleteRecordsRequest,
            1,
            "7fffffff 00000000",
            "DeleteRecordsRequest.topics has the count 2147483647, but only 4 bytes remain",
        ),
        (DeleteRecordsRequest, 2, "00 00000000 00", "DeleteRecordsRequest.topics is null"),
        (DeleteRecordsRequest, 2, "ffffffff0f 00000000 00", "has the count 4294967294, but only 5 bytes remain"),
        (DeleteRecordsRequest, 2, "ffffffffff01 00000000 00", "an unsigned varint of more than five bytes"),
        (DeleteRecordsRequest, 1, "00000001 ffff 00000000 00000000", "DeleteRecordsRequest.topics.name is null"),
        (DeleteRecordsRequest, 1, "00000001 0001 ff 00000000 00000000", "utf-8"),
        (DeleteRecordsRequest, 2, "02 00 01 00 00000000 00", "DeleteRecordsRequest.topics.name is null"),
        (MetadataRequest, 0, "ffffffff", "MetadataRequest.topics is null"),
        (MetadataRequest, 1, "fffffffe", "MetadataRequest.topics has the count -2"),
        (ProduceRequest, 3, "fffe 0001 00000000 00000000", "ProduceRequest.transactional_id has the count -2"),
        (ProduceRequest, 3, "ffff 0001 00000000 00000001 0000 00000001 00000000 fffffffe", "records has the count -2"),
        (ProduceRequest, 3, "ffff 0001 00000000 00000001 0000 00000001 00000000 00000001", "but only 0 bytes remain"),
    ],
)
def test_the_refusal_says_what_is_wrong(message, version, text, reason) -> None:
    """Forbidden nulls, negative and over-long counts, invalid UTF-8: refused with the field's name."""
    assert reason in refused(message, version, text)


def test_null_is_read_where_it_is_allowed() -> None:
    """Null topics request all topics, from version 1 on; null records are null."""
    frame = bytes.fromhex("ffffffff")
    assert codec_for(MetadataRequest, 1).decode(frame, 0, 4).topics is None
    frame = bytes.fromhex("ffff 0001 00000000 00000001 0000 00000001 00000000 ffffffff")
    got = codec_for(ProduceRequest, 3).decode(frame, 0, len(frame))
    assert got.transactional_id is None
    assert got.topic_data[0].partition_data[0].records is None


EMPTY_FETCH = "000001f4 00000001 00000400 00 00000000 ffffffff 01 01 01"
"""A FetchRequest of version 12 without `replica_id`, before its tags."""


def fetch_with_tags(tags: str) -> bytes:
    """Returns a FetchRequest of version 12 with this section of tagged fields."""
    return bytes.fromhex("ffffffff" + EMPTY_FETCH + tags)


def test_a_known_tag_given_twice_counts_once() -> None:
    """The last one counts and the order is not checked, as in Kafka's own readers."""
    frame = fetch_with_tags("03 00 02 02 61 07 01 00 00 02 02 62")
    assert codec_for(FetchRequest, 12).decode(frame, 0, len(frame)).cluster_id == "b"


@pytest.mark.parametrize(
    "tags",
    [
        "01 00 03 02 61 62",
        "01 00 01 02 61",
        "01 00 02 03 61",
        "01 07 05 00",
        "02 00 02 02 61",
        "01",
        "ffffffffff01",
        "01 00 02 02 ff",
    ],
)
def test_a_bad_tag_is_refused(tags) -> None:
    """A size that differs from its content's, a size beyond the frame, a count without tags, text that is not UTF-8."""
    frame = fetch_with_tags(tags)
    with pytest.raises(ProtocolError):
        codec_for(FetchRequest, 12).decode(frame, 0, len(frame))


def test_tags_in_the_middle_of_a_fixed_array() -> None:
    """Partitions are read at once only if none has tags; one tag among many must not shift the others."""
    partitions = [DeleteRecordsPartition(partition_index=index, offset=index * 7) for index in range(5)]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=partitions)], timeout_ms=1)
    codec = codec_for(DeleteRecordsRequest, 2)
    frame = codec.encode(request)
    third = frame.index(bytes.fromhex("00000002 000000000000000e 00"))
    tagged = frame[: third + 12] + bytes.fromhex("01 05 02 abcd") + frame[third + 13 :]
    assert codec.decode(tagged, 0, len(tagged)) == request


def test_records_are_a_view_of_the_frame_and_parts_pass_them_on() -> None:
    """Produce copies no record: the field is a view of the buffer, and `encode_parts` passes on what isn't small."""
    codec = codec_for(ProduceRequest, 9)
    records = bytes(range(256)) * 80
    partition = PartitionProduceData(index=5, records=records)
    request = ProduceRequest(acks=-1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=[partition])])
    parts = codec.encode_parts(request)
    assert [part is records for part in parts] == [False, True, False]
    frame = bytearray(b"".join(parts))
    view = codec.decode(frame, 0, len(frame)).topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    assert view.obj is frame
    assert view == records
    frame[frame.index(records)] = 99
    assert view[0] == 99


class SliceOfAFile:
    """Stands for records that are still in a file: only their size is known."""

    def __len__(self) -> int:
        return 1_000


def test_parts_take_records_that_are_not_bytes() -> None:
    """A Fetch response has slices of files; their size is in the frame, the slices are in the list.

    Empty slices are left out.
    """
    slices = (SliceOfAFile(), b"", None, SliceOfAFile())
    partitions = [
        PartitionData(partition_index=index, error_code=0, high_watermark=9, records=records)
        for index, records in enumerate(slices)
    ]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    for version in (4, 12, 17):
        codec = codec_for(FetchResponse, version)
        parts = codec.encode_parts(response)
        assert [part for part in parts if isinstance(part, SliceOfAFile)] == [slices[0], slices[3]]
        assert len(parts) == (4 if version == 4 else 5)
        frame = b"".join(bytes(1_000) if isinstance(part, SliceOfAFile) else bytes(part) for part in parts)  # type: ignore[call-overload]
        got = codec.decode(frame, 0, len(frame)).responses[0].partitions
        assert [None if p.records is None else len(p.records) for p in got] == [1_000, 0, None, 1_000]


def test_a_default_is_not_written() -> None:
    """A tagged struct of defaults takes no byte, whether it is given as None or explicitly (KIP-482)."""

    def response(leader: LeaderIdAndEpoch | None) -> ProduceResponse:
        partition = PartitionProduceResponse(index=0, error_code=6, base_offset=-1, current_leader=leader)
        return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[partition])])

    encode = codec_for(ProduceResponse, 10).encode
    assert encode(response(LeaderIdAndEpoch())) == encode(response(None))
    told = encode(response(LeaderIdAndEpoch(leader_id=3, leader_epoch=4)))
    assert bytes.fromhex("01 00 09 00000003 00000004 00") in told


def bytes_of_an_empty_row() -> float:
    rows = [PartitionProduceData(index=number, records=b"") for number in range(1_000)]
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=rows)])
    codec = codec_for(ProduceRequest, 9)
    frame = codec.encode(request)
    codec.decode(frame, 0, len(frame))  # Compiled now.
    tracemalloc.start()
    decoded = codec.decode(frame, 0, len(frame))
    row_bytes = tracemalloc.get_traced_memory()[0] / len(rows)
    tracemalloc.stop()
    assert {bytes(row.records) for row in decoded.topic_data[0].partition_data} == {b""}
    return row_bytes


def test_empty_records_of_very_many_partitions_are_one_object(in_own_process: Run) -> None:
    """A view takes two hundred bytes, a partition without records five bytes of a frame."""
    assert in_own_process(bytes_of_an_empty_row) < 120
