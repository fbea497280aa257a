"""A broker that is killed at any moment, and coordinates and leads: a transaction is in all of its partitions or in none, none hangs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.end_txn import EndTxnRequest
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.records import build_batch, iterate_batches, iterate_records, read_control_record
from lowtide.testing.client import WireClient

from .serving import ServeProcess

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SEED = int(os.environ.get("SEED", "7"))
LIFE_S = (0.1, 0.5)
TOPIC, PARTITIONS = "moved", 3
NAMES = ["first", "second"]
SETTINGS = ("transaction.state.log.num.partitions=3", "auto.create.topics.enable=false")
INIT_VERSION, ADD_VERSION, PRODUCE_VERSION, END_VERSION, FETCH_VERSION = 4, 3, 9, 3, 11
NONE = ErrorCode.NONE


class Writer:
    """One transactional id's client. Transactions have numbers, which are their records."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = 0
        self.committed: set[str] = set()
        self.aborted: set[str] = set()

    async def run(self, broker: ServeProcess) -> None:
        """Write transactions until the connection breaks; whatever the life before left open is ended first."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, EOFError):
            client = await broker.connect()
            identity = await self.begin(client)
            sequence = 0
            while True:
                self.number += 1
                await self.write(client, identity, sequence)
                sequence += 1

    async def begin(self, client: WireClient) -> tuple[int, int]:
        while True:
            await client.request(FindCoordinatorRequest(key_type=1, coordinator_keys=[self.name]), 4)
            answer = await client.request(InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000), INIT_VERSION)
            if answer.error_code == NONE:
                return answer.producer_id, answer.producer_epoch
            await asyncio.sleep(0.02)

    async def write(self, client: WireClient, identity: tuple[int, int], sequence: int) -> None:
        producer_id, epoch = identity
        topics = [AddPartitionsToTxnTopic(name=TOPIC, partitions=list(range(PARTITIONS)))]
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=topics,
        )
        while True:
            added = await client.request(add, ADD_VERSION)
            codes = {row.partition_error_code for topic in added.results_by_topic_v3_and_below for row in topic.results_by_partition}
            if codes == {NONE}:
                break
            assert codes == {ErrorCode.CONCURRENT_TRANSACTIONS}, codes
        value = f"{self.name} {self.number}"
        records = build_batch(
            [(1, None, value.encode(), ())],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        rows = [PartitionProduceData(index=number, records=records) for number in range(PARTITIONS)]
        topic = TopicProduceData(name=TOPIC, partition_data=rows)
        produced = await client.request(
            ProduceRequest(transactional_id=self.name, acks=-1, timeout_ms=1000, topic_data=[topic]), PRODUCE_VERSION
        )
        assert {row.error_code for row in produced.responses[0].partition_responses} == {NONE}, produced
        is_commit = self.number % 4 != 0
        end = EndTxnRequest(transactional_id=self.name, producer_id=producer_id, producer_epoch=epoch, committed=is_commit)
        assert (await client.request(end, END_VERSION)).error_code == NONE
        (self.committed if is_commit else self.aborted).add(value)


async def read(client: WireClient, partition: int) -> list[str]:
    """All committed records of a partition, when no transaction is open any more."""
    values: list[str] = []
    offset, deadline = 0, asyncio.get_running_loop().time() + 20
    while True:
        row = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=1, topics=[FetchTopic(topic=TOPIC, partitions=[row])])
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
                values += [record.value.decode() for record in iterate_records(batch, max_bytes=1 << 20) if record.value]
            offset = max(offset, header.next_offset)


async def test_transactions_are_whole_after_sigkill(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    writers = [Writer(name) for name in NAMES]
    for life in range(ROUNDS):
        async with ServeProcess(tmp_path, *SETTINGS) as broker:
            if life == 0:
                client = await broker.connect()
                topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1, assignments=[], configs=[])
                await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
            running = [asyncio.ensure_future(writer.run(broker)) for writer in writers]  # noqa: TID251 - a test's own loop
            await asyncio.sleep(rng.uniform(*LIFE_S) + (1.0 if life == 0 else 0.0))
            await broker.kill()
            await asyncio.gather(*running)
            assert broker.faults == []
    async with ServeProcess(tmp_path, *SETTINGS) as broker:
        client = await broker.connect()
        for writer in writers:
            await writer.begin(client)
        found = [await read(client, number) for number in range(PARTITIONS)]
        assert broker.faults == []
    for values in found:
        assert len(values) == len(set(values)), "read twice"
        assert set(values) == set(found[0]), "in some partitions only"
        for writer in writers:
            assert writer.committed <= set(values)
            assert not writer.aborted & set(values)
    assert all(len(writer.committed) > ROUNDS for writer in writers)
