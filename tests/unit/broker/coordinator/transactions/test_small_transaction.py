"""Transactions in all forms: quick paths, changes at once, and neither, give the same answers, records and figures."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import NoneType
from typing import Any

import pytest

from bench.request_path import SETTINGS, World
from lowtide.broker.coordinator.transactions import small_transaction
from lowtide.broker.network.routes import QuickPath
from lowtide.broker.partitions.produce.small_produce import SmallProduce
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import Pending
from lowtide.protocol import native
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from lowtide.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from lowtide.protocol.messages.end_txn import EndTxnRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from lowtide.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.simulation.client import WireClient

needs_compiled = pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")

NAME, GROUP = "transfers", "g"
COUNTED = ("AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "Produce")


class Producer:
    """A producer of transactions at one of the brokers. It keeps what is answered, and when."""

    def __init__(self, world: World, client: WireClient) -> None:
        self.world, self.client = world, client
        self.seen: list[Any] = []
        self.identity = (-1, -1)
        self.sequence = 0

    async def ask(self, request: Any, version: int) -> Any:
        answer = await self.client.request(request, version)
        self.seen.append((self.world.loop.time(), answer))
        return answer

    async def begin(self) -> None:
        for key, kind in ((GROUP, 0), (NAME, 1)):
            while (await self.client.request(FindCoordinatorRequest(key=key, key_type=kind), 3)).error_code:
                await asyncio.sleep(0.1)  # Of virtual time.
        while True:
            answer = await self.client.request(
                InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=20_000), 4
            )
            if not answer.error_code:
                break
            await asyncio.sleep(0.1)
        self.identity, self.sequence = (answer.producer_id, answer.producer_epoch), 0

    async def add(
        self, version: int, *partitions: int, topic: str = "t", who: tuple[int, int] | None = None, name: str = NAME
    ) -> Any:
        producer_id, epoch = who or self.identity
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))]
        if version >= 4:
            row = AddPartitionsToTxnTransaction(
                transactional_id=name, producer_id=producer_id, producer_epoch=epoch, topics=topics
            )
            return await self.ask(AddPartitionsToTxnRequest(transactions=[row]), version)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=topics,
        )
        return await self.ask(request, version)

    async def add_offsets(self, version: int, who: tuple[int, int] | None = None, name: str = NAME) -> Any:
        producer_id, epoch = who or self.identity
        return await self.ask(
            AddOffsetsToTxnRequest(
                transactional_id=name, producer_id=producer_id, producer_epoch=epoch, group_id=GROUP
            ),
            version,
        )

    async def commit_offsets(self, version: int, *partitions: int, **fields: Any) -> Any:
        producer_id, epoch = fields.get("who") or self.identity
        rows = [
            TxnOffsetCommitRequestPartition(
                partition_index=number, committed_offset=len(self.seen), committed_metadata=fields.get("metadata", "")
            )
            for number in partitions
        ]
        topic = TxnOffsetCommitRequestTopic(partitions=rows)
        if version >= 6:
            topic.topic_id = self.world.machines[0].broker.replicas.image.topics["t"].topic_id
        else:
            topic.name = fields.get("topic", "t")
        has_members = version >= 3
        request = TxnOffsetCommitRequest(
            transactional_id=NAME,
            group_id=fields.get("group", GROUP),
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id_or_member_epoch=fields.get("generation", -1) if has_members else -1,
            member_id=fields.get("member_id", "") if has_members else "",
            topics=[topic],
        )
        return await self.ask(request, version)

    async def write(self, version: int = 9, **fields: Any) -> Any:
        """One record; a later one follows it only where it was appended as it should be."""
        producer_id, epoch = fields.get("who") or self.identity
        sequence = self.sequence + fields.get("ahead", 0)
        batch = build_batch(
            [(1, None, b"v", ())],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=max(sequence, 0),
            is_transactional=fields.get("is_transactional", True),
        )
        data = TopicProduceData(
            name="t", partition_data=[PartitionProduceData(index=fields.get("partition", 0), records=batch)]
        )
        if version >= 13:
            data.name, data.topic_id = "", self.world.machines[0].broker.replicas.image.topics["t"].topic_id
        request = ProduceRequest(
            transactional_id=fields.get("name", NAME), acks=fields.get("acks", -1), timeout_ms=5_000, topic_data=[data]
        )
        answer = await self.ask(request, version)
        self.sequence += not fields and not answer.responses[0].partition_responses[0].error_code
        return answer

    async def write_strangely(self, *strangers: tuple[int, int]) -> None:
        """What a producer should not send, or sends again."""
        for version in (3, 9, 10, 11, 13):
            for ahead in (-1, 2, -5):
                await self.write(version, ahead=ahead)
            for who in strangers:
                await self.write(version, who=who, ahead=-self.sequence)
            for name in ("unknown", "", None):
                await self.write(version, name=name)
                await self.write(version, name=name, is_transactional=False)
            await self.write(version, is_transactional=False)
            await self.write(version, who=(-1, -1))
            await self.write(version, partition=1)

    async def end(
        self, version: int, *, is_commit: bool = True, who: tuple[int, int] | None = None, name: str = NAME
    ) -> Any:
        producer_id, epoch = who or self.identity
        answer = await self.ask(
            EndTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=is_commit),
            version,
        )
        if version >= 5 and not answer.error_code and who is None:
            self.sequence *= self.identity == (answer.producer_id, answer.producer_epoch)
            self.identity = (answer.producer_id, answer.producer_epoch)
        await asyncio.sleep(0.5)
        return answer

    def figures(self) -> Any:
        """What was counted, and what is in all logs."""
        machine = self.world.machines[0]
        serving = machine.broker.serving
        partitions = {key: each for key, each in serving.replicas.partitions.items() if each.log.log_end_offset}
        logs = {
            key: (
                [machine.filesystem.read_bytes(segment.path) for segment in log.segments],
                repr(log),
                log.last_stable_offset,
            )
            for key, log in ((key, each.log) for key, each in partitions.items())
        }
        times = serving.host.dispatcher.times.by_name
        counts = {name: times[name].count for name in COUNTED if name in times}
        traffic = {key: (each.traffic.bytes_in, each.traffic.produce_requests) for key, each in partitions.items()}
        refused = {error: count for error, count in serving.replicas.traffic.errors.items() if count}
        return dict(serving.host.dispatcher.errors) | refused, logs, counts, traffic, serving.coordinators.groups.held()


async def everything(producer: Producer) -> None:  # noqa: PLR0915
    """Transactions of all versions, with errors of all kinds."""
    await producer.begin()
    old = producer.identity
    await producer.begin()
    strange = [old, (producer.identity[0] + 7, 0), (producer.identity[0], 9)]
    for version in range(6):
        await producer.add_offsets(min(version, 4))
        await producer.commit_offsets(min(version, 4), 0)
        await producer.write()  # Refused: it was not added.
        await producer.write_strangely(*strange)
        await producer.add(min(version, 3), 0)
        await producer.add(min(version, 3), 0)
        if version % 2:
            await producer.write_strangely(*strange)
        await producer.write((3, 8, 9, 10, 11, 12)[version])
        await producer.write(8)
        await producer.write_strangely(*strange)
        await producer.write(13)
        await producer.commit_offsets(version + 1, 0)
        await producer.commit_offsets(version, 0, 0, metadata="note")
        await producer.commit_offsets(version, 3)
        await producer.commit_offsets(version, 0, topic="unknown")
        await producer.commit_offsets(version, 0, group="")
        await producer.commit_offsets(version, 0, group="other")
        await producer.commit_offsets(version, 0, generation=3, member_id="m")
        for who in strange:
            await producer.add(version, 0, who=who)
            await producer.add_offsets(min(version, 4), who=who)
            await producer.commit_offsets(version, 0, who=who)
            await producer.end(version, who=who)
        for partitions, topic in (((1,), "t"), ((0, 1), "t"), ((0,), "unknown"), ((0,), "__consumer_offsets")):
            await producer.add(min(version, 3), *partitions, topic=topic)
        for name in ("", "unknown"):
            await producer.add(version, 0, name=name)
            await producer.add_offsets(min(version, 4), name=name)
            await producer.end(version, name=name)
        await producer.end(min(version, 4), is_commit=version % 2 == 0)
        await producer.end(min(version, 4), is_commit=version % 2 == 0)
        await producer.end(min(version, 4), is_commit=version % 2 == 1)
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        await producer.ask(OffsetFetchRequest(group_id=GROUP, topics=topics), 5)
    # With an epoch for each, which adds by itself; one that takes too long; and no room on the disk.
    await producer.commit_offsets(5, 0)
    await producer.end(5)
    for _ in range(2):
        await producer.write(12)
        await producer.write(13)
        await producer.end(5)
    await producer.add(3, 0)
    await producer.write()
    await asyncio.sleep(40)
    await producer.write()
    await producer.end(3)
    await producer.begin()
    await producer.add(0, 0)
    filesystem = producer.world.machines[0].filesystem
    filesystem.capacity_bytes = 0
    await producer.write()
    await producer.add_offsets(0)
    await producer.end(0)
    filesystem.capacity_bytes = None
    await producer.write()
    await producer.end(0)
    await producer.add_offsets(0)
    await producer.commit_offsets(0, 0)
    filesystem.capacity_bytes = 0
    await producer.commit_offsets(3, 0)
    filesystem.capacity_bytes = None
    await producer.end(0)


def simulate(test: Any, brokers: int = 1) -> Any:
    async def main(loop: SimulatedLoop) -> Any:
        world = World(loop, brokers)
        producer = Producer(world, await world.begin())
        await test(producer)
        producer.client.close()
        await asyncio.sleep(0.1)
        return producer.seen, producer.figures()

    return run_simulation(main, 1)


@pytest.fixture(autouse=True)
def _one_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("num.partitions", "replication.factor", "min.isr"):
        monkeypatch.setitem(SETTINGS, f"transaction.state.log.{key}", "1")


def counting(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, type]]:
    """What quick paths answer from now on, by what reads the request and the type of the answer."""
    answered: Counter[tuple[str, type]] = Counter()

    def counted(read: Any, handle: Any) -> QuickPath:
        def handle_counted(*arguments: Any) -> Any:
            answer = handle(*arguments)
            answered[read.__name__, type(answer)] += 1
            return answer

        return QuickPath(read, handle_counted)

    handle_produce = SmallProduce.handle

    def produce_counted(self: SmallProduce, asked: Any, *arguments: Any) -> Any:
        answer = handle_produce(self, asked, *arguments)
        answered["read_produce" if asked[10] is not None else "read_produce, plain", type(answer)] += 1
        return answer

    monkeypatch.setattr(SmallProduce, "handle", produce_counted)
    monkeypatch.setattr(small_transaction, "QuickPath", counted)
    return answered


def compare(left: Any, right: Any) -> None:
    for number, (one, other) in enumerate(zip(left[0], right[0], strict=True)):
        assert one == other, number
    assert left[1] == right[1]


@needs_compiled
def test_all_forms_give_the_same_answers_records_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = counting(monkeypatch)
    quick = simulate(everything)
    for name in (
        "read_added_partitions",
        "read_added_offsets",
        "read_transactional_commit",
        "read_end",
        "read_produce",
    ):
        assert answered[name, bytes] >= 5, name
        assert answered[name, NoneType] >= 5, name
    assert answered["read_produce", ProduceResponse] >= 5, "the log has refused none"
    answered.clear()
    monkeypatch.setattr(native, "compiled", None)
    plain = simulate(everything)
    assert not answered
    compare(quick, plain)
    committed: list[Any] = []

    def append_committed(*arguments: Any) -> None:
        committed.append(arguments)

    monkeypatch.setattr(ReplicaManager, "append_committed", append_committed)
    compare(plain, simulate(everything))
    assert len(committed) > 50


@needs_compiled
def test_forms_agree_where_nothing_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "transaction.partition.verification.enable", "false")
    answered = counting(monkeypatch)
    quick = simulate(everything)
    assert answered["read_produce", bytes] >= 5
    monkeypatch.setattr(native, "compiled", None)
    compare(quick, simulate(everything))


async def _with_followers(producer: Producer) -> None:
    """Transactions whose records wait for other replicas, and whose coordinator may be another broker."""
    await producer.begin()
    for version in (3, 9, 11):
        await producer.write(version)
        await producer.add(3, 0)
        for acks in (-1, 1):
            await producer.write(version, acks=acks)
            producer.sequence += 1
        await producer.write_strangely((producer.identity[0], 9))
        await producer.end(3, is_commit=version != 9)


@needs_compiled
def test_forms_agree_where_followers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = counting(monkeypatch)
    quick = simulate(_with_followers, brokers=3)
    assert sum(answered["read_produce", kind] for kind in (bytes, Pending)) >= 5, answered
    monkeypatch.setattr(native, "compiled", None)
    compare(quick, simulate(_with_followers, brokers=3))


def test_errors_and_answers_are_of_all_kinds() -> None:
    """If all were refused, the forms would agree as well."""
    seen, (errors, *_) = simulate(everything)
    assert len(seen) > 200
    for name in ("AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"):
        codes = {code for api, code in errors if api == name}
        assert ErrorCode.NONE in codes or len(codes) >= 2, (name, codes)
    end_errors = {code for api, code in errors if api == "EndTxn"}
    assert {ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING} <= end_errors, end_errors
    answers = [answer.responses[0].partition_responses for _, answer in seen if type(answer) is ProduceResponse]
    produce_errors = {rows[0].error_code for rows in answers}
    assert {
        ErrorCode.NONE,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    } <= produce_errors, produce_errors
