"""Produce responses without appends: topics without partitions, and transactional batches without an id.

Compared with a real Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.simulation.client import ConnectionLostError, WireClient

from .test_slow_produce import SMALL, World, produce, rows, simulate
from .test_slow_produce_in_transactions import begin

NONE, REFUSED = ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
EARLIEST, EARLIEST_LOCAL = -2, -4


def batch(identity: tuple[int, int], sequence: int, *, is_transactional: bool = True) -> bytes:
    return build_batch(
        [(1, None, b"", ())],
        producer_id=identity[0],
        producer_epoch=identity[1],
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


@pytest.mark.parametrize("version", [3, 9, 12])
def test_a_topic_without_partitions_is_not_answered(version: int) -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        nothing = [TopicProduceData(name=name, partition_data=[]) for name in ("t", "unknown")]
        with_one = [*nothing, TopicProduceData(name="t", partition_data=[PartitionProduceData(index=1, records=SMALL)])]
        for topics, expected in (([], []), (nothing, []), (with_one, [("t", 1, NONE)])):
            answer = await client.request(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics), version)
            found = [
                (topic.name, row.index, row.error_code)
                for topic in answer.responses
                for row in topic.partition_responses
            ]
            assert (len(answer.responses), found) == (len(expected), expected)

    simulate(run)


@pytest.mark.parametrize("version", [3, 9, 11, 12])
def test_an_open_transaction_takes_no_batch_without_the_transactional_id(version: int) -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        identity = await begin(client, "x")
        opening = produce(batch(identity, 0))
        opening.transactional_id = "x"
        assert rows(await client.request(opening, 12)) == [(NONE, 0)]
        assert rows(await client.request(produce(batch(identity, 1)), version)) == [(REFUSED, -1)]
        assert rows(await client.request(produce(batch(identity, 1, is_transactional=False)), version)) == [
            (ErrorCode.INVALID_TXN_STATE, -1)
        ]
        going_on = produce(batch(identity, 1))
        going_on.transactional_id = "x"
        assert rows(await client.request(going_on, version)) == [(NONE, 1)]

    simulate(run)


def test_nothing_is_written_of_a_request_that_has_such_a_batch() -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        request = produce(SMALL, batch((7, 0), 0), b"", b"x" * 30)
        assert rows(await client.request(request, 9)) == [(REFUSED, -1)] * 4
        assert rows(await client.request(produce(SMALL), 9)) == [(NONE, 0)]
        request.acks = 0
        with pytest.raises(ConnectionLostError):
            await client.send(request, 9, expect_answer=False)
            await client.request(produce(SMALL), 9)

    simulate(run)


def test_a_transactional_batch_of_no_producer_is_in_no_transaction() -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        lonely = build_batch([(1, None, b"", ())], is_transactional=True)
        assert rows(await client.request(produce(lonely), 9)) == [(REFUSED, -1)]
        request = produce(lonely)
        request.transactional_id = "x"
        assert rows(await client.request(request, 9)) == [(NONE, 0)]
        partition: Any = world.broker.replicas.find("t", 0)
        assert partition.log.last_stable_offset == partition.log.log_end_offset == 1

    simulate(run)


async def earliest(client: WireClient, version: int, timestamp: int) -> tuple[int, int]:
    topics = [ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])]
    row = (await client.request(ListOffsetsRequest(replica_id=-1, topics=topics), version)).topics[0].partitions[0]
    assert row.error_code == NONE
    return row.offset, row.leader_epoch


@pytest.mark.parametrize(("version", "timestamp"), [(4, EARLIEST), (11, EARLIEST), (11, EARLIEST_LOCAL)])
def test_an_empty_log_begins_in_the_epoch_of_its_leader(version: int, timestamp: int) -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        assert await earliest(client, version, timestamp) == (0, 0)
        assert rows(await client.request(produce(SMALL), 9)) == [(NONE, 0)]
        assert await earliest(client, version, timestamp) == (0, 0)
        rows_of_topic = [
            DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)])
        ]
        answer = await client.request(DeleteRecordsRequest(topics=rows_of_topic, timeout_ms=10_000), 2)
        assert answer.topics[0].partitions[0].low_watermark == 1
        assert await earliest(client, version, timestamp) == (1, 0)

    simulate(run)
