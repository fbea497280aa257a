"""Erases single records of a compacted log: all its replicas search, and the leader appends what any of them has found.

`erasure_search.py` decides who must take part, and `replica_searches.py` answers for a follower. Here the leader
searches its own log first, asks the followers when they are ready, and appends the erasure when all members of the
maximal ISR have answered.

Guards: the selector is in memory only. Nothing is appended after a change of the leader epoch. The erasure is appended
without offsets even if nothing was found, unless every replica has searched: one that is away may have what all others
have compacted away. `cancel` ends all that a search does.

Sources: docs/adr/0023-erasures-in-the-log.md, docs/adr/0024-model-of-erasures.md.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from uuid import UUID

from lowtide.broker.network.peer_client import PeerError
from lowtide.broker.partitions.erasures import erase_found, why_not_erasable
from lowtide.broker.partitions.replica_searches import MOVES, SearchParts, is_moving, note_search
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.erasure_record import ReplicaSearch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_records import (
    FindRecordsPartition,
    FindRecordsRequest,
    FindRecordsTopic,
    RecordOffsets,
)
from lowtide.replication.erasure_search import ErasureSearch, FoundRecord
from lowtide.replication.refusal import Refusal
from lowtide.storage.erasures.log_search import FOUND_MAX, SearchedLog, SearchFailure
from lowtide.storage.erasures.record_search import FoundRecords, HeaderSelector, KeySelector, OffsetSelector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.broker.partitions.log_searches import PartitionSearch
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.metadata.broker_image import BrokerImage
    from lowtide.protocol.messages.find_records import FindRecordsResponse
    from lowtide.protocol.offset_ranges import OffsetRanges
    from lowtide.protocol.types import BrokerEpoch, BrokerId, Offset
    from lowtide.replication.partition import Partition
    from lowtide.storage.erasures.record_search import RecordSelector

PURPOSE: Final = "searches"

ASK_MS: Final = 600_000
"""How long a follower may search. A lost connection or an ended registration ends it sooner."""

LOOK_S: Final = 0.05
"""How often it is checked which followers are ready."""

FAILED_S: Final = 0.5
"""The pause after a follower's refusal."""

_VERSION: Final = 1

ONLY_KEYS: Final = (
    "The topic is or was compacted: erase all versions of a key there, because without one of them an older one could "
    "be read again."
)
_OTHER: Final = "Another erasure of this partition is under way; ask again."


class CompactedErasure:
    """The search of all replicas for one erasure, in one leader epoch. `begin` is called once."""

    def __init__(self, parts: SearchParts, running: PartitionSearch, selector: RecordSelector) -> None:
        """`running` is the search of the leader's own log, which began just now."""
        self.running = running
        self.done = asyncio.Event()
        """Set when all who must have searched."""
        self.outcome: SearchedLog | SearchFailure | Refusal | None = None
        """What all have found, or why the search has ended; None while it is under way."""
        self._parts = parts
        self._selector = selector
        self._leadership = running.partition.leadership
        end_offset = running.partition.log.log_end_offset
        self._search = ErasureSearch(UUID(bytes=parts.random.randbytes(16)), end_offset)
        self._asked: dict[BrokerId, asyncio.Task[None]] = {}
        self._reasons: dict[BrokerId, str] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begins. From now on only participants join the ISR."""
        if self._leadership is not None:
            self._leadership.begin_search(self._search)
        self._task = self._parts.tasks.spawn(self._run(), name="compacted-erasure")

    def cancel(self) -> None:
        """Ends the search, unless it has ended. Others may join the ISR again."""
        if self._task is not None:
            self._task.cancel()
        self._end(SearchFailure.CANCELLED)

    @property
    def waits_for(self) -> str | None:
        """What the search waits for, in a sentence; None if nothing but the leader's own search is missing."""
        missing = self._missing() if self.running.done.is_set() and not self.done.is_set() else ()
        if not missing:
            return None
        broker_id = missing[0]
        reason = self._reasons.get(broker_id, "")
        return f"Broker {broker_id} must still search its replica{f' ({reason})' if reason else ''}."

    async def _run(self) -> None:
        outcome: SearchedLog | SearchFailure | Refusal = SearchFailure.CANCELLED
        try:
            await self.running.done.wait()
            assert self.running.outcome is not None
            outcome = self.running.outcome
            if isinstance(outcome, SearchedLog):
                outcome = await self._search_everywhere(outcome)
        finally:
            if self.outcome is None and isinstance(outcome, SearchedLog):
                self._stop_asking()
                self.outcome = outcome
                self.done.set()
            else:
                self._end(outcome)

    def _end(self, outcome: SearchedLog | SearchFailure | Refusal) -> None:
        self._stop_asking()
        if self._leadership is not None:
            self._leadership.end_search(self._search)
        if not isinstance(self.outcome, SearchFailure | Refusal):
            self.outcome = outcome
        self.done.set()

    def _stop_asking(self) -> None:
        for task in self._asked.values():
            task.cancel()

    def _missing(self) -> tuple[BrokerId, ...]:
        image, leadership = self._parts.replicas.image, self._leadership
        if leadership is None or image is None:
            return ()
        return self._search.missing(leadership.maximal_isr, leadership.broker_id, image)

    async def _search_everywhere(self, own: SearchedLog) -> SearchedLog | Refusal:
        """Returns what all have found, when all who must have searched."""
        if not await note_search(self._parts.replicas, self.running.log, self._search.search_id):
            return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "")
        while True:
            refusal = self.why_over()
            if refusal is not None:
                return refusal
            if not self._missing():
                return SearchedLog(own.first_offset, own.end_offset, together(own.records, self._search.found))
            self._ask_those_ready()
            await asyncio.sleep(LOOK_S)

    def why_over(self) -> Refusal | None:
        """Returns why nothing can be appended any more; None if it can be when all have searched."""
        partition = self.running.partition
        if not self.running.is_current() or not partition.is_leader or partition.leadership is not self._leadership:
            return Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "")
        if is_moving(self._parts.replicas, self.running.log):
            return Refusal(ErrorCode.REASSIGNMENT_IN_PROGRESS, MOVES)
        return why_not_erasable(self._parts.replicas, partition)

    def _ask_those_ready(self) -> None:
        image, leadership = self._parts.replicas.image, self._leadership
        assert image is not None
        assert leadership is not None
        for broker_id, follower in leadership.followers.items():
            task, broker = self._asked.get(broker_id), image.brokers.get(broker_id)
            if (task is None or task.done()) and self._search.may_ask(broker_id, follower, image):
                assert broker is not None
                self._asked[broker_id] = self._parts.tasks.spawn(
                    self._ask(broker, follower.broker_epoch), name=f"replica-search-{broker_id}"
                )

    async def _ask(self, broker: BrokerImage, broker_epoch: BrokerEpoch) -> None:
        """Lets a follower search, and takes its result if its registration is still the same."""
        found = await self._answer(broker, broker_epoch)
        if not isinstance(found, str):
            self._search.note(broker.broker_id, broker_epoch, found)
            return
        self._reasons[broker.broker_id] = found
        await asyncio.sleep(FAILED_S)

    async def _answer(self, broker: BrokerImage, broker_epoch: BrokerEpoch) -> dict[Offset, FoundRecord] | str:
        if self._parts.peers is None:
            return "no connection"
        try:
            response: FindRecordsResponse = await self._parts.peers.client_of(broker, PURPOSE).request(
                ApiKey.FIND_RECORDS, _VERSION, self._request(broker_epoch), ASK_MS
            )
        except PeerError as error:
            return str(error)
        if response.error_code:
            return response.error_message or ErrorCode(response.error_code).name
        row = response.topics[0].partitions[0]
        if row.error_code or row.has_more:
            return row.error_message or ErrorCode(row.error_code).name
        count = sum(max(each.last_offset - each.first_offset + 1, 0) for each in row.offsets)
        if not count == len(row.timestamps) == len(row.leader_epochs):
            return "its answer is incomplete"
        offsets = [offset for each in row.offsets for offset in range(each.first_offset, each.last_offset + 1)]
        return dict(zip(offsets, map(FoundRecord, row.timestamps, row.leader_epochs), strict=True))

    def _request(self, broker_epoch: BrokerEpoch) -> FindRecordsRequest:
        partition, selector = self.running.partition, self._selector
        ranges = selector.ranges if isinstance(selector, OffsetSelector) else ()
        row = FindRecordsPartition(
            partition_index=partition.topic_partition.partition,
            offsets=[RecordOffsets(first_offset=first, last_offset=last) for first, last in ranges],
            leader_epoch=self.running.leader_epoch,
            end_offset=self._search.end_offset,
        )
        topic = FindRecordsTopic(name=partition.topic_partition.topic, topic_id=partition.topic_id, partitions=[row])
        header = selector if isinstance(selector, HeaderSelector) else None
        return FindRecordsRequest(
            search_id=self._search.search_id.bytes,
            topics=[topic],
            keys=sorted(selector.keys) if isinstance(selector, KeySelector) else [],
            header_name=None if header is None else header.name,
            header_value=None if header is None else header.value,
            timeout_ms=ASK_MS,
            ranges_max=FOUND_MAX,
            replica_epoch=broker_epoch,
        )

    def append(self, erasure_id: UUID, now_ms: int, only: OffsetRanges | None = None) -> Offset | Refusal:
        """Appends the erasure, if still nobody is missing. `now_ms` is wall-clock time.

        Without `only` it names all that was found. May be called again with other offsets.
        Returns the exclusive end of the erasures; -1 if there is nothing to erase, and no erasure in the log.
        """
        refusal = self.why_over()
        if refusal is None and (self._missing() or not isinstance(self.outcome, SearchedLog)):
            refusal = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "")  # A replica has registered again.
        end_offset = self._appended(erasure_id, now_ms, only) if refusal is None else refusal
        if isinstance(end_offset, Refusal):
            self._end(end_offset)
        elif self._leadership is not None:
            self._leadership.end_search(self._search, end_offset)
        return end_offset

    def _appended(self, erasure_id: UUID, now_ms: int, only: OffsetRanges | None) -> Offset | Refusal:
        replicas, leadership = self._parts.replicas, self._leadership
        image = replicas.image
        assert image is not None
        assert isinstance(self.outcome, SearchedLog)
        brokers: tuple[BrokerId, ...] = (replicas.broker_id,)
        if leadership is not None:
            brokers = self._search.participants(leadership.broker_id, leadership.followers, image)
        search = ReplicaSearch(self._search.search_id, brokers)
        found = self.outcome.records.ranges() if only is None else only
        end_offset = erase_found(replicas, self.running.partition, erasure_id, found, now_ms, search)
        return Refusal(end_offset, "") if isinstance(end_offset, ErrorCode) else end_offset


def together(own: FoundRecords, others: Mapping[Offset, FoundRecord]) -> FoundRecords:
    """Returns what the leader and its followers have found, in ascending order of offsets."""
    found = dict(others)
    found |= zip(own.offsets, map(FoundRecord, own.timestamps, own.leader_epochs), strict=True)
    records = FoundRecords()
    for offset in sorted(found):
        records.offsets.append(offset)
        records.timestamps.append(found[offset].timestamp)
        records.leader_epochs.append(found[offset].leader_epoch)
    return records


def why_not_searchable(replicas: ReplicaManager, partition: Partition, selector: RecordSelector) -> Refusal | None:
    """Returns why no search for an erasure of a compacted log can begin now; None if it can."""
    if not isinstance(selector, KeySelector):
        return Refusal(ErrorCode.POLICY_VIOLATION, ONLY_KEYS)
    if is_moving(replicas, partition.log):
        return Refusal(ErrorCode.REASSIGNMENT_IN_PROGRESS, MOVES)
    leadership = partition.leadership
    if leadership is not None and leadership.erasure_search is not None:
        return Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _OTHER)
    return why_not_erasable(replicas, partition)
