"""Erases records by key in the partitions of a simulated cluster, and checks what brokers and their disks have then.

E1 after an erasure was acknowledged, no read that begins later returns one of its records; E2 no other record is
missing; E3 no file of a broker that has confirmed has one. The records of an erasure are those that a client has read,
or that were acknowledged, before it was requested.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.erase_records import EraseRecordsPartition, EraseRecordsRequest, EraseRecordsTopic
from lowtide.protocol.messages.find_records import FindRecordsPartition, FindRecordsRequest, FindRecordsTopic
from lowtide.protocol.types import BrokerId, Offset
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.cluster_history import key_of
from lowtide.simulation.cluster_load import PartitionLoad
from lowtide.simulation.cluster_world import ClusterWorld
from lowtide.simulation.erasing_work import files_of, records_of
from lowtide.simulation.machines import Machine, log_manager_of
from lowtide.storage.log.log import Log

WITHIN_S: Final = 8.0
"""The time that an erasure may take; then it isn't acknowledged."""

_TIMEOUT_MS: Final = 1000
_RETRY_S: Final = 0.1


class ForgettingWork:
    """Erases keys, one after the other. Does nothing if erasures are not part of the run."""

    key = "forgetter"

    def __init__(self, cluster: ClusterWorld, loads: list[PartitionLoad], random: Random) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._loads = loads
        self._random = random
        self._client: ClusterClient | None = None
        for load in loads:
            load.history.named_keys = set()

    def actors(self) -> list[ForgettingWork]:
        return [self] if self._loads else []

    def begin(self) -> None:
        """Connects. Nothing is erased while brokers are too old."""
        if self._loads:
            self._client = self._cluster.client(self.key)

    async def run(self, *, until: asyncio.Event, pause_s: float) -> None:
        assert self._client is not None
        while not until.is_set():
            await asyncio.sleep(self._random.random() * 2 * pause_s)
            load = self._random.choice(self._loads)
            if load.history.places:
                await self._erase(load, key_of(self._random.choice(list(load.history.places))), until)
        self._client.close()

    async def _erase(self, load: PartitionLoad, key: bytes, until: asyncio.Event) -> None:
        """Erases the records of a key that are there now."""
        history = load.history
        assert history.named_keys is not None
        texts = frozenset(text for text in history.places if key_of(text) == key)
        history.named_keys.add(key)
        voids, deadline = history.voids, self._cluster.loop.time() + WITHIN_S
        search_id = self._random.getrandbits(128).to_bytes(16, "big")
        self._note(f"erases {key!r} of {history.name}: {len(texts)} known records")
        found: tuple[Offset, Offset] | None = None
        while found is None:
            if until.is_set() or self._cluster.loop.time() > deadline:
                self.counts["not found in time"] += 1
                return
            found = await self._find(load, key, search_id)
        log_start, end = found
        if end < 0:
            self.counts["nothing found"] += 1
            return
        confirmed: set[BrokerId] = set()
        while missing := self._replicas(load) - confirmed:
            if until.is_set() or self._cluster.loop.time() > deadline or history.voids != voids:
                self.counts["not confirmed in time"] += 1
                return
            for broker_id in sorted(missing):
                if await self._confirms(load, broker_id, log_start, end):
                    confirmed.add(broker_id)
                    self._look_at(load, broker_id, texts)
            await asyncio.sleep(_RETRY_S / 4)
        if history.voids == voids:
            self.counts["acknowledged"] += 1
            self._note(f"erased {key!r} of {history.name} by {end}")
            history.erased |= texts

    def _replicas(self, load: PartitionLoad) -> set[BrokerId]:
        state = self._cluster.partition(load.topic, load.partition)
        return set() if state is None else set(state.replicas)

    async def _find(self, load: PartitionLoad, key: bytes, search_id: bytes) -> tuple[Offset, Offset] | None:
        """Returns the log start and the end of the erasures; None if it has to be asked again."""
        assert self._client is not None
        rows = [FindRecordsPartition(partition_index=load.partition)]
        topics = [FindRecordsTopic(name=load.topic, partitions=rows)]
        request = FindRecordsRequest(
            search_id=search_id, topics=topics, keys=[key], timeout_ms=_TIMEOUT_MS, ranges_max=0, erase=True
        )
        try:
            leader = await self._client.leader(load.topic, load.partition)
            answer = await self._client.ask(leader, request, 0, timeout_ms=_TIMEOUT_MS, must_answer=False)
        except OSError:
            self._client.forget(load.topic, load.partition)
            await asyncio.sleep(_RETRY_S)
            return None
        row = None if answer.error_code else answer.topics[0].partitions[0]
        code = answer.error_code if row is None else row.error_code
        self.counts[f"FindRecords {ErrorCode(code).name}"] += 1
        if row is None or code:
            self._client.forget(load.topic, load.partition)
            await asyncio.sleep(_RETRY_S)
            return None
        self._note(f"broker {leader} found {row.record_count} of {load.history.name}, erased by {row.erasures_end}")
        return max(row.log_start_offset, 0), row.erasures_end

    async def _confirms(self, load: PartitionLoad, broker_id: BrokerId, log_start: Offset, end: Offset) -> bool:
        assert self._client is not None
        rows = [EraseRecordsPartition(partition_index=load.partition, offset=log_start, erasures_end=end)]
        topics = [EraseRecordsTopic(name=load.topic, partitions=rows)]
        request = EraseRecordsRequest(topics=topics, timeout_ms=_TIMEOUT_MS)
        try:
            answer = await self._client.ask(broker_id, request, 1, timeout_ms=_TIMEOUT_MS, must_answer=False)
        except OSError:
            return False
        code = answer.error_code or answer.topics[0].partitions[0].error_code
        self.counts[f"EraseRecords {ErrorCode(code).name}"] += 1
        return bool(code == ErrorCode.NONE)

    def _look_at(self, load: PartitionLoad, broker_id: BrokerId, texts: frozenset[bytes]) -> None:
        """E3: no file of a broker has the records."""
        machine = next(each for each in self._cluster.machines if each.broker_id == broker_id)
        log = _log_of(machine, load)
        if log is None or load.history.records_are_void:
            return
        self.counts["looked at"] += 1
        for path, content in files_of(self._cluster, machine, log):
            left = sorted(text for _, text in records_of(content) if text in texts)
            if left:
                self._cluster.chronicle.violate(
                    f"E3: {machine.host} has confirmed an erasure, and {path} has {left[:3]}"
                )

    def _note(self, what: str) -> None:
        self._cluster.chronicle.note(self.key, what)


def _log_of(machine: Machine, load: PartitionLoad) -> Log | None:
    manager = log_manager_of(machine)
    if manager is None:
        return None
    return next((log for key, log in manager.logs.items() if key == (load.topic, load.partition)), None)
