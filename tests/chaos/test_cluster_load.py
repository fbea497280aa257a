"""`cluster_load.py` against a cluster with false answers: each ends the work, or the check, with the violated
invariant.

The cluster is a list in memory that answers as three brokers do. The tests show that the results of clients reach the
checker.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsRequest
from lowtide.protocol.messages.fetch import FetchRequest
from lowtide.protocol.messages.list_offsets import ListOffsetsRequest
from lowtide.protocol.messages.produce import ProduceRequest
from lowtide.simulation.history import HistoryError

from . import cluster_load
from .asking import EARLIEST, batch, records_from
from .cluster_load import PartitionWork
from .cluster_processes import ClusterProcesses

LEADER, IDS = 1, (1, 2, 3)
HONEST_BATCHES = 10
"""Earlier answers are true."""

LIES_TOLD = 5
"""The minimum number of false answers, also on a slow machine: one of them may concern records that no client reads."""

FETCHED = 50
LIMIT_S = 120.0

LIES = {
    "a record that was acknowledged is missing": "R3",
    "records that were acknowledged at the end are missing": "shows nothing",
    "an offset is acknowledged twice": "R2",
    "an offset shows another value": "R[24]",
    "a batch is written twice": "R5",
    "what was refused is written": "R4",
    "a follower shows deleted records": "D1",
    "a delete is acknowledged and not done": "D1",
    "more is deleted than was asked for": "D7",
    "a delete tells a log start below": "D3",
    "the end is reported to be lower": "R1",
    "an answer never comes": "did not answer",
}


TOLD_TO_THE_CHECK = "the end is reported to be lower"
"""No client asks for it before."""


class LyingCluster:
    """The part of `ClusterProcesses` that `PartitionWork` uses; `lie` is one of `LIES`, or none."""

    def __init__(self, lie: str) -> None:
        self.ids = IDS
        self.awake = list(IDS)
        self.log: list[bytes] = []
        self.log_start_offset = 0
        self.batches = 0
        self.told = 0
        self._lie = lie

    def repent(self) -> None:
        """Gives only true answers from now on."""
        self._lie = ""

    def lies(self, lie: str) -> bool:
        lies = lie == self._lie and self.batches > HONEST_BATCHES
        self.told += lies
        return lies

    # ------------------------------------------------------------------ used by the load
    async def connect(self, broker_id: int) -> Any:
        async def request(request: Any, version: int) -> Any:
            await asyncio.sleep(0)
            if self.lies("an answer never comes"):
                await asyncio.Event().wait()
            return self.answer(broker_id, request)

        return SimpleNamespace(lost=False, request=request, close=lambda: None)

    async def ask(self, broker_id: int, request: Any, version: int) -> Any:
        return self.answer(broker_id, request)

    async def fetch(self, broker_id: int, topic: str, offset: int, *, partition: int) -> tuple[Any, dict[int, bytes]]:
        row = self._fetch(broker_id, offset)
        return row, records_from(row.records, offset)

    async def partition(self, topic: str, number: int) -> Any:
        return SimpleNamespace(leader_id=LEADER, replica_nodes=list(IDS), isr_nodes=list(IDS))

    async def until_in_sync(self, topic: str, number: int) -> Any:
        return await self.partition(topic, number)

    def was_well_since(self, broker_id: int, moment: float) -> bool:
        return True

    def tail(self) -> str:
        return ""

    # ------------------------------------------------------------------ answers
    def answer(self, broker_id: int, request: Any) -> Any:
        match request:
            case ProduceRequest():
                row = self._produce(list(records_from(request.topic_data[0].partition_data[0].records, 0).values()))
            case FetchRequest():
                row = self._fetch(broker_id, request.topics[0].partitions[0].fetch_offset)
            case DeleteRecordsRequest():
                row = self._delete(request.topics[0].partitions[0].offset)
            case ListOffsetsRequest():
                row = self._offset(request.topics[0].partitions[0].timestamp)
            case _:
                raise AssertionError(request)
        return SimpleNamespace(topics=[SimpleNamespace(partitions=[row])])

    def _produce(self, values: list[bytes]) -> Any:
        self.batches += 1
        if self.lies("an offset is acknowledged twice"):
            return SimpleNamespace(error_code=ErrorCode.NONE, base_offset=len(self.log) - 1)
        base_offset = len(self.log)
        self.log += values
        if self.lies("a batch is written twice"):
            self.log += values
        refuses = self.lies("what was refused is written")
        return SimpleNamespace(
            error_code=ErrorCode.NOT_ENOUGH_REPLICAS if refuses else ErrorCode.NONE, base_offset=base_offset
        )

    def _fetch(self, broker_id: int, offset: int) -> Any:
        start = self.log_start_offset
        if self.lies("a follower shows deleted records") and broker_id != LEADER:
            start = 0
        end = len(self.log) - (3 if self.lies("records that were acknowledged at the end are missing") else 0)
        if not start <= offset <= max(end, start):
            shown = start if broker_id != LEADER else -1  # As in Kafka, a leader says nothing else.
            return SimpleNamespace(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=shown, records=None)
        values = self.log[offset : min(offset + FETCHED, end)]
        data = placed(offset, values)
        if self.lies("a record that was acknowledged is missing") and len(values) > 2:
            data = placed(offset, values[:1]) + placed(offset + 2, values[2:])
        if self.lies("an offset shows another value") and values:
            data = placed(offset, [*values[:-1], b"another"])
        return SimpleNamespace(error_code=ErrorCode.NONE, log_start_offset=start, records=data)

    def _delete(self, offset: int) -> Any:
        if offset > len(self.log):
            return SimpleNamespace(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, low_watermark=-1)
        done = self.log_start_offset if self.lies("a delete is acknowledged and not done") else offset
        if self.lies("more is deleted than was asked for"):
            done = len(self.log)
        self.log_start_offset = max(self.log_start_offset, done)
        told = max(self.log_start_offset, offset) - self.lies("a delete tells a log start below")
        return SimpleNamespace(error_code=ErrorCode.NONE, low_watermark=told)

    def _offset(self, timestamp: int) -> Any:
        end = len(self.log) - 1 if self.lies("the end is reported to be lower") else len(self.log)
        return SimpleNamespace(
            error_code=ErrorCode.NONE, offset=self.log_start_offset if timestamp == EARLIEST else end
        )


def placed(offset: int, values: Sequence[bytes]) -> bytes:
    """Returns a batch at an offset: a broker writes the offset over its first eight bytes."""
    return offset.to_bytes(8, "big") + batch(values)[8:] if values else b""


async def work_with(lie: str, *, repents: bool = False) -> PartitionWork:
    """Work, stop, and check everything; a cluster that repents answers the check correctly. Errors: HistoryError."""
    cluster = LyingCluster(lie)
    work = PartitionWork(cast("ClusterProcesses", cluster), "told")
    work.start()
    try:
        async with asyncio.timeout(LIMIT_S):
            await work.until("produced", HONEST_BATCHES)
            enough = 0 if lie in ("", TOLD_TO_THE_CHECK) else LIES_TOLD
            while (cluster.batches < 3 * HONEST_BATCHES or cluster.told < enough) and not any(
                task.done() for task in work._tasks
            ):
                await asyncio.sleep(0.01)
    finally:
        await work.stop()
    if repents:
        cluster.repent()
    await work.check()
    return work


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long to wait for events that never happen."""
    monkeypatch.setattr(cluster_load, "SETTLE_LIMIT_S", 5.0)
    monkeypatch.setattr(cluster_load, "TIMEOUT_MS", 300)
    monkeypatch.setattr(cluster_load, "GRACE_S", 2.0)


async def test_true_answers_pass() -> None:
    """The control case."""
    work = await work_with("")
    assert min(work.counts[kind] for kind in ("produced", "deleted", "read", "read from a follower")) > 0


async def test_a_delete_whose_answer_was_lost_may_be_carried_out() -> None:
    """The last one: none that was acknowledged goes as far."""
    cluster = LyingCluster("")
    work = PartitionWork(cast("ClusterProcesses", cluster), "lost")
    work.start()
    try:
        await work.until("deleted", 1)
        await work.until("produced", HONEST_BATCHES)
    finally:
        await work.stop()
    end = work.history.acknowledged_end
    work.history.on_delete(end)
    cluster.log_start_offset = end
    await work.check()


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_is_found(lie: str) -> None:
    """A load on a busy machine may end before the lie changes anything: then another load follows."""
    for _ in range(3):
        try:
            await work_with(lie)
        except HistoryError as error:
            assert re.search(LIES[lie], str(error))
            return
    pytest.fail("three loads have not found the lie")


@pytest.mark.parametrize("lie", ["a record that was acknowledged is missing", "an offset shows another value"])
async def test_a_lie_is_found_that_only_concurrent_readers_receive(lie: str) -> None:
    with pytest.raises(HistoryError, match=LIES[lie]):
        await work_with(lie, repents=True)
