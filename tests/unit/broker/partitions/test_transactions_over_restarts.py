"""A broker is killed between two steps of a transaction with offsets; the next one continues from both logs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from lowtide.protocol.messages.end_txn import EndTxnRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from lowtide.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from lowtide.simulation.client import WireClient

from .test_slow_produce import HOST, World, simulate
from .test_slow_produce_in_transactions import begin

NAME = "x"
NONE, UNSTABLE = ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT
COMES_AGAIN = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}


class Client:
    """A producer and its group, on the broker that runs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client: WireClient
        self.identity: tuple[int, int]

    async def begin(self) -> None:
        self.client = await self.world.connect()
        self.identity = await begin(self.client, NAME)
        await self.client.request(FindCoordinatorRequest(key_type=0, coordinator_keys=[NAME]), 4)

    async def restart_broker(self) -> None:
        self.world.loop.nodes[HOST].kill()
        self.world.filesystem.crash_process()
        await self.world.serve()
        self.client = await self.world.connect()

    async def until_settled(self, request: Any, version: int, error_of: Any) -> Any:
        for _ in range(1_000):
            answer = await self.client.request(request, version)
            if error_of(answer) not in COMES_AGAIN:
                return answer
            await self.work()
        raise AssertionError(answer)

    async def work(self) -> None:
        """Let the broker continue with the results of its worker."""
        await asyncio.sleep(0.05)
        if self.world.worker.waiting:
            self.world.worker.step()

    async def add_group(self) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=NAME, producer_id=self.identity[0], producer_epoch=self.identity[1], group_id=NAME
        )
        return (await self.until_settled(request, 3, lambda answer: answer.error_code)).error_code

    async def commit(self, offset: int, version: int = 3) -> int:
        row = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
        request = TxnOffsetCommitRequest(
            transactional_id=NAME,
            group_id=NAME,
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[row])],
        )
        answer = await self.until_settled(request, version, lambda answer: answer.topics[0].partitions[0].error_code)
        return answer.topics[0].partitions[0].error_code

    async def commit_plainly(self, offset: int) -> int:
        row = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
        request = OffsetCommitRequest(
            group_id=NAME, member_id="", topics=[OffsetCommitRequestTopic(name="t", partitions=[row])]
        )
        answer = await self.until_settled(request, 8, lambda answer: answer.topics[0].partitions[0].error_code)
        return answer.topics[0].partitions[0].error_code

    async def end(self, *, is_commit: bool) -> int:
        request = EndTxnRequest(
            transactional_id=NAME, producer_id=self.identity[0], producer_epoch=self.identity[1], committed=is_commit
        )
        return (await self.until_settled(request, 3, lambda answer: answer.error_code)).error_code

    async def offset(self, *, stable: bool = True) -> tuple[int, int]:
        request = OffsetFetchRequest(
            group_id=NAME, topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])], require_stable=stable
        )
        answer = await self.until_settled(request, 7, lambda answer: answer.error_code)
        row = answer.topics[0].partitions[0]
        return row.error_code, row.committed_offset

    async def stable_offset(self) -> int:
        for _ in range(1_000):
            error, offset = await self.offset()
            if error == NONE:
                return offset
            assert error == UNSTABLE
            await self.work()
        raise AssertionError("it stays unstable")


@pytest.mark.parametrize(("is_commit", "told"), [(True, 9), (False, 5)])
@pytest.mark.parametrize("version", [3, 5])
def test_what_is_pending_stays_so_when_its_broker_is_killed(is_commit: bool, told: int, version: int) -> None:
    async def run(world: World) -> None:
        client = Client(world)
        await client.begin()
        assert await client.commit_plainly(5) == NONE
        if version == 3:
            assert await client.commit(9) == ErrorCode.INVALID_TXN_STATE, "its group was not added"
            assert await client.add_group() == NONE
        assert await client.commit(9, version) == NONE
        for _ in range(2):
            assert await client.offset() == (UNSTABLE, -1)
            assert await client.offset(stable=False) == (NONE, 5)
            await client.restart_broker()
        assert await client.end(is_commit=is_commit) == NONE
        assert await client.stable_offset() == told
        await client.restart_broker()
        assert await client.offset() == (NONE, told)

    simulate(run)


@pytest.mark.parametrize(("is_commit", "told"), [(True, 9), (False, -1)])
def test_an_end_that_was_answered_is_completed_in_the_group_by_the_next_coordinator(is_commit: bool, told: int) -> None:
    async def run(world: World) -> None:
        client = Client(world)
        await client.begin()
        assert await client.add_group() == NONE
        assert await client.commit(9) == NONE
        assert world.broker is not None
        world.broker.serving.coordinators.transactions._sender.close()
        assert await client.end(is_commit=is_commit) == NONE
        assert await client.offset() == (UNSTABLE, -1)
        await client.restart_broker()
        assert await client.stable_offset() == told

    simulate(run)


def test_a_transaction_without_end_is_aborted_after_its_timeout_and_a_late_commit_is_refused() -> None:
    async def run(world: World) -> None:
        client = Client(world)
        await client.begin()
        assert await client.commit(9, 5) == NONE
        await client.restart_broker()
        await client.offset()
        await asyncio.sleep(61)
        assert await client.stable_offset() == -1
        assert await client.commit(10, 5) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await client.end(is_commit=True) == ErrorCode.PRODUCER_FENCED

    simulate(run)
