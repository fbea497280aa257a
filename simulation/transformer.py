"""Producers that consume, transform and produce in one transaction.

They read the numbers from 0; the group's committed offset is the next one. So at the end each number below that offset
is committed exactly once, and none above (T7), whichever producer was fenced, aborted or killed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from lowtide.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from lowtide.protocol.types import Offset
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.coordinated import GROUP, Coordinated
from lowtide.simulation.history import HistoryError
from lowtide.simulation.transaction_history import Identity
from lowtide.simulation.transaction_load import TransactionalProducer, TransactionLoad

TRANSFORM_GROUP: Final = "transform"

_ANSWER_MS: Final = 3000
_MARK: Final = b"from"


class StableOffsets(Coordinated):
    """Fetches the group's stable offsets, which no transaction can change."""

    def __init__(self, topic: str, client: ClusterClient, random: Random, counts: Counter[str]) -> None:
        super().__init__(TRANSFORM_GROUP, GROUP, client, random, counts)
        self._topic = topic

    async def fetch(self, source: int) -> Offset | None:
        """Returns the next number of a source, or None without an answer. Errors: OSError."""
        topic = OffsetFetchRequestTopic(name=self._topic, partition_indexes=[source])
        request = OffsetFetchRequest(group_id=self.key, topics=[topic], require_stable=True)
        answer = await self.ask(request, 7, timeout_ms=_ANSWER_MS)
        if not self.has("OffsetFetch", answer.error_code):
            return None
        row = answer.topics[0].partitions[0]
        if not self.has("OffsetFetch", row.error_code, frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT})):
            return None
        committed: Offset = row.committed_offset
        return max(committed, 0)


class Transformer(TransactionalProducer):
    """A producer that consumes one source, and sends the result in the same transaction."""

    def __init__(self, load: TransactionLoad, client: ClusterClient, random: Random, topic: str, source: int) -> None:
        """`topic` and the partition `source` are what its group has read."""
        super().__init__(load, f"transform {source}", client, random)
        self._topic = topic
        self._source = source
        self._offsets = StableOffsets(topic, client, random, load.counts)
        self._next: Offset = 0
        self._is_added = self._is_kept = False

    async def step(self) -> None:
        if self._identity is None or self._to_add or self._to_send:
            await super().step()
        elif self._attempt is None:
            await self._read()
        elif not self._is_added and not self._bumps:
            await self._add_offsets(self._identity)
        elif not self._is_kept:
            await self._keep(self._identity)
        else:
            await super().step()

    def forget_coordinator(self) -> None:
        super().forget_coordinator()
        self._offsets.forget_coordinator()

    async def _read(self) -> None:
        found = await self._offsets.fetch(self._source)
        if found is None or self._identity is None:
            return
        if found < self._next and not self.load.history.is_void:
            raise HistoryError(f"T7: {self.key} received {self._next} as the next number, and now {found}")
        self._next, self._is_added, self._is_kept = found, False, False
        self._attempt = attempt = self.load.history.begin(self.key)
        partition = self.random.randrange(self.load.partitions)
        padding = b"%s %d %d" % (_MARK, self._source, found)
        self._to_add = [] if self._bumps else [partition]
        self._to_send = [(partition, self.load.history.new_values(attempt, partition, 1, padding))]
        self._commits = self.random.random() < 0.8  # noqa: PLR2004

    async def _add_offsets(self, identity: Identity) -> None:
        newest = self.load.history.newest(self.key)
        request = AddOffsetsToTxnRequest(
            transactional_id=self.key, producer_id=identity[0], producer_epoch=identity[1], group_id=TRANSFORM_GROUP
        )
        answer = await self.ask(request, 3, timeout_ms=_ANSWER_MS)
        if self._is_done("AddOffsetsToTxn", answer.error_code):
            self.load.history.on_success("AddOffsetsToTxn", self.key, identity, newest)
            self._is_added = True

    async def _keep(self, identity: Identity) -> None:
        newest = self.load.history.newest(self.key)
        row = TxnOffsetCommitRequestPartition(
            partition_index=self._source, committed_offset=self._next + 1, committed_metadata=None
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.key,
            group_id=TRANSFORM_GROUP,
            producer_id=identity[0],
            producer_epoch=identity[1],
            topics=[TxnOffsetCommitRequestTopic(name=self._topic, partitions=[row])],
        )
        answer = await self._offsets.ask(request, 5 if self._bumps else 3, timeout_ms=_ANSWER_MS, must_answer=False)
        code = answer.topics[0].partitions[0].error_code
        self._offsets.note_moved(code)
        if self._is_done("TxnOffsetCommit", code):
            self.client.note(f"keeps {self._next + 1} of {self._source} in {self._attempt}, producer {identity}")
            self.load.history.on_success("TxnOffsetCommit", self.key, identity, newest)
            self._is_kept = True


def check_transformed(found: Mapping[int, tuple[Offset, Mapping[Offset, bytes]]], source: int, end: Offset) -> None:
    """Checks that each number of a source below `end` is committed exactly once (T7). Errors: HistoryError."""
    made = Counter(
        int(words[4])
        for _, records in found.values()
        for value in records.values()
        if len(words := value.split()) > 4 and words[2] == _MARK and int(words[3]) == source  # noqa: PLR2004
    )
    missing = [number for number in range(end) if not made[number]]
    twice = [number for number, count in made.items() if count > 1]
    beyond = [number for number in made if number >= end]
    if missing or twice or beyond:
        raise HistoryError(
            f"T7: source {source} is read up to {end}; missing {missing[:5]}, twice {twice[:5]}, beyond {beyond[:5]}"
        )


async def fetch_end(offsets: StableOffsets, source: int, *, within_s: float) -> Offset | None:
    """Returns how far a source is read, or None without an answer in time."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + within_s
    while loop.time() < give_up_s:
        try:
            found = await offsets.fetch(source)
        except OSError:
            offsets.forget_coordinator()
            found = None
        if found is not None:
            return found
        await asyncio.sleep(0.05)
    return None
