"""Clients that work on one partition of a cluster of processes under faults, and the history that checks their results.

A producer, a deleter and readers; each has its own connections, asks for the leader, and treats a lost connection or a
late answer as an unknown result. Readers ask followers too. `lowtide.simulation.cluster_history` checks the history,
and the load checks that a broker that could answer did so within the request's timeout and `GRACE_S`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any

from lowtide.protocol.errors import ErrorCode
from lowtide.simulation.client import ConnectionLostError, WireClient
from lowtide.simulation.cluster_history import ClusterPartitionHistory
from lowtide.simulation.history import HistoryError

from .asking import (
    DELETE_RECORDS_VERSION,
    EARLIEST,
    FETCH_VERSION,
    LATEST,
    LIST_OFFSETS_VERSION,
    PRODUCE_VERSION,
    delete_request,
    fetch_request,
    offsets_request,
    only_row,
    produce_request,
    records_from,
)
from .cluster_processes import ClusterProcesses

TIMEOUT_MS = 5_000
GRACE_S = 30.0
"""How long after its timeout an answer may arrive, because the machine may be busy."""

STARVED_S = 0.25
"""If our own event loop was late by this much, a late answer is no fault."""

RETRY_S = 0.02
SETTLE_LIMIT_S = 120.0

UNDECIDED = {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
}
"""Errors after which a client repeats its request; the request may have been executed or not."""


class Starvation:
    """When the test's own event loop was last late; measured times are meaningless then."""

    def __init__(self) -> None:
        self.last = -1.0

    async def watch(self) -> None:
        while True:
            due = time.monotonic() + 0.05
            await asyncio.sleep(0.05)
            if time.monotonic() - due > STARVED_S:
                self.last = time.monotonic()


class Caller:
    """One client's connections. One task uses it at a time."""

    def __init__(self, cluster: ClusterProcesses, starvation: Starvation) -> None:
        self._cluster = cluster
        self._starvation = starvation
        self._connections: dict[int, WireClient] = {}
        self.slowest_s = 0.0

    async def ask(self, broker_id: int, request: Any, version: int, *, timeout_ms: int) -> Any:
        """Errors: OSError if the result is unknown; HistoryError if the broker should have answered."""
        client = self._connections.get(broker_id)
        if client is None or client.lost:
            client = self._connections[broker_id] = await self._cluster.connect(broker_id)
        begun = time.monotonic()
        try:
            async with asyncio.timeout(timeout_ms / 1000 + GRACE_S):
                answer = await client.request(request, version)
        except TimeoutError:
            client.close()
            self._connections.pop(broker_id, None)
            if self._cluster.was_well_since(broker_id, begun) and self._starvation.last < begun:
                what = f"{type(request).__name__} of {timeout_ms} ms"
                message = f"broker {broker_id} did not answer a {what} within {time.monotonic() - begun:.2f} s"
                raise HistoryError(f"{message}\n{self._cluster.tail()}") from None
            raise ConnectionLostError("no answer") from None
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
        return answer

    def close(self) -> None:
        for client in self._connections.values():
            client.close()


class PartitionWork:
    """A producer, a deleter and readers of one partition. `start`, then `stop`, then `check`."""

    def __init__(
        self,
        cluster: ClusterProcesses,
        topic: str,
        number: int = 0,
        *,
        seed: int = 7,
        deletes: bool = True,
        history: ClusterPartitionHistory | None = None,
        pause_s: float = 0.01,
    ) -> None:
        """With a `history` of earlier work it continues. `pause_s` is the longest pause of a client."""
        self.cluster = cluster
        self.topic, self.number = topic, number
        self.history = ClusterPartitionHistory(f"{topic}-{number}") if history is None else history
        self._pause_s = pause_s
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.last_acknowledged = 0.0
        self._random = random.Random(f"{seed} {topic} {number}")
        self._deletes = deletes
        self._leader: int | None = None
        self._serial = len(self.history.sent)
        self._starvation = Starvation()
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()

    # ------------------------------------------------------------------ running
    def start(self) -> None:
        """Starts the clients."""
        self._stop = asyncio.Event()
        jobs = [
            self._loop(self._produce),
            self._loop(self._produce),
            self._loop(self._read_leader),
            self._loop(self._read_follower),
        ]
        jobs += [self._loop(self._delete)] if self._deletes else []
        self._tasks = [asyncio.create_task(job) for job in (*jobs, self._starvation.watch())]

    async def stop(self) -> None:
        """Ends the work. Errors: HistoryError, if a guarantee was violated."""
        self._stop.set()
        self._tasks[-1].cancel()
        async with asyncio.timeout(SETTLE_LIMIT_S):
            results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for result in results[:-1]:
            if isinstance(result, BaseException):
                raise result

    async def until(self, kind: str, more: int, limit_s: float = SETTLE_LIMIT_S) -> None:
        """Returns when so many more of a kind ("produced", "deleted", "read", "read from a follower") are counted."""
        goal = self.counts[kind] + more
        try:
            async with asyncio.timeout(limit_s):
                while self.counts[kind] < goal:
                    for task in self._tasks:
                        if task.done():
                            task.result()
                    await self._news.wait()
        except TimeoutError:
            told = f"{self.topic}: no {more} more {kind} within {limit_s} s: {dict(self.counts)} {dict(self.errors)}"
            raise AssertionError(f"{told}\n{self.cluster.tail()}") from None

    async def check(self) -> None:
        """After all faults: read everything from every replica.

        Errors: HistoryError, AssertionError without recovery in time.
        """
        caller = Caller(self.cluster, self._starvation)
        row = await self.cluster.until_in_sync(self.topic, self.number)
        for broker_id in [row.leader_id, *[other for other in row.replica_nodes if other != row.leader_id]]:
            await self._read_all(caller, broker_id)
        self.history.check_order()
        caller.close()

    # ------------------------------------------------------------------ jobs
    async def _loop(self, job: Any) -> None:
        caller = Caller(self.cluster, self._starvation)
        try:
            while not self._stop.is_set():
                try:
                    await job(caller)
                    await asyncio.sleep(self._random.random() * self._pause_s)
                except OSError:
                    self._leader = None
                    self.counts["lost"] += 1
                    await asyncio.sleep(RETRY_S)
        finally:
            caller.close()
            self._tell()

    async def _produce(self, caller: Caller) -> None:
        leader = await self._find_leader()
        values = [
            b"%s-%d-%s" % (self.topic.encode(), self._serial + each, b"x" * self._random.randint(0, 300))
            for each in range(3)
        ]
        self.history.on_send(values, id(caller), self._serial, ordered=False)
        self._serial += len(values)
        request = produce_request(self.topic, self.number, values, timeout_ms=TIMEOUT_MS)
        row = only_row(await caller.ask(leader, request, PRODUCE_VERSION, timeout_ms=TIMEOUT_MS))
        if row.error_code == ErrorCode.NONE:
            self.history.on_acknowledged(row.base_offset, values)
            self.last_acknowledged = time.monotonic()
            self._count("produced")
        elif row.error_code == ErrorCode.NOT_ENOUGH_REPLICAS:
            self.history.on_refused(values)
            self._on_error(row.error_code)
            await asyncio.sleep(RETRY_S)
        else:
            await self._undecided(row.error_code, "Produce")

    async def _delete(self, caller: Caller) -> None:
        await asyncio.sleep(0.05 * self._random.random())
        leader = await self._find_leader()
        end = self.history.acknowledged_end
        if end == 0:
            return
        offset = self._random.randint(max(self.history.acknowledged_delete - 2, 0), end)
        self.history.on_delete(offset)
        request = delete_request(self.topic, self.number, offset, timeout_ms=TIMEOUT_MS)
        row = only_row(await caller.ask(leader, request, DELETE_RECORDS_VERSION, timeout_ms=TIMEOUT_MS))
        if row.error_code == ErrorCode.NONE:
            self.history.on_delete_acknowledged(offset, row.low_watermark)
            self._count("deleted")
        elif row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._on_error(
                row.error_code
            )  # a new leader's high watermark may be behind what was acknowledged, for a moment
        else:
            await self._undecided(row.error_code, "DeleteRecords")

    async def _read_leader(self, caller: Caller) -> None:
        await self._read_some(caller, await self._find_leader(), "read")

    async def _read_follower(self, caller: Caller) -> None:
        """Reads from any running broker, as a consumer does that was redirected there."""
        others = [broker_id for broker_id in self.cluster.awake if broker_id != self._leader]
        if others:
            await self._read_some(caller, self._random.choice(others), "read from a follower")
        await asyncio.sleep(RETRY_S)

    async def _read_some(self, caller: Caller, broker_id: int, kind: str) -> None:
        """Reads, sometimes from below the log start, which must return no record."""
        deleted = self.history.acknowledged_delete
        start = max(deleted + self._random.randint(-3, 6), 0)
        request = fetch_request(self.topic, self.number, start)
        row = only_row(await caller.ask(broker_id, request, FETCH_VERSION, timeout_ms=0))
        if row.error_code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            if row.log_start_offset >= 0:
                self.history.on_log_start(row.log_start_offset, deleted_before=deleted)
            records = records_from(row.records, start)
            self.history.on_read(records, start=start, deleted_before=deleted)
            if records:
                self._count(kind)
        else:
            await self._undecided(row.error_code, "Fetch", leader=kind == "read")

    async def _read_all(self, caller: Caller, broker_id: int) -> None:
        """Reads from log start to end, and waits for a replica that does not serve yet."""
        until = time.monotonic() + SETTLE_LIMIT_S
        deleted, acknowledged = self.history.acknowledged_delete, self.history.acknowledged_end
        position, rows = deleted, 0
        while position < acknowledged or rows == 0:
            row = only_row(
                await caller.ask(
                    broker_id, fetch_request(self.topic, self.number, position), FETCH_VERSION, timeout_ms=0
                )
            )
            rows += 1
            records = records_from(row.records, position)
            if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                log_start = row.log_start_offset if row.log_start_offset >= 0 else await self._log_start(broker_id)
                if log_start > position:
                    self.history.on_log_start(log_start, deleted_before=deleted)
                    position = log_start  # a delete whose answer was lost
                    continue
            if row.error_code not in UNDECIDED and row.error_code != ErrorCode.NONE:
                raise HistoryError(
                    f"{self.topic}: broker {broker_id} answers {ErrorCode(row.error_code).name} at {position}, {row}"
                )
            self.history.on_read(records, start=position, deleted_before=deleted)
            position = max(records, default=position - 1) + 1
            if not records and position < acknowledged:
                if time.monotonic() > until:
                    error = ErrorCode(row.error_code).name
                    told = f"broker {broker_id} shows nothing at {position}, {acknowledged} was acknowledged: {error}"
                    raise HistoryError(f"{self.topic}: {told}\n{self.cluster.tail()}")
                await asyncio.sleep(RETRY_S)
        if deleted > 0:
            row, records = await self.cluster.fetch(broker_id, self.topic, deleted - 1, partition=self.number)
            if row.error_code != ErrorCode.OFFSET_OUT_OF_RANGE or records:
                raise HistoryError(
                    f"{self.topic}: broker {broker_id} answers {row.error_code} with {len(records)} records below "
                    f"{deleted}"
                )
        for timestamp in (EARLIEST, LATEST):
            row = only_row(
                await self.cluster.ask(
                    broker_id, offsets_request(self.topic, self.number, timestamp), LIST_OFFSETS_VERSION
                )
            )
            if row.error_code == ErrorCode.NONE and timestamp == EARLIEST:
                self.history.on_log_start(row.offset, deleted_before=deleted)
            elif row.error_code == ErrorCode.NONE:
                self.history.on_log_end(row.offset, acknowledged_before=acknowledged)

    # ------------------------------------------------------------------ shared
    async def _log_start(self, broker_id: int) -> int:
        """Returns where a leader's log starts, which it doesn't say beside an error; -1 if it isn't known."""
        row = only_row(
            await self.cluster.ask(broker_id, offsets_request(self.topic, self.number, EARLIEST), LIST_OFFSETS_VERSION)
        )
        return int(row.offset) if row.error_code == ErrorCode.NONE else -1

    async def _find_leader(self) -> int:
        """Errors: OSError if no leader is known."""
        if self._leader is None:
            row = await self.cluster.partition(self.topic, self.number)
            if row is None or row.leader_id < 0:
                raise ConnectionLostError("no leader is known")
            self._leader = row.leader_id
        return self._leader

    async def _undecided(self, code: int, what: str, *, leader: bool = True) -> None:
        self._on_error(code)
        if code not in UNDECIDED:
            raise HistoryError(f"{self.topic}: {what} answered {ErrorCode(code).name}")
        if leader:
            self._leader = None
        await asyncio.sleep(RETRY_S)

    def _on_error(self, code: int) -> None:
        self.errors[ErrorCode(code).name] += 1

    def _count(self, kind: str) -> None:
        self.counts[kind] += 1
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
