"""The codec reads the prepared requests, and positions in responses are those of the codec."""

from __future__ import annotations

import struct
from typing import Any

from bench.frames import (
    SESSION_VERSION,
    VERSIONS,
    batch,
    delete_error_position,
    delete_frame,
    fetch_frame,
    first_difference,
    metadata_frame,
    produce_error_position,
    produce_frame,
    response_frame,
    session_frame,
)
from lowtide.protocol.api_keys import API, ApiKey, response_header_is_flexible
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.headers import read_request_header
from lowtide.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from lowtide.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from lowtide.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from lowtide.protocol.records import check_crc, iterate_records, read_batch_header

TOPIC = "a-topic"


def read(frame: bytes) -> tuple[ApiKey, Any]:
    """Returns the request in a frame."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    number, version, _correlation_id, _client_id, position = read_request_header(frame, 4, len(frame))
    key = ApiKey(number)
    assert version == VERSIONS[key]
    return key, codec_for(API[key].request, version).decode(frame, position, len(frame))


def error_at(frame: bytes, position: int) -> int:
    return int.from_bytes(frame[position : position + 2], "big", signed=True)


def test_the_versions_have_responses_without_tags():
    """Positions would not be fixed otherwise."""
    assert not any(response_header_is_flexible(key, version) for key, version in VERSIONS.items())


def test_a_batch_is_accepted_by_a_broker():
    made = batch(16, 100, 1_700_000_000_000)
    header = read_batch_header(made)
    assert (header.record_count, header.size_bytes) == (16, len(made))
    assert check_crc(made, 0, header)
    assert {len(record.value or b"") for record in iterate_records(made, max_bytes=1 << 20)} == {100}


def test_produce():
    made = batch(2, 10, 0)
    key, request = read(produce_frame(TOPIC, 7, made, acks=1))
    assert key == ApiKey.PRODUCE
    assert request.acks == 1
    assert request.topic_data[0].name == TOPIC
    assert request.topic_data[0].partition_data[0].index == 7
    assert bytes(request.topic_data[0].partition_data[0].records) == made
    row = PartitionProduceResponse(index=3, error_code=-2, base_offset=99)
    answer = response_frame(ProduceResponse(responses=[TopicProduceResponse(name=TOPIC, partition_responses=[row])]))
    assert error_at(answer, produce_error_position(TOPIC)) == -2


def test_delete():
    _, request = read(delete_frame(TOPIC, [(0, 5), (9, 6)]))
    assert [(row.partition_index, row.offset) for row in request.topics[0].partitions] == [(0, 5), (9, 6)]
    row = DeleteRecordsPartitionResult(partition_index=1, low_watermark=5, error_code=7)
    answer = response_frame(DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(name=TOPIC, partitions=[row])]))
    assert error_at(answer, delete_error_position(TOPIC)) == 7


def test_metadata():
    _, request = read(metadata_frame(TOPIC))
    assert [topic.name for topic in request.topics] == [TOPIC]
    assert not request.allow_auto_topic_creation


def test_fetch():
    frame = fetch_frame(TOPIC, 2)
    request = bytearray(frame.request)
    struct.pack_into(">q", request, frame.offset_position, 123_456_789_012)
    _, message = read(bytes(request))
    assert message.topics[0].partitions[0].fetch_offset == 123_456_789_012
    assert message.topics[0].partitions[0].partition == 2
    made = batch(1, 10, 0)
    row = PartitionData(partition_index=2, error_code=1, high_watermark=9, aborted_transactions=None, records=made)
    answer = response_frame(FetchResponse(responses=[FetchableTopicResponse(topic=TOPIC, partitions=[row])]))
    assert error_at(answer, frame.error_position) == 1
    assert int.from_bytes(answer[frame.records_position : frame.records_position + 4], "big") == len(made)
    assert answer[frame.records_position + 4 :] == made


def test_fetch_in_a_session():
    for offset in (7, None):
        frame = session_frame(TOPIC, 5, offset)
        request = bytearray(frame.request)
        struct.pack_into(">i", request, frame.epoch_position, 123_456)
        _key, version, _correlation_id, _client_id, position = read_request_header(bytes(request), 4, len(request))
        codec = codec_for(FetchRequest, version)
        message = codec.decode(bytes(request), position, len(request))
        assert (message.session_id, message.session_epoch) == (5, 123_456)
        assert [row.fetch_offset for topic in message.topics for row in topic.partitions] == (
            [] if offset is None else [offset]
        )
        answer = response_frame(FetchResponse(error_code=71, session_id=5, responses=[]), SESSION_VERSION)
        assert error_at(answer, frame.error_position) == 71


def test_the_first_difference_is_where_the_field_begins():
    assert first_difference(lambda number: b"abc" + number.to_bytes(2, "big", signed=True) + b"z") == 3
