"""A running broker answers requests with bytes behind their fields on all paths, and counts them."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from lowtide.protocol.api_keys import API, ApiKey, response_header_is_flexible
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.headers import request_header
from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.describe_acls import DescribeAclsRequest
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.heartbeat import HeartbeatRequest
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.examples import one_in

from .leading import A_RECORD, HOST, PORT, Leading, simulate

TAILS = (b"", b"\0", b"\7" * 30)


def produce(partitions: int = 1) -> ProduceRequest:
    rows = [PartitionProduceData(index=0, records=A_RECORD) for _ in range(partitions)]
    return ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=rows)])


def fetch(world: Leading, rows: int = 1) -> FetchRequest:
    wanted = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20) for _ in range(rows)]
    topics = [FetchTopic(topic="t", topic_id=world.partition().topic_id, partitions=wanted)]
    return FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics, session_id=0, session_epoch=-1)


def delete(rows: int = 1) -> DeleteRecordsRequest:
    topic = DeleteRecordsTopic(
        name="t", partitions=[DeleteRecordsPartition(partition_index=number, offset=1) for number in range(rows)]
    )
    return DeleteRecordsRequest(topics=[topic], timeout_ms=1000)


def commit() -> OffsetCommitRequest:
    rows = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)]
    return OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name="t", partitions=rows)],
    )


def requests(world: Leading) -> list[tuple[ApiKey, int, Any]]:
    """Requests that a short form takes, others, and large ones that are cut or handled whole."""
    acls = DescribeAclsRequest(
        resource_type_filter=2,
        resource_name_filter=None,
        pattern_type_filter=3,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    return [
        (ApiKey.DESCRIBE_ACLS, 2, acls),
        (ApiKey.API_VERSIONS, 4, ApiVersionsRequest(client_software_name="go", client_software_version="1")),
        (ApiKey.API_VERSIONS, 0, ApiVersionsRequest()),
        (ApiKey.METADATA, 12, MetadataRequest(topics=[MetadataRequestTopic(name="t")])),
        (
            ApiKey.METADATA,
            12,
            MetadataRequest(topics=[MetadataRequestTopic(name=f"t{number}") for number in range(3_000)]),
        ),
        (ApiKey.PRODUCE, 10, produce()),
        (ApiKey.PRODUCE, 7, produce()),
        (ApiKey.PRODUCE, 10, produce(1_000)),
        (ApiKey.FETCH, 17, fetch(world)),
        (ApiKey.FETCH, 11, fetch(world)),
        (ApiKey.FETCH, 17, fetch(world, 3_000)),
        (ApiKey.DELETE_RECORDS, 2, delete()),
        (ApiKey.DELETE_RECORDS, 2, delete(1_000)),
        (ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id="g", generation_id=1, member_id="m")),
        (ApiKey.OFFSET_COMMIT, 8, commit()),
    ]


def framed(key: ApiKey, version: int, request: Any, correlation_id: int, tail: bytes) -> bytes:
    body = (
        request_header(key, version, correlation_id, "surplus")
        + codec_for(type(request), version).encode(request)
        + tail
    )
    return struct.pack(">i", len(body)) + body


async def answer(reader: asyncio.StreamReader, key: ApiKey, version: int) -> tuple[int, Any]:
    size = int.from_bytes(await reader.readexactly(4), "big")
    content = await reader.readexactly(size)
    position = 5 if response_header_is_flexible(key, version) else 4
    message = codec_for(API[key].response, version).decode(content, position, size)
    return int.from_bytes(content[:4], "big"), message


@pytest.mark.parametrize("number", one_in(3, range(15)))
def test_each_kind_of_request_is_answered_with_bytes_behind_it(number: int) -> None:
    async def run(world: Leading) -> None:
        await world.start(offsets_topic_num_partitions="1", offsets_topic_replication_factor="1")
        await world.create_topic("t", (1,))
        assert len(requests(world)) == 15
        key, version, request = requests(world)[number]
        reader, writer = await asyncio.open_connection(HOST, PORT)
        kinds = set()
        for correlation_id, tail in enumerate(TAILS):
            writer.write(framed(key, version, request, correlation_id, tail))
            told, message = await answer(reader, key, version)
            assert told == correlation_id
            kinds.add(type(message))
        # Together, as a client that doesn't wait sends them: a run of them, and one behind another.
        writer.write(b"".join(framed(key, version, request, 10 + each, TAILS[each % 3]) for each in range(6)))
        for each in range(6):
            assert (await answer(reader, key, version))[0] == 10 + each
        assert len(kinds) == 1
        assert world.broker is not None
        counts = world.broker.serving.host.dispatcher.surplus.counts
        name = API[key].request.__name__.removesuffix("Request")
        assert {request for request, _ in counts} == {name}
        assert counts.total() == 6
        writer.close()

    simulate(run)


def test_the_software_of_the_client_is_named() -> None:
    async def run(world: Leading) -> None:
        await world.start()
        await world.create_topic("t", (1,))
        reader, writer = await asyncio.open_connection(HOST, PORT)
        versions = ApiVersionsRequest(client_software_name="kafka-go", client_software_version="0.4")
        writer.write(framed(ApiKey.API_VERSIONS, 3, versions, 1, b""))
        await answer(reader, ApiKey.API_VERSIONS, 3)
        writer.write(framed(ApiKey.METADATA, 12, MetadataRequest(topics=[]), 2, b"\0"))
        await answer(reader, ApiKey.METADATA, 12)
        assert world.broker is not None
        assert world.broker.serving.host.dispatcher.surplus.counts == {("Metadata", "kafka-go"): 1}
        writer.close()

    simulate(run)
