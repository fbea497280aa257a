"""`produce_records` writes nothing twice: a batch keeps its producer and its sequence over all attempts."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.admin import BrokerAnsweredError, TopicPartition, WrittenRecords
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.init_producer_id import InitProducerIdResponse
from lowtide.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from lowtide.protocol.records import read_batch_header

from .scripted import HANG_UP, ScriptedCluster, simulated

RECORD = (1_600_000_000_000, b"k", b"v", ())


def with_ids(cluster: ScriptedCluster) -> None:
    """Has the brokers give the producer id 77."""
    cluster.scripts[None, ApiKey.INIT_PRODUCER_ID] = lambda *_: InitProducerIdResponse(
        error_code=0, producer_id=77, producer_epoch=3
    )


def answered(request: Any, **fields: Any) -> ProduceResponse:
    """Returns the same outcome for each partition of a request."""
    rows = {"error_code": 0, "base_offset": 5} | fields
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[PartitionProduceResponse(index=row.index, **rows) for row in topic.partition_data],
            )
            for topic in request.topic_data
        ]
    )


def test_partitions_of_a_leader_are_one_request_with_all_acknowledgements():
    async def run(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1, 2, 1)
        with_ids(cluster)
        cluster.scripts[None, ApiKey.PRODUCE] = lambda _, request: answered(request)
        async with cluster.client() as client:
            keys = [TopicPartition("t", number) for number in range(3)]
            found = await client.produce_records({key: [RECORD, RECORD] for key in keys})
        assert found == dict.fromkeys(keys, WrittenRecords(first_offset=5, append_time_ms=None))
        sent = [each for each in cluster.asked if each.key == ApiKey.PRODUCE]
        assert sorted(
            (each.broker_id, [row.index for row in each.request.topic_data[0].partition_data]) for each in sent
        ) == [(1, [0, 2]), (2, [1])]
        assert {(each.request.acks, each.request.transactional_id) for each in sent} == {(-1, None)}

    simulated(run)


def test_a_lost_answer_sends_the_same_batch_again():
    async def run(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        with_ids(cluster)
        cluster.scripts[None, ApiKey.PRODUCE] = lambda _, request: (
            HANG_UP if cluster.count(ApiKey.PRODUCE) < 3 else answered(request, log_append_time_ms=9)
        )
        async with cluster.client() as client:
            found = await client.produce_records({TopicPartition("t", 0): [RECORD]})
        assert found == {TopicPartition("t", 0): WrittenRecords(first_offset=5, append_time_ms=9)}
        batches = [
            bytes(each.request.topic_data[0].partition_data[0].records)
            for each in cluster.asked
            if each.key == ApiKey.PRODUCE
        ]
        assert len(batches) == 3
        assert len(set(batches)) == 1
        header = read_batch_header(batches[0])
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 0)
        assert cluster.count(ApiKey.INIT_PRODUCER_ID) == 1

    simulated(run)


def test_another_leader_is_asked_and_a_refusal_says_why():
    async def run(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        with_ids(cluster)

        def moved(_: Any, request: Any) -> ProduceResponse:
            cluster.partition("t").leader = 2
            return answered(request, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)

        reasons = [BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message="it has no key")]
        cluster.scripts[1, ApiKey.PRODUCE] = moved
        cluster.scripts[2, ApiKey.PRODUCE] = lambda _, request: answered(
            request, error_code=ErrorCode.INVALID_RECORD, record_errors=reasons, error_message="invalid"
        )
        async with cluster.client() as client:
            found = (await client.produce_records({TopicPartition("t", 0): [RECORD]}))[TopicPartition("t", 0)]
        assert isinstance(found, BrokerAnsweredError)
        assert str(found) == "records for t-0: INVALID_RECORD (it has no key)"
        assert cluster.count(ApiKey.PRODUCE) == 2

    simulated(run)


def test_a_producer_without_rights_writes_nothing():
    async def run(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        cluster.scripts[None, ApiKey.INIT_PRODUCER_ID] = lambda *_: InitProducerIdResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, producer_id=-1, producer_epoch=-1
        )
        async with cluster.client() as client:
            with pytest.raises(BrokerAnsweredError, match="CLUSTER_AUTHORIZATION_FAILED"):
                await client.produce_records({TopicPartition("t", 0): [RECORD]})
            with pytest.raises(ValueError, match="no records"):
                await client.produce_records({TopicPartition("t", 0): []})
            assert await client.produce_records({}) == {}
        assert cluster.count(ApiKey.PRODUCE) == 0

    simulated(run)
