"""Producers, a deleter and a reader of one partition of a simulated cluster."""

from __future__ import annotations

import asyncio
from typing import Final

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import (
    TO_HIGH_WATERMARK,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from lowtide.protocol.types import BrokerId, Offset
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.history import HistoryError
from lowtide.simulation.loaded_partition import PRODUCE_VERSION, WRITTEN_NOTHING, Actor, LoadedPartition

_SHORT_TIMEOUT_MS: Final = 300
TIMEOUT_MS: Final = 3000
_LOOKS: Final = 40
_LOOK_S: Final = 0.05
"""Reads may end before an erasure until its broker knows that the erasure is committed."""
_COMMIT_GRACE_MS: Final = 500
"""The time of a broker's own disk beyond a delete's timeout."""


class Producer(Actor):
    """Sends each batch once, with acks=all or acks=1."""

    share_of_all = 0.8
    """The share of batches with acks=all."""

    def __init__(self, load: LoadedPartition, client: ClusterClient, random: Random) -> None:
        super().__init__(load, client, random)
        self.producer = load.next_producer()
        self._serial = 0

    async def step(self) -> None:
        load = self.load
        count = self.random.randint(1, 4)
        values = load.next_values(count, self.random)
        acks = -1 if self.random.random() < self.share_of_all else 1
        broker_id = await self.target()
        load.history.on_send(values, self.producer, self._serial, ordered=False)
        self._serial += count
        row = await self.send(broker_id, build_batch(load.records(values, self.random)), acks)
        if row.error_code == ErrorCode.NONE:
            load.counts["produced" if acks < 0 else "produced acks=1"] += count
            self.client.note(
                f"produced {count} at {row.base_offset} of {load.history.name}, acks={acks}, broker {broker_id}"
            )
            if acks < 0:
                load.history.on_acknowledged(row.base_offset, values)
        elif row.error_code in WRITTEN_NOTHING:
            load.history.on_refused(values)
            load.counts["refused"] += count
        else:
            self.on_error("Produce", row.error_code)

    async def send(self, broker_id: BrokerId, batch: bytes, acks: int) -> PartitionProduceResponse:
        timeout_ms = _SHORT_TIMEOUT_MS if self.random.random() < 0.2 else TIMEOUT_MS  # noqa: PLR2004
        return await self.send_within(timeout_ms, broker_id, batch, acks)

    async def send_within(
        self, timeout_ms: int, broker_id: BrokerId, batch: bytes, acks: int
    ) -> PartitionProduceResponse:
        """Sends with this timeout."""
        load = self.load
        data = TopicProduceData(
            name=load.topic, partition_data=[PartitionProduceData(index=load.partition, records=batch)]
        )
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[data])
        response = await self.client.ask(broker_id, request, PRODUCE_VERSION, timeout_ms=timeout_ms)
        row: PartitionProduceResponse = response.responses[0].partition_responses[0]
        return row


class IdempotentProducer(Producer):
    """Retries each batch until its outcome is known, as idempotent clients do."""

    def __init__(self, load: LoadedPartition, client: ClusterClient, random: Random) -> None:
        super().__init__(load, client, random)
        # A former leader that still acts receives batches out of order that follow those at the new leader.
        client.ignores_older_epochs = True
        self._id = -1
        self._epoch = -1
        self._sequence = 0
        self._unsettled: tuple[list[bytes], bytes] | None = None

    async def step(self) -> None:
        if self._id < 0:
            await self._begin()
            return
        load = self.load
        broker_id = await self.target()
        if self._unsettled is None:
            values = load.next_values(self.random.randint(1, 4), self.random)
            load.history.on_send(values, self.producer, self._serial, ordered=True)
            self._serial += len(values)
            records = load.records(values, self.random)
            batch = build_batch(records, producer_id=self._id, producer_epoch=self._epoch, base_sequence=self._sequence)
            self._unsettled = values, batch
        values, batch = self._unsettled
        row = await self.send(broker_id, batch, -1)
        if row.error_code in {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}:
            self._unsettled = None
            self._sequence += len(values)
            load.counts["produced idempotently"] += len(values)
            if row.error_code == ErrorCode.NONE and row.base_offset >= 0:
                self.client.note(
                    f"produced {len(values)} at {row.base_offset} of {load.history.name}, idempotent, broker "
                    f"{broker_id}"
                )
                load.history.on_acknowledged(row.base_offset, values)
        elif row.error_code in {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}:
            if not load.history.records_are_void:
                if not load.observer.leads(load, broker_id):
                    load.counts["refused by a former leader"] += (
                        1  # It doesn't know what the next one was sent, perhaps by mistake.
                    )
                    return
                name = ErrorCode(row.error_code).name
                raise HistoryError(
                    f"R1: {load.history.name}: broker {broker_id} answers {name} to an idempotent producer's next batch"
                )
            self._id, self._unsettled = -1, None
        elif row.error_code != ErrorCode.NOT_ENOUGH_REPLICAS:
            self.on_error("Produce", row.error_code)

    async def _begin(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = await self.client.ask(self.client.any_broker(), request, 4, timeout_ms=TIMEOUT_MS * 4)
        if answer.error_code == ErrorCode.NONE:
            self.producer = self.load.next_producer()
            self._id, self._epoch, self._sequence = answer.producer_id, answer.producer_epoch, 0


class Deleter(Actor):
    """Deletes prefixes: ordinary or leader-only, everything, below the log start offset, and again after timeouts."""

    def __init__(self, load: LoadedPartition, client: ClusterClient, random: Random) -> None:
        super().__init__(load, client, random)
        self._again: Offset | None = None

    async def step(self) -> None:
        broker_id = await self.target()
        offset: Offset | None = self._again
        if offset is None:
            found = await self.bounds(broker_id)
            if found is None:
                return
            start, end = found
            everything = self.random.random() < 0.1  # noqa: PLR2004 - now and then
            offset = None if everything else self.random.randint(max(start - 3, 0), start + (end - start) // 2)
        version = self.random.choice((1, 2, 3, 3))
        leader_only = version >= 3 and self.random.random() < 0.25  # noqa: PLR2004
        timeout_ms = self.random.choice((0, _SHORT_TIMEOUT_MS, TIMEOUT_MS, TIMEOUT_MS))
        await self.delete(broker_id, offset, version=version, leader_only=leader_only, timeout_ms=timeout_ms)

    async def delete(
        self, broker_id: BrokerId, offset: Offset | None, *, version: int, leader_only: bool, timeout_ms: int
    ) -> int:
        """Deletes once. Returns the error code."""
        load = self.load
        load.history.on_delete(offset)
        row = DeleteRecordsPartition(
            partition_index=load.partition, offset=TO_HIGH_WATERMARK if offset is None else offset
        )
        topic = DeleteRecordsTopic(name=load.topic, partitions=[row])
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms, leader_only=leader_only)
        sent_s = asyncio.get_running_loop().time()
        self._again = offset
        response = await self.client.ask(broker_id, request, version, timeout_ms=timeout_ms + _COMMIT_GRACE_MS)
        answer = response.topics[0].partitions[0]
        what = f"deleted to {offset} of {load.history.name}{', leader only' if leader_only else ''}, broker {broker_id}"
        self.client.note(
            f"{what}, asked at {sent_s:.4f}: {ErrorCode(answer.error_code).name}, low watermark {answer.low_watermark}"
        )
        if answer.error_code == ErrorCode.NONE:
            self._again = None
            load.counts["deleted, leader only" if leader_only else "deleted"] += 1
            self._on_success(broker_id, offset, answer, sent_s, leader_only=leader_only)
        elif answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._again = None
            load.counts["delete OFFSET_OUT_OF_RANGE"] += 1  # The high watermark of a new leader may be behind.
        else:
            if self.random.random() < 0.5:  # noqa: PLR2004 - the other half is asked for again
                self._again = None
            self.on_error("DeleteRecords", answer.error_code)
        return int(answer.error_code)

    def _on_success(
        self,
        broker_id: BrokerId,
        offset: Offset | None,
        answer: DeleteRecordsPartitionResult,
        sent_s: float,
        *,
        leader_only: bool,
    ) -> None:
        load = self.load
        if leader_only:
            known = answer.leader_log_start_offset if offset is None else offset
            if answer.leader_log_start_offset < known:
                raise HistoryError(f"D3: {load.history.name}: LeaderOnly to {offset} answered the log start {known}")
            load.observer.on_leader_only_delete(load, broker_id, known, sent_s)
        else:
            deleted = load.history.on_delete_acknowledged(offset, answer.low_watermark, sent_s)
            load.observer.on_delete_acknowledged(load, broker_id, deleted, sent_s)


class Reader(Actor):
    """Reads from the leader and from followers, from any offset or from the last one."""

    def __init__(self, load: LoadedPartition, client: ClusterClient, random: Random) -> None:
        super().__init__(load, client, random)
        self._position = 0

    async def step(self) -> None:
        load = self.load
        chance = self.random.random()
        broker_id = self.client.any_broker() if chance < 0.5 else await self.target()  # noqa: PLR2004 - any: a follower (KIP-392)
        if chance < 0.15:  # noqa: PLR2004
            least = max(0, load.history.acknowledged_delete - 5)
            self._position = self.random.randint(least, max(load.history.acknowledged_end, least + 1))
        elif chance > 0.9:  # noqa: PLR2004
            found = await self.bounds(broker_id)
            if found is not None:
                self._position = found[0]
        answer = await self.fetch(broker_id, self._position, max_wait_ms=self.random.choice((0, 0, 100)))
        if answer is None:
            self._position = max(self._position, load.history.acknowledged_delete)
        elif answer[1]:
            load.counts["read"] += len(answer[1])
            self._position = max(answer[1]) + 1
        elif load.history.erasures is not None:
            self._position = self.next_offset  # Nothing is left there.

    async def read_all(self, broker_id: BrokerId) -> tuple[Offset, Offset] | None:
        """Reads the whole log of a leader. Returns its bounds, or None if it is not the leader."""
        found = await self.bounds(broker_id)
        if found is None:
            return None
        position, end = found
        looks = 0
        while position < end:
            answer = await self.fetch(broker_id, position)
            if answer is None:
                return None
            if not answer[1] and (self.load.history.erasures is None or self.next_offset <= position):
                looks += 1
                if self.load.history.erasures is None or looks > _LOOKS:
                    raise HistoryError(f"R3: {self.load.history.name}: nothing is read at {position} of {found}")
                await asyncio.sleep(_LOOK_S)
                continue
            position = self.next_offset
        return found
