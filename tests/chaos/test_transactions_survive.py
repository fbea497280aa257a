"""A broker that is coordinator and leader is killed at any moment: a transaction is in all of its partitions or in
none, and none hangs.

Each transaction also commits its number as a group's offset: the committed offset is always that of the last committed
transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.control_records import read_control_record
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from lowtide.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from lowtide.protocol.records import iterate_batches, iterate_records
from lowtide.simulation.client import WireClient

from .serving import ServeProcess

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SEED = int(os.environ.get("SEED", "7"))
LIFE_S = (0.1, 0.5)
LIMIT_S = 120.0
TOPIC, PARTITIONS = "moved", 3
SETTINGS = (
    "transaction.state.log.num.partitions=3",
    "offsets.topic.num.partitions=2",
    "auto.create.topics.enable=false",
)
INIT_VERSION, ADD_VERSION, FETCH_VERSION, OFFSET_FETCH_VERSION = 4, 3, 11, 7
NONE = ErrorCode.NONE


COMES_AGAIN = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}


class Writer:
    """The client of one transactional id.

    Transactions have numbers, which are their records and their committed offsets.
    """

    produce_version, commit_version, end_version = 9, 3, 3

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = 0
        self.committed: set[str] = set()
        self.aborted: set[str] = set()

    async def run(self, broker: ServeProcess) -> None:
        """Writes transactions until the connection breaks; first ends the one that was left open."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, EOFError):
            client = await broker.connect()
            await self.begin(client)
            while True:
                self.number += 1
                await self.write(client)

    async def begin(self, client: WireClient) -> None:
        """Replaces the previous process."""
        while True:
            for kind in (0, 1):
                await client.request(FindCoordinatorRequest(key_type=kind, coordinator_keys=[self.name]), 4)
            answer = await client.request(
                InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000), INIT_VERSION
            )
            if answer.error_code == NONE:
                self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
                return
            await asyncio.sleep(0.02)

    async def write(self, client: WireClient) -> None:
        """One transaction."""
        value = f"{self.name} {self.number}"
        await self.announce(client)
        await self.produce(client, value)
        await self.commit_offset(client)
        is_commit = self.number % 4 != 0
        end = EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, committed=is_commit
        )
        ended = await client.request(end, self.end_version)
        assert ended.error_code == NONE, ended
        (self.committed if is_commit else self.aborted).add(value)
        self.on_ended(ended)

    async def announce(self, client: WireClient) -> None:
        """Adds the partitions of the transaction."""
        topics = [AddPartitionsToTxnTopic(name=TOPIC, partitions=list(range(PARTITIONS)))]
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        while True:
            added = await client.request(add, ADD_VERSION)
            codes = {
                row.partition_error_code
                for topic in added.results_by_topic_v3_and_below
                for row in topic.results_by_partition
            }
            if codes == {NONE}:
                break
            assert codes <= COMES_AGAIN, codes
        group = AddOffsetsToTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, group_id=self.name
        )
        assert (await client.request(group, ADD_VERSION)).error_code == NONE

    async def produce(self, client: WireClient, value: str) -> None:
        """One record for each partition; temporarily refused batches are sent again."""
        records = build_batch(
            [(1, None, value.encode(), ())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            is_transactional=True,
        )
        left = list(range(PARTITIONS))
        while left:
            topic = TopicProduceData(
                name=TOPIC, partition_data=[PartitionProduceData(index=number, records=records) for number in left]
            )
            request = ProduceRequest(transactional_id=self.name, acks=-1, timeout_ms=1000, topic_data=[topic])
            rows = (await client.request(request, self.produce_version)).responses[0].partition_responses
            assert {row.error_code for row in rows} <= COMES_AGAIN | {NONE}, rows
            left = [row.index for row in rows if row.error_code != NONE]
        self.sequence += 1

    async def commit_offset(self, client: WireClient) -> None:
        """Commits the number of the transaction, in the transaction."""
        row = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=self.number, committed_metadata=None)
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[row])],
        )
        while True:
            error = (await client.request(request, self.commit_version)).topics[0].partitions[0].error_code
            if error == NONE:
                return
            assert error in COMES_AGAIN, error

    def on_ended(self, ended: EndTxnResponse) -> None:
        """Continues with the same epoch."""

    async def offset(self, client: WireClient) -> int:
        """Returns the committed offset of its group, once no transaction can change it."""
        request = OffsetFetchRequest(
            group_id=self.name, topics=[OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])], require_stable=True
        )
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while True:
            answer = await client.request(request, OFFSET_FETCH_VERSION)
            row = answer.topics[0].partitions[0] if answer.error_code == NONE else None
            if row is not None and row.error_code == NONE:
                return row.committed_offset
            assert asyncio.get_running_loop().time() < deadline, f"offsets of {self.name} stay unstable: {answer}"
            await asyncio.sleep(0.05)


class BumpingWriter(Writer):
    """A writer with an epoch for each transaction, which adds no partitions (KIP-890)."""

    produce_version, commit_version, end_version = 12, 5, 5

    async def announce(self, client: WireClient) -> None:
        """Do nothing: a write adds its partition."""

    def on_ended(self, ended: EndTxnResponse) -> None:
        """Continues with the epoch of the response."""
        assert (ended.producer_id, ended.producer_epoch) != (self.producer_id, self.epoch)
        self.producer_id, self.epoch, self.sequence = ended.producer_id, ended.producer_epoch, 0


async def read(client: WireClient, partition: int) -> list[str]:
    """Returns all committed records of a partition, when no transaction is open any more."""
    values: list[str] = []
    offset, deadline = 0, asyncio.get_running_loop().time() + LIMIT_S
    while True:
        row = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, isolation_level=1, topics=[FetchTopic(topic=TOPIC, partitions=[row])]
        )
        answer = (await client.request(request, FETCH_VERSION)).responses[0].partitions[0]
        assert answer.error_code == NONE
        if offset == answer.high_watermark == answer.last_stable_offset:
            return values
        assert asyncio.get_running_loop().time() < deadline, f"a transaction hangs at {answer.last_stable_offset}"
        waiting = sorted(answer.aborted_transactions, key=lambda entry: entry.first_offset)
        dropped: set[int] = set()
        content = bytes(answer.records)
        for position, header in iterate_batches(content):
            batch = content[position : position + header.size_bytes]
            while waiting and waiting[0].first_offset <= header.last_offset:
                dropped.add(waiting.pop(0).producer_id)
            if header.is_control:
                control = read_control_record(batch, max_bytes=1 << 16)
                if control is not None and control.type == 0:
                    dropped.discard(header.producer_id)
            elif header.producer_id not in dropped and header.base_offset >= offset:
                values += [
                    record.value.decode() for record in iterate_records(batch, max_bytes=1 << 20) if record.value
                ]
            offset = max(offset, header.next_offset)


@pytest.mark.seeds
async def test_transactions_are_whole_after_sigkill(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    writers = [Writer("first"), Writer("second"), BumpingWriter("third")]
    for life in range(ROUNDS):
        async with ServeProcess(tmp_path, *SETTINGS) as broker:
            if life == 0:
                client = await broker.connect()
                topic = CreatableTopic(
                    name=TOPIC, num_partitions=PARTITIONS, replication_factor=1, assignments=[], configs=[]
                )
                await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
            running = [asyncio.ensure_future(writer.run(broker)) for writer in writers]
            await asyncio.sleep(rng.uniform(*LIFE_S) + (1.0 if life == 0 else 0.0))
            async with asyncio.timeout(
                LIMIT_S
            ):  # A busy machine does little in a short life: the last one has something to check.
                while life == ROUNDS - 1 and min(len(writer.committed) for writer in writers) <= ROUNDS:
                    assert not any(each.done() for each in running)
                    await asyncio.sleep(0.01)
            await broker.kill()
            await asyncio.gather(*running)
            assert broker.faults == []
    async with ServeProcess(tmp_path, *SETTINGS) as broker:
        client = await broker.connect()
        for writer in writers:
            await writer.begin(client)
        found = [await read(client, number) for number in range(PARTITIONS)]
        offsets = {writer.name: await writer.offset(client) for writer in writers}
        assert broker.faults == []
    for values in found:
        assert len(values) == len(set(values)), "read twice"
        assert set(values) == set(found[0]), "it is in some partitions only"
        for writer in writers:
            assert writer.committed <= set(values)
            assert not writer.aborted & set(values)
    for writer in writers:
        last = max(int(value.split()[1]) for value in found[0] if value.startswith(writer.name))
        assert offsets[writer.name] == last, "records and offsets of a transaction do not agree"
    assert all(len(writer.committed) > ROUNDS for writer in writers)
