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
from lowtide.broker.partitions.erasures import append_erasures, why_not_erasable
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset
from lowtide.replication.refusal import Refusal
from lowtide.storage.erasures.log_search import SearchedLog

if TYPE_CHECKING:
    from lowtide.broker.context import BrokerContext
    from lowtide.broker.ledger.erasure_ledger import ErasureLedger
    from lowtide.broker.ledger.erasure_marks import ErasureMarks
    from lowtide.broker.ledger.ledger_entries import ErasureRequest
    from lowtide.broker.partitions.log_searches import PartitionSearch
    from lowtide.protocol.erasure_ledger_records import LedgerEntry
    from lowtide.protocol.messages.find_records import FoundPartition


REPEATING: Final = "The leader repeats erasures that its log lacks."


class SearchErasure:
    """How far the erasure of what one search found is."""

    __slots__ = ("entries", "erasures_end", "is_recorded", "running")

    def __init__(self, running: PartitionSearch) -> None:
        self.running = running
        self.entries: list[LedgerEntry] = []
        """What the ledger has about the search."""
        self.erasures_end: Offset | None = None
        """The exclusive end of the erasures; -1 if there is nothing to erase, None before they are appended."""
        self.is_recorded = False
        """Whether the ledger has the commit."""


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
        refusal = why_not_erasable(self._broker.replicas, partition)
        if refusal is None and not (erasure.running.is_current() and partition.is_leader):
            refusal = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "")
        return refusal

    def _named(self, request: ErasureRequest, erasure: SearchErasure) -> list[LedgerEntry]:
        """Returns the entries that the ledger must have before the erasure is appended."""
        if erasure.erasures_end is not None:
            return []
        running, now_ms = erasure.running, self._broker.clock.wall_ms()
        assert isinstance(running.outcome, SearchedLog)
        erasure.entries = named_entries(
            request, running.log, self._broker.metadata.broker_id, running.leader_epoch, running.outcome, now_ms
        )
        return erasure.entries if running.outcome.records else []

    def _appended(self, request: ErasureRequest, row: FoundPartition, erasure: SearchErasure) -> Refusal | None:
        """Appends the erasures of a finished search, once. Returns why it didn't."""
        refusal = self._why_not(erasure)  # The ledger was written meanwhile.
        if refusal is not None:
            return refusal
        partition, replicas = erasure.running.partition, self._broker.replicas
        known = partition.log.erasures.known
        row.record_count, row.has_more = 0, False
        erasure_id = UUID(bytes=request.erasure_id)
        if erasure.erasures_end is None:
            assert isinstance(erasure.running.outcome, SearchedLog)
            if partition.leadership is not None:
                # A replica that is away may have records below the log start, which the search doesn't see.
                partition.leadership.note_acknowledged(partition.log.log_start_offset)
            left = erasure.running.outcome.records.ranges().without(OffsetRanges.union_of(each.left for each in known))
            # What others name, perhaps since the search, must be committed and done too.
            end_offset: Offset | ErrorCode = known[-1].end_offset if known else UNKNOWN_OFFSET
            if left:
                end_offset = append_erasures(replicas, partition, erasure_id, left, self._broker.clock.wall_ms())
                if isinstance(end_offset, ErrorCode):
                    return Refusal(end_offset, "")
            erasure.erasures_end = end_offset
        row.log_start_offset = partition.log.log_start_offset
        row.record_count = sum(each.count for each in partition.log.erasures.known if each.erasure_id == erasure_id)
        return None

    def _committed(self, row: FoundPartition, erasure: SearchErasure, deadline: float) -> asyncio.Future[ErrorCode]:
        """Returns a promise of the commit: NONE, or why it isn't known."""
        assert erasure.erasures_end is not None
        row.erasures_end = erasure.erasures_end
        loop = asyncio.get_running_loop()
        done: asyncio.Future[ErrorCode] = loop.create_future()
        if row.erasures_end < 0:
            done.set_result(ErrorCode.NONE)
            return done
        timeout_ms = max(int((deadline - loop.time()) * 1000), 0)
        self._broker.replicas.when_committed(
            erasure.running.partition, row.erasures_end, partial(_set_result, done), timeout_ms=timeout_ms
        )
        return done


def _refused(row: FoundPartition, refusal: Refusal | None) -> bool:
    """Fills in a refusal. Returns whether there is one."""
    if refusal is not None:
        row.error_code, row.error_message = refusal.error_code, refusal.message or None
    return refusal is not None


def _of_ledger(error: ErrorCode) -> Refusal | None:
    return None if error == ErrorCode.NONE else Refusal(error, LEDGER_REFUSED)


def _set_result(done: asyncio.Future[ErrorCode], error: ErrorCode) -> None:
    if not done.done():
        done.set_result(error)
