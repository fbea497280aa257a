"""Offsets in transactions where a group and a transactional id have different coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.end_txn import EndTxnRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from lowtide.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from lowtide.simulation.client import WireClient
from lowtide.testing.cluster import LowtideCluster

WAIT_S = 120
ADDS, ABORTABLE, OLD = 5, 4, 3
NONE = ErrorCode.NONE
COMES_AGAIN = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}


async def settled(ask: Callable[[], Awaitable[tuple[int, Any]]]) -> tuple[int, Any]:
    """Returns the first answer without a retriable error."""
    async with asyncio.timeout(WAIT_S):
        while True:
            error, answer = await ask()
            if error not in COMES_AGAIN:
                return error, answer
            await asyncio.sleep(0.02)


async def coordinator(client: WireClient, kind: int, key: str) -> Any:
    async def ask() -> tuple[int, Any]:
        [found] = (await client.request(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4)).coordinators
        return found.error_code, found

    return (await settled(ask))[1]


class Producer:
    """A transactional id whose coordinator differs from that of the group of the same name."""

    def __init__(self, name: str, transactions: WireClient, groups: WireClient) -> None:
        self.name, self.transactions, self.groups = name, transactions, groups

    async def begin(self) -> None:
        async def ask() -> tuple[int, Any]:
            request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
            answer = await self.transactions.request(request, 4)
            return answer.error_code, answer

        answer = (await settled(ask))[1]
        self.identity = answer.producer_id, answer.producer_epoch

    async def commit(self, offset: int, version: int) -> int:
        row = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.name,
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[row])],
        )

        async def ask() -> tuple[int, Any]:
            answer = await self.groups.request(request, version)
            return answer.topics[0].partitions[0].error_code, answer

        return (await settled(ask))[0]

    async def end(self, *, is_commit: bool) -> None:
        producer_id, epoch = self.identity
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=producer_id, producer_epoch=epoch, committed=is_commit
        )

        async def ask() -> tuple[int, Any]:
            answer = await self.transactions.request(request, 5)
            return answer.error_code, answer

        error, answer = await settled(ask)
        assert error == NONE
        assert (answer.producer_id, answer.producer_epoch) == (producer_id, epoch + 1)
        self.identity = answer.producer_id, answer.producer_epoch

    async def offset(self) -> int:
        request = OffsetFetchRequest(
            group_id=self.name, topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])], require_stable=True
        )

        async def ask() -> tuple[int, Any]:
            row = (await self.groups.request(request, 7)).topics[0].partitions[0]
            return row.error_code, row.committed_offset

        return (await settled(ask))[1]


async def apart(client: WireClient) -> Producer:
    """Returns a producer and its group on two brokers."""
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
    for number in range(50):
        name = f"apart-{number}"
        one, other = await coordinator(client, 1, name), await coordinator(client, 0, name)
        if one.node_id != other.node_id:
            return Producer(
                name, await WireClient.connect(one.host, one.port), await WireClient.connect(other.host, other.port)
            )
    raise AssertionError("one broker coordinates everything")


def test_offsets_add_themselves_to_a_transaction_that_another_broker_coordinates() -> None:
    async def run(bootstrap: str) -> None:
        host, _, port = bootstrap.split(",", maxsplit=1)[0].partition(":")
        client = await WireClient.connect(host, int(port))
        producer = await apart(client)
        await producer.begin()
        for offset, is_commit, told in ((5, True, 5), (7, False, 5), (9, True, 9)):
            assert await producer.commit(offset, OLD) == ErrorCode.INVALID_TXN_STATE, "the group was not added"
            assert await producer.commit(offset, ABORTABLE) == ErrorCode.TRANSACTION_ABORTABLE
            assert await producer.commit(offset, ADDS) == NONE
            before = producer.identity
            await producer.end(is_commit=is_commit)
            assert await producer.offset() == told
            now, producer.identity = producer.identity, before
            assert await producer.commit(99, ADDS) == ErrorCode.INVALID_PRODUCER_EPOCH, "of the ended transaction"
            producer.identity = now
        for each in (client, producer.transactions, producer.groups):
            each.close()
        await asyncio.sleep(0)

    with LowtideCluster(brokers=3) as cluster:
        asyncio.run(run(cluster.bootstrap))
