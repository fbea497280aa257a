"""Requests encoded before the clock runs, and the positions in their answers that the load generator reads.

Requests use the oldest version that Apache Kafka 4 serves: all brokers have it, and in these versions, which have no
fields of variable length before those that are read, an error code is at the same position in every answer. The
positions are not counted by hand: two messages that differ in one field are encoded, and the first byte that differs is
the position.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.headers import frame, request_header, response_header
from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from lowtide.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from lowtide.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

VERSIONS = {
    ApiKey.PRODUCE: 3,
    ApiKey.FETCH: 4,
    ApiKey.METADATA: 4,
    ApiKey.DELETE_RECORDS: 0,
    ApiKey.OFFSET_COMMIT: 2,
    ApiKey.API_VERSIONS: 3,
}
"""Versions of the requests that are sent under load."""

CLIENT_ID = "bench"
CORRELATION_ID = 1
"""The same for all requests: answers arrive in order, and the generator only counts them."""

TIMEOUT_MS = 30_000
FETCH_WAIT_MS = 500
FETCH_PARTITION_BYTES = 1 << 20
FETCH_BYTES = 50 << 20

KEYS = {spec.request: key for key, spec in API.items()} | {spec.response: key for key, spec in API.items()}
_LENGTH_OF_RECORDS_BYTES = 4


_codec_for: Any = codec_for


def request_frame(request: Any, version: int | None = None) -> bytes:
    """Encodes a request, by default in the version of `VERSIONS`."""
    key = KEYS[type(request)]
    chosen = VERSIONS[key] if version is None else version
    return frame(
        request_header(key, chosen, CORRELATION_ID, CLIENT_ID), _codec_for(type(request), chosen).encode(request)
    )


def response_frame(response: Any, version: int | None = None) -> bytes:
    """Encodes an answer, by default in the version of `VERSIONS`, which must not be flexible."""
    chosen = VERSIONS[KEYS[type(response)]] if version is None else version
    return frame(response_header(CORRELATION_ID, flexible=False), _codec_for(type(response), chosen).encode(response))


def first_difference(make: Callable[[int], bytes]) -> int:
    """Returns the position of a field in a frame. `make` encodes the frame with a number in this field.

    Sizes must not depend on the number.
    """
    zeros, ones = make(0), make(-1)
    assert len(zeros) == len(ones)
    return next(position for position, (left, right) in enumerate(zip(zeros, ones, strict=True)) if left != right)


def batch(count: int, size: int, now_ms: int) -> bytes:
    """Returns a batch of `count` records of `size` random bytes each, which can't be compressed."""
    return build_batch([(now_ms, None, os.urandom(size), ()) for _ in range(count)])


def produce_frame(topic: str, partition: int, records: bytes, *, acks: int = -1, version: int | None = None) -> bytes:
    """Returns a Produce request of one batch."""
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=records)])
    return request_frame(ProduceRequest(acks=acks, timeout_ms=TIMEOUT_MS, topic_data=[data]), version)


def produce_error_position(topic: str) -> int:
    """Returns the position of the error code in the answer to `produce_frame`, from the size prefix on."""

    def answer(error: int) -> bytes:
        row = PartitionProduceResponse(index=0, error_code=error, base_offset=0)
        return response_frame(ProduceResponse(responses=[TopicProduceResponse(name=topic, partition_responses=[row])]))

    return first_difference(answer)


def delete_frame(topic: str, offsets: Sequence[tuple[int, int]]) -> bytes:
    """Returns a DeleteRecords request: (partition, first offset that is kept) of each partition."""
    rows = [DeleteRecordsPartition(partition_index=partition, offset=offset) for partition, offset in offsets]
    return request_frame(
        DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=rows)], timeout_ms=TIMEOUT_MS)
    )


def delete_error_position(topic: str) -> int:
    """Returns the position of the error code in the answer to a `delete_frame` of one partition."""

    def answer(error: int) -> bytes:
        row = DeleteRecordsPartitionResult(partition_index=0, low_watermark=0, error_code=error)
        return response_frame(DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(name=topic, partitions=[row])]))

    return first_difference(answer)


def commit_error_position(topic: str, partitions: int) -> int:
    """Returns the position of the first error code in the answer to an OffsetCommit of one topic."""

    def answer(error: int) -> bytes:
        rows = [
            OffsetCommitResponsePartition(partition_index=number, error_code=0 if number else error)
            for number in range(partitions)
        ]
        return response_frame(OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name=topic, partitions=rows)]))

    return first_difference(answer)


def metadata_frame(topic: str) -> bytes:
    """Returns a Metadata request of one topic."""
    return request_frame(MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False))


def versions_frame() -> bytes:
    """Returns an ApiVersions request in the version that clients use."""
    return request_frame(ApiVersionsRequest(client_software_name="bench", client_software_version="1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFrame:
    """A Fetch request of one partition, in which only the offset changes, and the positions in its answers."""

    request: bytes
    offset_position: int
    """The position of the eight bytes of the offset in the request."""

    error_position: int
    records_position: int
    """The position of the four bytes of the records' length in the answer; the records follow them."""


def fetch_frame(topic: str, partition: int) -> FetchFrame:
    """Returns a consumer's Fetch of one partition."""

    def request(offset: int) -> bytes:
        row = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_PARTITION_BYTES)
        topics = [FetchTopic(topic=topic, partitions=[row])]
        return request_frame(FetchRequest(max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES, topics=topics))

    def answer(error: int) -> bytes:
        row = PartitionData(partition_index=partition, error_code=error, high_watermark=0, records=b"")
        return response_frame(FetchResponse(responses=[FetchableTopicResponse(topic=topic, partitions=[row])]))

    return FetchFrame(
        request=request(0),
        offset_position=first_difference(request),
        error_position=first_difference(answer),
        # An answer without records ends with their length.
        records_position=len(answer(0)) - _LENGTH_OF_RECORDS_BYTES,
    )


SESSION_VERSION = 11
"""The last version whose fields have the same size in every request and answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFrame:
    """A Fetch request of one partition in a session, in which only the session's epoch changes."""

    request: bytes
    epoch_position: int
    """The position of the four bytes of the epoch in the request."""

    error_position: int
    """The position of the session's error code in the answer."""


def session_frame(topic: str, session_id: int, offset: int | None) -> SessionFrame:
    """Returns a consumer's Fetch in a session of one partition; it names the partition only with an `offset`."""

    def request(epoch: int) -> bytes:
        return request_frame(session_request(topic, session_id, epoch, offset), SESSION_VERSION)

    def answer(error: int) -> bytes:
        return response_frame(FetchResponse(error_code=error, responses=[]), SESSION_VERSION)

    return SessionFrame(
        request=request(0), epoch_position=first_difference(request), error_position=first_difference(answer)
    )


def session_request(topic: str, session_id: int, epoch: int, offset: int | None) -> FetchRequest:
    """Returns the same request as a message, which the broker does not hold. Epoch 0 begins a session."""
    rows = (
        []
        if offset is None
        else [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_PARTITION_BYTES)]
    )
    topics = [FetchTopic(topic=topic, partitions=rows)] if rows else []
    return FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=FETCH_BYTES, session_id=session_id, session_epoch=epoch, topics=topics
    )
