"""Erases what searches have found: ledger, erasure, commit, ledger.

Guards: the ledger names the records before an erasure is appended, and has its commit before the request is answered.
An erasure is appended once for a search, in the leader epoch of the search.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from lowtide.broker.ledger.erasure_ledger import LEDGER_REFUSED
from lowtide.broker.ledger.ledger_entries import committed_entries, named_entries
from lowtide.broker.ledger.named_records import ReplayedSearch, still_there
from lowtide.broker.partitions.erasures import erase_found, is_compacted, why_not_erasable
from lowtide.broker.promises import future_of
from lowtide.protocol.erasure_ledger_records import names_of
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal
from lowtide.storage.erasures.log_search import SearchedLog, SearchFailure

if TYPE_CHECKING:
    from lowtide.broker.context import BrokerContext
    from lowtide.broker.ledger.erasure_ledger import ErasureLedger
    from lowtide.broker.ledger.erasure_marks import ErasureMarks
    from lowtide.broker.ledger.ledger_entries import ErasureRequest
    from lowtide.broker.partitions.compacted_erasures import CompactedErasure
    from lowtide.broker.partitions.log_searches import PartitionSearch
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.protocol.erasure_ledger_records import LedgerEntry
    from lowtide.protocol.messages.find_records import FoundPartition
    from lowtide.protocol.types import Offset


REPEATING: Final = "The leader repeats erasures that its log lacks."


class SearchErasure:
    """How far the erasure of what one search found is."""

    __slots__ = ("_replayed", "compacted", "entries", "erasures_end", "is_recorded", "other_count", "replay", "running")

    def __init__(
        self, running: PartitionSearch, compacted: CompactedErasure | None, replay: ReplayedSearch | None = None
    ) -> None:
        """`compacted` is the search of all replicas, if they may differ. Of a `replay` only named records count."""
        self.running = running
        self.compacted = compacted
        self.replay = replay
        self.other_count = 0
        """Records found by a replay that are others than the named ones."""
        self._replayed: SearchedLog | None = None
        self.entries: list[LedgerEntry] = []
        """What the ledger has about the search."""
        self.erasures_end: Offset | None = None
        """The exclusive end of the erasures; -1 if there is nothing to erase, None before they are appended."""
        self.is_recorded = False
        """Whether the ledger has the commit."""

    @property
    def outcome(self) -> SearchedLog | SearchFailure | Refusal | None:
        """What was found, in a compacted log by all replicas; None while the search is under way."""
        outcome = self.running.outcome if self.compacted is None else self.compacted.outcome
        if self.replay is None or not isinstance(outcome, SearchedLog):
            return outcome
        if self._replayed is None:
            named = still_there(outcome.records, names_of(self.replay.runs))
            self.other_count = len(outcome.records) - len(named)
            self._replayed = SearchedLog(outcome.first_offset, outcome.end_offset, named)
        return self._replayed

    @property
    def waits_for(self) -> str | None:
        """What the search waits for, in a sentence; None if that is the leader's own search."""
        return None if self.compacted is None else self.compacted.waits_for

    def refusal(self, replicas: ReplicaManager) -> Refusal | None:
        """Returns why no erasure can be appended in this leader epoch; None if one can be."""
        if self.compacted is not None:
            return self.compacted.why_over()
        partition = self.running.partition
        refusal = why_not_erasable(replicas, partition)
        if refusal is None and not (self.running.is_current() and partition.is_leader):
            refusal = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "")
        return refusal

    def append(self, replicas: ReplicaManager, erasure_id: UUID, now_ms: int) -> Refusal | None:
        """Appends the erasure, once. Returns why it didn't. `now_ms` is wall-clock time."""
        partition, searched = self.running.partition, self.outcome
        assert isinstance(searched, SearchedLog)
        if self.compacted is not None:
            end_offset: Offset | Refusal | ErrorCode = self.compacted.append(erasure_id, now_ms)
        elif is_compacted(partition.log):  # Since the search began.
            end_offset = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            end_offset = erase_found(replicas, partition, erasure_id, searched.records.ranges(), now_ms)
        if isinstance(end_offset, ErrorCode):
            end_offset = Refusal(end_offset, "")
        if isinstance(end_offset, Refusal):
            return end_offset
        self.erasures_end = end_offset
        return None


class SearchEraser:
    """Erases the records that were found in partitions which this broker leads."""

    def __init__(self, broker: BrokerContext, ledger: ErasureLedger, marks: ErasureMarks) -> None:
        self._broker = broker
        self._ledger = ledger
        self._marks = marks

    async def erase(
        self, request: ErasureRequest, found: list[tuple[FoundPartition, SearchErasure]], deadline: float
    ) -> None:
        """Erases the records of finished searches until the loop's time is `deadline`. Fills in the rows.

        A repeated call continues.
        """
        erasable = [(row, erasure) for row, erasure in found if not _refused(row, self._why_not(erasure))]
        named = [entry for _, erasure in erasable for entry in self._named(request, erasure)]
        error = await self._ledger.record(named, deadline)
        waiting: list[tuple[FoundPartition, SearchErasure, asyncio.Future[ErrorCode]]] = []
        for row, erasure in erasable:
            refusal = _of_ledger(error) if erasure.erasures_end is None else None
            if not _refused(row, refusal or self._appended(request, row, erasure)):
                waiting.append((row, erasure, self._committed(row, erasure, deadline)))
        unrecorded: list[LedgerEntry] = []
        for row, erasure, done in waiting:
            row.error_code = await done
            if row.error_code == ErrorCode.NONE and not erasure.is_recorded:
                now_ms = self._broker.clock.wall_ms()
                unrecorded += committed_entries(erasure.entries, row.erasures_end, now_ms)
        error = await self._ledger.record(unrecorded, deadline)
        if error == ErrorCode.NONE:
            ends = {
                erasure.running.partition.topic_partition: row.erasures_end
                for row, erasure, _ in waiting
                if row.error_code == ErrorCode.NONE and not erasure.is_recorded and row.erasures_end > 0
            }
            error = await self._marks.note(ends, deadline)
        for row, erasure, _ in waiting:
            if row.error_code == ErrorCode.NONE and not erasure.is_recorded:
                erasure.is_recorded = not _refused(row, _of_ledger(error))

    def _why_not(self, erasure: SearchErasure) -> Refusal | None:
        """Returns why an erasure can't be appended; None if it can be, or was."""
        if erasure.erasures_end is not None:
            return None
        partition = erasure.running.partition
        if partition.log.erasures.withheld:
            return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, REPEATING)
        if partition.log.config.is_held(self._broker.clock.wall_ms()):
            return Refusal(ErrorCode.POLICY_VIOLATION, partition.log.config.hold_sentence)
        return erasure.refusal(self._broker.replicas)

    def _named(self, request: ErasureRequest, erasure: SearchErasure) -> list[LedgerEntry]:
        """Returns the entries that the ledger must have before the erasure is appended."""
        if erasure.erasures_end is not None:
            return []
        running, searched, now_ms = erasure.running, erasure.outcome, self._broker.clock.wall_ms()
        assert isinstance(searched, SearchedLog)
        erasure.entries = named_entries(
            request, running.log, self._broker.metadata.broker_id, running.leader_epoch, searched, now_ms
        )
        return erasure.entries if searched.records else []

    def _appended(self, request: ErasureRequest, row: FoundPartition, erasure: SearchErasure) -> Refusal | None:
        """Appends the erasures of a finished search, once. Returns why it didn't."""
        refusal = self._why_not(erasure)  # The ledger was written meanwhile.
        if refusal is not None:
            return refusal
        partition, replicas = erasure.running.partition, self._broker.replicas
        row.record_count, row.has_more = 0, False
        erasure_id = UUID(bytes=request.erasure_id)
        if erasure.erasures_end is None:
            refusal = erasure.append(replicas, erasure_id, self._broker.clock.wall_ms())
            if refusal is not None:
                return refusal
        row.log_start_offset = partition.log.log_start_offset
        row.record_count = sum(each.count for each in partition.log.erasures.known if each.erasure_id == erasure_id)
        return None

    def _committed(self, row: FoundPartition, erasure: SearchErasure, deadline: float) -> asyncio.Future[ErrorCode]:
        """Returns a promise of the commit: NONE, or why it isn't known."""
        assert erasure.erasures_end is not None
        row.erasures_end = erasure.erasures_end
        if row.erasures_end < 0:
            return future_of(lambda done: done(ErrorCode.NONE))
        partition, end_offset = erasure.running.partition, row.erasures_end
        timeout_ms = max(int((deadline - asyncio.get_running_loop().time()) * 1000), 0)
        return future_of(partial(self._broker.replicas.when_committed, partition, end_offset, timeout_ms=timeout_ms))


def _refused(row: FoundPartition, refusal: Refusal | None) -> bool:
    """Fills in a refusal. Returns whether there is one."""
    if refusal is not None:
        row.error_code, row.error_message = refusal.error_code, refusal.message or None
    return refusal is not None


def _of_ledger(error: ErrorCode) -> Refusal | None:
    return None if error == ErrorCode.NONE else Refusal(error, LEDGER_REFUSED)
