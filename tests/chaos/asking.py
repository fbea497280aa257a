"""Requests of one partition, and the row that answers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.records import check_crc, iterate_batches, iterate_records

PRODUCE_VERSION, FETCH_VERSION, LIST_OFFSETS_VERSION, DELETE_RECORDS_VERSION = 9, 12, 7, 3
CREATE_TOPICS_VERSION, DELETE_TOPICS_VERSION = 7, 5
"""Versions in which requests have topic names."""

EARLIEST, LATEST = -2, -1
TIMESTAMP_MS = 1_700_000_000_000
FETCH_BYTES = 1 << 20
_MAXIMUM_DECOMPRESSED_BYTES = 1 << 24


def topic_request(
    name: str,
    assignment: Sequence[Sequence[int]] | None = None,
    *,
    partitions: int = -1,
    replicas: int = -1,
    configs: dict[str, str] | None = None,
) -> CreateTopicsRequest:
    """Returns a topic with given replicas, or with a number of partitions and replicas."""
    rows = [
        CreatableReplicaAssignment(partition_index=number, broker_ids=list(row))
        for number, row in enumerate(assignment or ())
    ]
    topic = CreatableTopic(
        name=name,
        num_partitions=-1 if rows else partitions,
        replication_factor=-1 if rows else replicas,
        assignments=rows,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


def batch(values: Sequence[bytes]) -> bytes:
    """One record batch."""
    return build_batch([(TIMESTAMP_MS, None, value, ()) for value in values])


def produce_request(
    topic: str, partition: int, values: Sequence[bytes], *, acks: int = -1, timeout_ms: int = 10_000
) -> ProduceRequest:
    """One batch."""
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch(values))])
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[data])


def delete_request(
    topic: str, partition: int, offset: int, *, timeout_ms: int = 10_000, leader_only: bool = False
) -> DeleteRecordsRequest:
    """Returns a delete to `offset` (exclusive); -1 is the high watermark."""
    row = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=partition, offset=offset)])
    return DeleteRecordsRequest(topics=[row], timeout_ms=timeout_ms, leader_only=leader_only)


def fetch_request(topic: str, partition: int, offset: int, *, wait_ms: int = 0, min_bytes: int = 0) -> FetchRequest:
    """Returns a consumer's Fetch for one response."""
    row = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=FETCH_BYTES,
        topics=[FetchTopic(topic=topic, partitions=[row])],
    )


def offsets_request(topic: str, partition: int, timestamp: int) -> ListOffsetsRequest:
    """Returns the first offset, or the end."""
    row = ListOffsetsTopic(
        name=topic, partitions=[ListOffsetsPartition(partition_index=partition, timestamp=timestamp)]
    )
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[row])


def only_row(response: Any) -> Any:
    """Returns the answer to a request about one partition."""
    topics = response.topics if hasattr(response, "topics") else response.responses
    (topic,) = topics
    (row,) = topic.partition_responses if hasattr(topic, "partition_responses") else topic.partitions
    return row


def records_from(data: bytes | memoryview | None, offset: int) -> dict[int, bytes]:
    """Offset → value, as a client that fetches from `offset` delivers them.

    Errors: AssertionError for a wrong checksum.
    """
    found: dict[int, bytes] = {}
    data = bytes(data or b"")
    for position, header in iterate_batches(data):
        end = position + header.size_bytes
        if end > len(data):
            break
        assert check_crc(data, position, header), f"the batch at offset {header.base_offset} has a wrong CRC"
        for record in iterate_records(data[position:end], max_bytes=_MAXIMUM_DECOMPRESSED_BYTES):
            if record.offset >= offset:
                found[record.offset] = bytes(record.value or b"")
    return found
