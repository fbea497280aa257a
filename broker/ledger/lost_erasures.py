"""Repeats erasures that a new leader's log lacks, from the ledger, before consumers are served.

After an unclean election, or on a disk from an old snapshot, a leader may have records again that were erased. It
returns nothing to consumers (`LogErasures.withheld`) until it has read the ledger and appended the erasures again. A
record is erased only if it has the leader epoch and the timestamp that the ledger names: another one may have its
offset now.

In a log that is or was compacted all members of the maximal ISR search, as for a new erasure (`compacted_erasures.py`):
for the named records and for older versions of their keys. Other replicas start over. The ledger has no keys. So an
older version can be read again if no replica that searches has a named record with its key; the broker's log says so.

Guards: consumers wait as long as the ledger can't be read. A mark is lowered only after the ledger was read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lowtide.broker.ledger.erasure_ledger import ErasureLedger, LedgerPartition
from lowtide.broker.ledger.erasure_marks import ErasureMarks
from lowtide.broker.ledger.named_records import RecordNames, committed_records, last_end, offsets_of, still_there
from lowtide.broker.partitions.compacted_erasures import searching_everywhere, why_not_searchable
from lowtide.broker.partitions.erasures import append_erasures, is_compacted
from lowtide.broker.partitions.older_versions import ErasureTerms
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.types import UNKNOWN_OFFSET, TopicPartition
from lowtide.replication.refusal import Refusal
from lowtide.storage.erasures.log_search import SearchedLog, SearchFailure
from lowtide.storage.erasures.record_search import FoundRecords, OffsetSelector

if TYPE_CHECKING:
    from uuid import UUID

    from lowtide.broker.context import BrokerContext
    from lowtide.broker.partitions.replica_searches import SearchParts
    from lowtide.metadata.image import ImageDelta, MetadataImage
    from lowtide.protocol.types import Offset
    from lowtide.replication.partition import Partition

ATTEMPT_S: Final = 30
"""How long the ledger is asked before a warning is logged; then it is asked again."""

ERASURES_LOGGED: Final = 10
"""The most erasures that a log line names."""


class LostErasures:
    """The partitions led here whose erasures are to be repeated."""

    def __init__(
        self, broker: BrokerContext, ledger: ErasureLedger, marks: ErasureMarks, searching: SearchParts
    ) -> None:
        self._broker = broker
        self._ledger = ledger
        self._marks = marks
        self._searching = searching
        self._suspected: set[TopicPartition] = set()
        """Partitions led here that have erasures and have changed."""
        self._running = False

    def on_image(self, image: MetadataImage, delta: ImageDelta) -> None:
        """Notes the partitions that this broker leads now and that have erasures."""
        own = self._broker.metadata.broker_id
        for topic in (*delta.topics_created, *delta.topics_changed):
            known = delta.partitions_changed.get(topic.name)
            for number in range(len(topic.partitions)) if known is None else known:
                state = topic.partitions[number]
                if state.leader == own and state.erasures_end:
                    self._suspected.add(TopicPartition(topic.name, number))

    def on_tick(self) -> None:
        """Begins to repeat erasures where some may be missing. Called about once a second."""
        if self._running or not self._suspected:
            return
        lacking = []
        for key in list(self._suspected):
            topic = self._broker.metadata.image.topics.get(key.topic)
            state = None if topic is None or key.partition >= len(topic.partitions) else topic.partitions[key.partition]
            if state is None or state.leader != self._broker.metadata.broker_id:
                self._suspected.discard(key)
                continue
            partition = self._broker.replicas.partitions.get(key)
            if partition is None or not partition.is_leader or partition.leader_epoch != state.leader_epoch:
                continue  # It isn't led here yet.
            if partition.log.erasures.withheld:
                lacking.append(partition)
            else:
                self._suspected.discard(key)
        if lacking:
            self._running = True
            self._broker.tasks.spawn(self._repeat_all(lacking), name="lost erasures")

    async def _repeat_all(self, lacking: list[Partition]) -> None:
        try:
            deadline = asyncio.get_running_loop().time() + ATTEMPT_S
            ends = {each.topic_partition: self._marked_end(each) for each in lacking}
            places = [LedgerPartition(each.topic_id, each.topic_partition.partition) for each in lacking]
            entries = await self._ledger.read(places, deadline)
            if isinstance(entries, ErrorCode):
                self._broker.log.warning(
                    "consumers wait because the erasure ledger can't be read",
                    partitions=len(lacking),
                    first=str(lacking[0].topic_partition),
                    error=entries.name,
                )
                return
            for partition, place in zip(lacking, places, strict=True):
                if await self._repeat(partition, committed_records(entries, place), deadline):
                    self._tell_what_lacks(partition, last_end(entries, place), ends[partition.topic_partition])
        finally:
            self._running = False

    def _marked_end(self, partition: Partition) -> Offset:
        """Returns the end of the last erasure as the metadata store has it."""
        topic, number = partition.topic_partition
        state = self._broker.metadata.image.topics.get(topic)
        return 0 if state is None else state.partitions[number].erasures_end

    def _tell_what_lacks(self, partition: Partition, known_end: Offset, marked_end: Offset) -> None:
        """Logs an error if the ledger is older than the last erasure, such as one from the same disk as the log.

        An erasure is in the ledger before the metadata store has its end. After a repetition the store has a higher
        end than any record of the ledger; then the lack is only possible.
        """
        if known_end >= marked_end:
            return
        places = {"partition": str(partition.topic_partition), "known_end": known_end, "last_end": marked_end}
        if known_end == UNKNOWN_OFFSET:
            self._broker.log.error(
                "the erasure ledger lacks the erasures of a log: erased records can be read; erase them again", **places
            )
        else:
            self._broker.log.warning(
                "the erasure ledger may lack the last erasures of a log: replay an export of it", **places
            )

    async def _repeat(self, partition: Partition, named: dict[UUID, RecordNames], deadline: float) -> bool:
        """Appends the erasures that the log lacks, and notes that it has them. Returns whether it has.

        If that fails, the next tick repeats it.
        """
        log, leader_epoch = partition.log, partition.leader_epoch
        ranges = OffsetRanges.union_of(map(offsets_of, named.values()))
        outcome = await self._searching.searches.search(partition, OffsetSelector(ranges.ranges()), log.log_end_offset)
        if not isinstance(outcome, SearchedLog):
            self._broker.log.warning(
                "log can't be searched for erased records",
                partition=str(partition.topic_partition),
                reason=outcome.value,
            )
            return False
        if partition.log is not log or partition.leader_epoch != leader_epoch or not partition.is_leader:
            return False
        if is_compacted(log):
            count = await self._repeat_everywhere(partition, named, outcome, deadline)
        else:
            count = self._appended(partition, named, outcome.records)
        if count < 0:
            return False
        self._broker.log.info(
            "erasures were repeated because the log lacks them",
            partition=str(partition.topic_partition),
            erased=count,
            absent=max(ranges.count - count, 0),
        )
        ends = {partition.topic_partition: log.log_end_offset}
        return await self._marks.note(ends, deadline, replaces=True) == ErrorCode.NONE

    def _appended(self, partition: Partition, named: dict[UUID, RecordNames], found: FoundRecords) -> int:
        """Appends the erasures of named records that are in the log. Returns how many; -1 if it can't."""
        count, named_again = 0, OffsetRanges.union_of(each.left for each in partition.log.erasures.known)
        for erasure_id, names in named.items():
            present = still_there(found, names).ranges().without(named_again)
            if present:
                now_ms = self._broker.clock.wall_ms()
                appended = append_erasures(self._broker.replicas, partition, erasure_id, present, now_ms)
                if isinstance(appended, ErrorCode):
                    return -1
                count += present.count
        return count

    async def _repeat_everywhere(
        self, partition: Partition, named: dict[UUID, RecordNames], own: SearchedLog, deadline: float
    ) -> int:
        """Erases in a compacted log, under one id, what all in-sync replicas have found. Returns as `_appended`.

        A follower may have a named record that the leader has compacted away. At an offset where the leader has another
        record nobody searches.
        """
        if not named or not own.end_offset:
            return 0
        there = OffsetRanges.union_of(still_there(own.records, names).ranges() for names in named.values())
        others = own.records.ranges().without(there)
        everyone = OffsetRanges.union_of(map(offsets_of, named.values()))
        selector = OffsetSelector(everyone.without(others).between(0, own.end_offset - 1).ranges())
        if why_not_searchable(self._broker.replicas, partition) is not None:
            return -1
        terms = ErasureTerms(selector, force=True)
        with searching_everywhere(self._searching, partition, terms, own.end_offset) as everywhere:
            if isinstance(everywhere, SearchFailure):
                return -1
            try:
                async with asyncio.timeout_at(deadline):
                    await everywhere.done.wait()
            except TimeoutError:
                self._broker.log.warning(
                    "consumers wait until all in-sync replicas have searched for erased records",
                    partition=str(partition.topic_partition),
                    reason=everywhere.waits_for,
                )
                return -1
            outcome = everywhere.outcome
            if not isinstance(outcome, SearchedLog) or isinstance(
                everywhere.append(list(named)[-1], self._broker.clock.wall_ms()), Refusal
            ):
                return -1
        self._broker.log.error(
            "a compacted log had lost erasures: it may have older versions of erased keys; erase them again",
            partition=str(partition.topic_partition),
            erasures=[str(erasure_id) for erasure_id in list(named)[:ERASURES_LOGGED]],
        )
        return len(outcome.records)
