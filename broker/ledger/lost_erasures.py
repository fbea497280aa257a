"""Repeats erasures that a new leader's log lacks, from the ledger, before consumers are served.

After an unclean election, or on a disk from an old snapshot, a leader may have records again that were erased. It
returns nothing to consumers (`LogErasures.withheld`) until it has read the ledger and appended the erasures again. A
record is erased only if it has the leader epoch and the timestamp that the ledger names: another one may have its
offset now.

Guards: consumers wait as long as the ledger can't be read. A mark is lowered only after the ledger was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from uuid import UUID

from lowtide.broker.ledger.erasure_ledger import ErasureLedger, LedgerPartition
from lowtide.broker.ledger.erasure_marks import ErasureMarks
from lowtide.broker.partitions.erasures import append_erasures
from lowtide.protocol.erasure_ledger_records import LedgerEntry, NamedKey, NamedRecords
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.types import LeaderEpoch, Offset, TopicPartition
from lowtide.storage.erasures.log_search import SearchedLog
from lowtide.storage.erasures.record_search import FoundRecords, OffsetSelector

if TYPE_CHECKING:
    from lowtide.broker.context import BrokerContext
    from lowtide.broker.partitions.log_searches import LogSearches
    from lowtide.metadata.image import ImageDelta, MetadataImage
    from lowtide.replication.partition import Partition

ATTEMPT_S: Final = 30
"""How long the ledger is asked before a warning is logged; then it is asked again."""

NamedOffsets = dict[UUID, dict[Offset, tuple[LeaderEpoch, int]]]
"""For each erasure the offsets that it names, with leader epoch and timestamp."""


class LostErasures:
    """The partitions led here whose erasures are to be repeated."""

    def __init__(
        self, broker: BrokerContext, ledger: ErasureLedger, marks: ErasureMarks, searches: LogSearches
    ) -> None:
        self._broker = broker
        self._ledger = ledger
        self._marks = marks
        self._searches = searches
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
                await self._repeat(partition, committed_records(entries, place), deadline)
        finally:
            self._running = False

    async def _repeat(self, partition: Partition, named: NamedOffsets, deadline: float) -> None:
        """Appends the erasures that the log lacks, and notes that it has them.

        If that fails, the next tick repeats it.
        """
        log, leader_epoch = partition.log, partition.leader_epoch
        ranges = OffsetRanges.of_offsets(sorted({offset for each in named.values() for offset in each}))
        outcome = await self._searches.search(partition, OffsetSelector(ranges.ranges()), log.log_end_offset)
        if not isinstance(outcome, SearchedLog):
            self._broker.log.warning(
                "log can't be searched for erased records",
                partition=str(partition.topic_partition),
                reason=outcome.value,
            )
            return
        if partition.log is not log or partition.leader_epoch != leader_epoch or not partition.is_leader:
            return
        count, named_again = 0, OffsetRanges.union_of(each.left for each in log.erasures.known)
        for erasure_id, offsets in named.items():
            present = still_there(outcome.records, offsets).without(named_again)
            if present:
                now_ms = self._broker.clock.wall_ms()
                appended = append_erasures(self._broker.replicas, partition, erasure_id, present, now_ms)
                if isinstance(appended, ErrorCode):
                    return
                count += present.count
        self._broker.log.info(
            "erasures were repeated because the log lacks them",
            partition=str(partition.topic_partition),
            erased=count,
            absent=ranges.count - count,
        )
        await self._marks.note({partition.topic_partition: log.log_end_offset}, deadline, replaces=True)


def committed_records(entries: Iterable[LedgerEntry], place: LedgerPartition) -> NamedOffsets:
    """Returns what committed erasures of a partition name."""
    named: NamedOffsets = {}
    for entry in entries:
        value, key = entry.value, entry.key
        if not isinstance(key, NamedKey) or not isinstance(value, NamedRecords) or value.committed_ms < 0:
            continue
        if (key.topic_id, key.partition) != place:
            continue
        offsets = named.setdefault(UUID(bytes=bytes(key.erasure_id)), {})
        for run in value.records:
            for offset, timestamp in enumerate(run.timestamps, run.first_offset):
                offsets[offset] = (run.leader_epoch, timestamp)
    return named


def still_there(found: FoundRecords, named: dict[Offset, tuple[LeaderEpoch, int]]) -> OffsetRanges:
    """Returns the offsets at which a log has the named records, not others."""
    rows = zip(found.offsets, found.leader_epochs, found.timestamps, strict=True)
    return OffsetRanges.of_offsets([offset for offset, epoch, time in rows if named.get(offset) == (epoch, time)])
