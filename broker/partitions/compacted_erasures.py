"""Erases single records of a compacted log: all its replicas search, and the leader appends what any of them has found.

`erasure_search.py` decides who must take part, and `replica_searches.py` answers for a follower. Here the leader
searches its own log first, asks the followers when they are ready, and appends the erasure when all members of the
maximal ISR have answered.

If offsets or a header name the records, the leader reads their keys and finds the older versions of these
(`older_versions.py`). Followers get the keys with their last offsets, and the offsets or the header too: one may still
have a named record that the leader has compacted away. It tells that record's key; then all search again.

Guards: the selector is in memory only. Nothing is appended after a change of the leader epoch. The erasure is appended
without offsets even if nothing was found: a replica that is away, or whose volume is put back, may have what all others
have compacted away. `cancel` ends all that a search does.

Sources: docs/adr/0023-erasures-in-the-log.md, docs/adr/0024-model-of-erasures.md.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from uuid import UUID

from lowtide.broker.network.peer_client import PeerError
from lowtide.broker.partitions.erasures import erase_found, why_not_erasable
from lowtide.broker.partitions.newest_versions import live_records, versions_of
from lowtide.broker.partitions.older_versions import NEWEST, both, ends_of, newest_named, up_to
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
from lowtide.protocol.types import UNKNOWN_OFFSET
from lowtide.replication import in_sync_replicas
from lowtide.replication.erasure_search import ErasureSearch, FoundRecord
from lowtide.replication.refusal import Refusal
from lowtide.storage.erasures.log_search import FOUND_MAX, SearchedLog, SearchFailure
from lowtide.storage.erasures.record_search import (
    FoundRecords,
    HeaderSelector,
    KeySelector,
    OffsetSelector,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lowtide.broker.partitions.log_searches import PartitionSearch
    from lowtide.broker.partitions.older_versions import ErasureTerms
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.metadata.broker_image import BrokerImage
    from lowtide.protocol.messages.find_records import FindRecordsResponse, FoundPartition
    from lowtide.protocol.types import BrokerEpoch, BrokerId, Offset
    from lowtide.replication.partition import Partition

PURPOSE: Final = "searches"

ASK_MS: Final = 600_000
"""How long a follower may search. A lost connection or an ended registration ends it sooner."""

LOOK_S: Final = 0.05
"""How often it is checked which followers are ready."""

FAILED_S: Final = 0.5
"""The pause after a follower's refusal."""

_VERSION: Final = 1

_OTHER: Final = "Another erasure of this partition is under way; ask again."


class CompactedErasure:
    """The search of all replicas for one erasure, in one leader epoch. `begin` is called once."""

    def __init__(self, parts: SearchParts, running: PartitionSearch, terms: ErasureTerms) -> None:
        """`running` is the search of the leader's own log, which began just now."""
        self.running = running
        self.done = asyncio.Event()
        """Set when all who must have searched."""
        self.outcome: SearchedLog | SearchFailure | Refusal | None = None
        """What all have found, or why the search has ended; None while it is under way."""
        self._parts = parts
        self._terms = terms
        self._ends: dict[bytes, Offset] = {}
        """The keys of named records, each with the inclusive end up to which its versions go."""
        self._learned: dict[bytes, Offset] = {}
        """What followers have told of these, and is not in `_ends`."""
        self._leadership = running.partition.leadership
        end_offset = running.partition.log.log_end_offset
        self._search = ErasureSearch(UUID(bytes=parts.random.randbytes(16)), end_offset)
        self._asked: dict[BrokerId, asyncio.Task[None]] = {}
        self._reasons: dict[BrokerId, str] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begins the search. Until it ends, only replicas that take part in it join the ISR."""
        if self._leadership is not None:
            in_sync_replicas.begin_search(self._leadership, self._search)
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
            if isinstance(outcome, SearchedLog) and self._terms.must_widen:
                outcome = await self._widened(outcome)
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
            in_sync_replicas.end_search(self._leadership, self._search)
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

    async def _widened(self, named: SearchedLog) -> SearchedLog | SearchFailure | Refusal:
        """Returns the named records with all older versions of their keys, or why they can't be erased."""
        self._ends = ends_of(named)
        versions = await versions_of(self._parts.searches, self.running, self._ends, named.end_offset)
        if isinstance(versions, SearchFailure):
            return versions
        if self._terms.keeps_newest:
            newest = newest_named(self._ends, versions, live_records(self.running.log, named.end_offset))
            if newest:
                return Refusal(ErrorCode.POLICY_VIOLATION, NEWEST.format(newest[0]))
        return self._with_older(named, versions)

    async def _widened_again(self, own: SearchedLog) -> SearchedLog | SearchFailure:
        """Takes what followers have told into account: all must search again.

        Such a record is not the newest version of its key, or the leader would have it.
        """
        self._stop_asking()
        self._ends, self._learned = self._ends | self._learned, {}
        self._search.took_part.clear()
        versions = await versions_of(self._parts.searches, self.running, self._ends, own.end_offset)
        return versions if isinstance(versions, SearchFailure) else self._with_older(own, versions)

    def _with_older(self, own: SearchedLog, versions: SearchedLog) -> SearchedLog:
        records = both(own.records, up_to(self._ends, versions))
        return SearchedLog(min(own.first_offset, versions.first_offset), own.end_offset, records)

    async def _search_everywhere(self, own: SearchedLog) -> SearchedLog | SearchFailure | Refusal:
        """Returns what all have found, when all who must have searched."""
        if not await note_search(self._parts.replicas, self.running.log, self._search.search_id):
            return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "")
        while True:
            refusal = self.why_over()
            if refusal is not None:
                return refusal
            if self._learned:
                again = await self._widened_again(own)
                if isinstance(again, SearchFailure):
                    return again
                own = again
            elif not self._missing():
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
            if (task is None or task.done()) and in_sync_replicas.may_search(self._search, broker_id, follower, image):
                assert broker is not None
                self._asked[broker_id] = self._parts.tasks.spawn(
                    self._ask(broker, follower.broker_epoch), name=f"replica-search-{broker_id}"
                )

    async def _ask(self, broker: BrokerImage, broker_epoch: BrokerEpoch) -> None:
        """Lets a follower search, and takes its result if its registration is still the same."""
        row = await self._answer(broker, broker_epoch)
        if isinstance(row, str):
            self._reasons[broker.broker_id] = row
            await asyncio.sleep(FAILED_S)
            return
        for key, end in zip(row.keys, row.key_ends, strict=True):
            if end > max(self._ends.get(key, UNKNOWN_OFFSET), self._learned.get(key, UNKNOWN_OFFSET)):
                self._learned[key] = end
        offsets = [offset for each in row.offsets for offset in range(each.first_offset, each.last_offset + 1)]
        rows = zip(offsets, map(FoundRecord, row.timestamps, row.leader_epochs), strict=True)
        self._search.note(broker.broker_id, broker_epoch, dict(rows))

    async def _answer(self, broker: BrokerImage, broker_epoch: BrokerEpoch) -> FoundPartition | str:
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
        if not count == len(row.timestamps) == len(row.leader_epochs) or len(row.keys) != len(row.key_ends):
            return "its answer is incomplete"
        return row

    def _request(self, broker_epoch: BrokerEpoch) -> FindRecordsRequest:
        partition, selector = self.running.partition, self._terms.selector
        ranges = selector.ranges if isinstance(selector, OffsetSelector) else ()
        ends = sorted(self._ends.items())
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
            keys=sorted(selector.keys) if isinstance(selector, KeySelector) else [key for key, _ in ends],
            key_ends=[end for _, end in ends],
            header_name=None if header is None else header.name,
            header_value=None if header is None else header.value,
            timeout_ms=ASK_MS,
            ranges_max=FOUND_MAX,
            replica_epoch=broker_epoch,
        )

    def append(self, erasure_id: UUID, now_ms: int) -> Offset | Refusal:
        """Appends the erasure, if still no replica is missing. `now_ms` is wall-clock time.

        Returns the exclusive end of the erasures; -1 if there is nothing to erase, and no erasure in the log.
        """
        refusal = self.why_over()
        if refusal is None and (self._missing() or not isinstance(self.outcome, SearchedLog)):
            refusal = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "")  # A replica has registered again.
        end_offset = self._appended(erasure_id, now_ms) if refusal is None else refusal
        if isinstance(end_offset, Refusal):
            self._end(end_offset)
        elif self._leadership is not None:
            in_sync_replicas.end_search(self._leadership, self._search, end_offset)
        return end_offset

    def _appended(self, erasure_id: UUID, now_ms: int) -> Offset | Refusal:
        replicas, leadership = self._parts.replicas, self._leadership
        image = replicas.image
        assert image is not None
        assert isinstance(self.outcome, SearchedLog)
        brokers: tuple[BrokerId, ...] = (replicas.broker_id,)
        if leadership is not None:
            brokers = self._search.participants(leadership.broker_id, leadership.followers, image)
        search, found = ReplicaSearch(self._search.search_id, brokers), self.outcome.records.ranges()
        end_offset = erase_found(replicas, self.running.partition, erasure_id, found, now_ms, search)
        return Refusal(end_offset, "") if isinstance(end_offset, ErrorCode) else end_offset


@contextmanager
def searching_everywhere(
    parts: SearchParts, partition: Partition, terms: ErasureTerms, end_offset: Offset
) -> Iterator[CompactedErasure | SearchFailure]:
    """Begins the search of all replicas up to `end_offset` (exclusive), and ends it with the block.

    Yields a failure if no search can begin.
    """
    running = parts.searches.begin(partition, terms.selector, end_offset, with_keys=terms.must_widen)
    if isinstance(running, SearchFailure):
        yield running
        return
    everywhere = CompactedErasure(parts, running, terms)
    everywhere.begin()
    try:
        yield everywhere
    finally:
        everywhere.cancel()
        parts.searches.forget(running)


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


def why_not_searchable(replicas: ReplicaManager, partition: Partition) -> Refusal | None:
    """Returns why no search for an erasure of a compacted log can begin now; None if it can."""
    if is_moving(replicas, partition.log):
        return Refusal(ErrorCode.REASSIGNMENT_IN_PROGRESS, MOVES)
    leadership = partition.leadership
    if leadership is not None and leadership.erasure_search is not None:
        return Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _OTHER)
    return why_not_erasable(replicas, partition)
