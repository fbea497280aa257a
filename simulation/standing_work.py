"""Lets an erasure stand in a simulated cluster, and checks in the end that no record of the person is left.

E9: each committed record with the key is erased, whoever leads. The key is one of those that producers go on writing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.key_digest import SECRET_BYTES, key_digest
from lowtide.protocol.messages.alter_standing_erasures import AlterStandingErasuresRequest
from lowtide.protocol.messages.find_records import FindRecordsPartition, FindRecordsRequest, FindRecordsTopic
from lowtide.protocol.types import Offset
from lowtide.replication.topic_names import LEDGER_TOPIC
from lowtide.runtime.random import Random
from lowtide.simulation import cluster_end
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.cluster_load import PartitionLoad
from lowtide.simulation.cluster_world import ClusterWorld
from lowtide.simulation.erased_history import PERSONS

NEVER: Final = Offset(1 << 62)
"""Above all offsets."""

STANDING_SETTINGS: Final = {"lowtide.erasure.standing.interval.ms": "1000"}

CLEAN_WITHIN_S: Final = 60.0
"""The time in which the last records are found, erased and rewritten: the leader may first wait for the ledger."""

_LASTS_MS: Final = 3_600_000
_TIMEOUT_MS: Final = 1000
_RETRY_S: Final = 0.1


class Standing(NamedTuple):
    """An erasure that stands, and has begun."""

    load: PartitionLoad
    person: bytes
    voids: int
    """How often the records of the partition had become void before."""
    restores: int
    """How often the metadata store had been restored before: no backup has standing erasures."""


class StandingWork:
    """Begins one standing erasure in the middle of a run; none without `loads`."""

    key = "standing"

    def __init__(
        self,
        cluster: ClusterWorld,
        loads: list[PartitionLoad],
        counts: Counter[str],
        is_clean: Callable[[PartitionLoad, frozenset[bytes]], bool],
        random: Random,
    ) -> None:
        """`is_clean` tells whether no file of any replica has one of some records."""
        self.standing: Standing | None = None
        self._cluster = cluster
        self._loads = loads
        self._counts = counts
        self._is_clean = is_clean
        self._random = random

    def actors(self) -> list[StandingWork]:
        return [self] if self._loads else []

    async def run(self, *, until: asyncio.Event, pause_s: float) -> None:
        await asyncio.sleep(self._random.random() * 4 * pause_s)
        load, client = self._random.choice(self._loads), self._cluster.client(self.key)
        person = b"person %d" % self._random.randrange(PERSONS)
        erasure_id, history = self._random.getrandbits(128).to_bytes(16, "big"), load.history
        assert history.erasures is not None
        history.erasures.wanted[erasure_id] = {person: NEVER}
        voids, restores = history.voids, self._cluster.shared.restores
        secret = self._random.randbytes(SECRET_BYTES)
        begins = AlterStandingErasuresRequest(
            erasure_id=erasure_id,
            lasts_ms=_LASTS_MS,
            topics=[load.topic],
            commitment=bytes(32),
            secret=secret,
            digests=[key_digest(secret, person)],
        )
        rows = [FindRecordsPartition(partition_index=load.partition)]
        erases = FindRecordsRequest(
            search_id=erasure_id,
            topics=[FindRecordsTopic(name=load.topic, partitions=rows)],
            keys=[person],
            timeout_ms=_TIMEOUT_MS,
            ranges_max=0,
            erase=True,
            stands=True,
        )
        if await self._asked(client, load, begins, until) and await self._asked(client, load, erases, until):
            self._cluster.chronicle.note(self.key, f"an erasure of {person!r} stands in {history.name}")
            self.standing = Standing(load, person, voids, restores)
        client.close()

    async def _asked(
        self,
        client: ClusterClient,
        load: PartitionLoad,
        request: AlterStandingErasuresRequest | FindRecordsRequest,
        until: asyncio.Event,
    ) -> bool:
        """Asks the leader of the partition until it has done it. Returns False if the run ends before."""
        while not until.is_set():
            try:
                leader = await client.leader(load.topic, load.partition)
                answer = await client.ask(leader, request, 0, timeout_ms=10 * _TIMEOUT_MS, must_answer=False)
                code = answer.error_code or (
                    answer.topics[0].partitions[0].error_code if isinstance(request, FindRecordsRequest) else 0
                )
                self._counts[f"standing: {ErrorCode(code).name}"] += 1
                if code == ErrorCode.NONE:
                    return True
            except OSError:
                pass
            client.forget(load.topic, load.partition)
            await asyncio.sleep(_RETRY_S)
        return False

    async def check_end(self) -> None:
        """E9: no file of any replica has a known record of the person. Errors: HistoryError."""
        if self.standing is None:
            return
        load, person, voids, restores = self.standing
        places = ((load.topic, load.partition), (LEDGER_TOPIC, 0))
        if (load.history.voids, self._cluster.shared.restores) != (voids, restores):
            return
        if not all(cluster_end.can_be_led(self._cluster, *place) for place in places):
            return
        texts = frozenset(text for text in load.history.places if load.key_of(text) == person)
        self._counts["records of standing erasures"] += len(texts)
        await cluster_end.until(
            self._cluster,
            partial(self._is_clean, load, texts),
            f"E9: no file of {load.history.name} has a record of {person!r}",
            CLEAN_WITHIN_S,
        )
