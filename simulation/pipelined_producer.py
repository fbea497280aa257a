"""An idempotent producer with several batches in flight, the default of clients.

Only such a producer tests what a broker remembers beyond a producer's last batch, and that a gap between batches is
rejected. If unanswered batches are deleted, it may be rejected after the broker's restart: as in Kafka a snapshot has
only the last batch of a producer, and earlier ones are looked up in the log.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import PartitionProduceResponse
from lowtide.protocol.records import read_batch_header
from lowtide.protocol.types import BrokerId
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.history import HistoryError
from lowtide.simulation.loaded_partition import LoadedPartition
from lowtide.simulation.partition_actors import TIMEOUT_MS, IdempotentProducer

UNDER_WAY_MAX: Final = 4
"""Clients have five by default; brokers remember as many."""

_BEFORE: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
"""The errors for a missing earlier batch."""


class PipelinedProducer(IdempotentProducer):
    """Sends batches without waiting, over one connection, and resends unanswered ones in order."""

    def __init__(self, load: LoadedPartition, client: ClusterClient, random: Random) -> None:
        super().__init__(load, client, random)
        self._under_way: list[tuple[list[bytes], bytes]] = []
        self._tried: list[bytes] = []
        """Batches that were sent before without a response."""

    async def step(self) -> None:
        if self._id < 0:
            await self._begin()
            return
        broker_id = await self.target()
        for _ in range(self.random.randint(0, UNDER_WAY_MAX - len(self._under_way))):
            self._under_way.append(self.next_batch())
        await self.client.connect(broker_id)
        sent = list(self._under_way)
        answers = await asyncio.gather(
            *(self.send_within(TIMEOUT_MS, broker_id, batch, -1) for _, batch in sent), return_exceptions=True
        )
        lost: OSError | None = None
        for (values, batch), answer in zip(sent, answers, strict=True):
            if isinstance(answer, OSError):
                lost = lost or answer
            elif isinstance(answer, BaseException):
                raise answer
            elif not self._on_answer(values, batch, answer, broker_id):
                break
        self._tried = [batch for _, batch in self._under_way]
        if lost is not None:
            raise lost

    def next_batch(self) -> tuple[list[bytes], bytes]:
        load = self.load
        values = load.next_values(self.random.randint(1, 4), self.random)
        load.history.on_send(values, self.producer, self._serial, ordered=True)
        self._serial += len(values)
        records = load.records(values, self.random)
        batch = build_batch(records, producer_id=self._id, producer_epoch=self._epoch, base_sequence=self._sequence)
        self._sequence += len(values)
        return values, batch

    def _is_deleted(self, batch: bytes) -> bool:
        return self.load.has_retention or self.load.observer.has_deleted(self.load, read_batch_header(batch).crc)

    def _on_answer(self, values: list[bytes], batch: bytes, row: PartitionProduceResponse, broker_id: BrokerId) -> bool:
        """Returns whether this producer continues. Errors: HistoryError."""
        load = self.load
        if row.error_code in {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}:
            self._under_way.remove((values, batch))
            load.counts["produced in a row"] += len(values)
            if row.error_code == ErrorCode.NONE and row.base_offset >= 0:
                self.client.note(
                    f"produced {len(values)} at {row.base_offset} of {load.history.name}, in a row, broker {broker_id}"
                )
                load.history.on_acknowledged(row.base_offset, values)
        elif row.error_code in _BEFORE and (values, batch) != self._under_way[0]:
            load.counts["refused behind a gap"] += 1
        elif row.error_code in _BEFORE:
            if not load.history.records_are_void and not (batch in self._tried and self._is_deleted(batch)):
                if not load.observer.leads(load, broker_id):
                    load.counts["refused by a former leader"] += 1
                    return True
                name = ErrorCode(row.error_code).name
                raise HistoryError(
                    f"R1: {load.history.name}: broker {broker_id} answers {name} to an idempotent producer's next batch"
                )
            self._id, self._under_way = -1, []
            return False
        elif row.error_code != ErrorCode.NOT_ENOUGH_REPLICAS:
            self.on_error("Produce", row.error_code)
        return True
