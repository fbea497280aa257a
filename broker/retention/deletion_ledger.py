"""Counts and logs every deletion with its reason.

Each increase of a log start offset has a reason: a client's request, a retention rule, or, on a follower, the leader's
log start offset. Retention announces its deletions; when the new log start offset is durable they are counted, and the
rest was a request. That is `COUNTED_AFTER_S` later, so that no delete waits for it, or when the counts are read.

Offsets are counted when they become unreadable, and bytes when segments leave the log, which may be later: a delete
into the middle of a segment removes none. One line is written per topic and reason for each pass of the loop in which
segments were deleted. If only records were deleted, as when clients trim single records, the next line comes `QUIET_S`
after the last one. Deletions of consumed records are also audited per partition, with the group and the principal whose
commit allowed them.

Guards: counters exist only for existing topics. A pass of the loop writes a few lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from lowtide.broker.audit.audit_log import NO_AUDIT, AuditEvent, AuditLog, short
from lowtide.broker.coordinator.groups.consumed import Release
from lowtide.protocol.types import Offset, TopicPartition, topic_id_text
from lowtide.replication.partition import Partition
from lowtide.storage.directory.directory_reports import RoomShortage
from lowtide.storage.directory.log_settings import PrefixDeletion
from lowtide.storage.log.log import Log
from lowtide.storage.log.retention.retention_plan import Reason, SegmentDeletion
from lowtide.storage.log.segments.segment_files import RemovedSegment

COUNTED_AFTER_S: Final = 0.1
"""The time from a deletion to when it is counted."""

QUIET_S: Final = 10.0
"""The time between two lines about a topic and reason without deleted segments."""

LINES_AT_ONCE: Final = 32
"""About two milliseconds."""

_Key = tuple[str, Reason]


class DeletedCount(msgspec.Struct):
    """The deletions of a topic for one reason, since the broker started."""

    segments: int = 0
    size_bytes: int = 0
    offsets: int = 0
    """Compaction may have left fewer records."""

    def add(self, segments: int, size_bytes: int, offsets: int) -> None:
        self.segments += segments
        self.size_bytes += size_bytes
        self.offsets += offsets


def total_counts(several: Iterable[Mapping[Reason, DeletedCount]]) -> dict[Reason, DeletedCount]:
    """Adds counts, with an entry for every reason."""
    totals = {reason: DeletedCount() for reason in Reason}
    for counts in several:
        for reason, count in counts.items():
            totals[reason].add(count.segments, count.size_bytes, count.offsets)
    return totals


class _UnloggedDeletes(msgspec.Struct):
    """The deletions since the last line: their first partition, and how many."""

    partition: TopicPartition
    log_start_offset: Offset
    partitions: set[TopicPartition]
    count: DeletedCount


class _PlannedDeletes(NamedTuple):
    """The deletions that retention announced, and the commit that allows deleting consumed records."""

    deletions: tuple[SegmentDeletion, ...]
    release: Release | None


_NOTHING: Final = _PlannedDeletes((), None)


class DeletionLedger:
    """The deletions of a broker. Used from the event loop only."""

    def __init__(
        self,
        partitions: Mapping[tuple[str, int], Partition],
        loop: asyncio.AbstractEventLoop,
        log: Any,
        audit: AuditLog = NO_AUDIT,
    ) -> None:
        self._counts: dict[str, dict[Reason, DeletedCount]] = {}
        self._gone = total_counts([])
        self.uncounted: list[PrefixDeletion] = []
        """Deletions since the last call of `count`."""
        self._partitions = partitions
        self._loop = loop
        self._log = log
        self._audit = audit
        self._expected: dict[TopicPartition, _PlannedDeletes] = {}
        self._untold: dict[_Key, _UnloggedDeletes] = {}
        self._soon: dict[_Key, None] = {}
        """The lines for the next passes of the loop."""
        self._quiet_until: dict[_Key, float] = {}

    @property
    def counts(self) -> dict[_Key, DeletedCount]:
        self.count()
        return {(topic, reason): count for topic, counts in self._counts.items() for reason, count in counts.items()}

    def totals(self) -> dict[Reason, DeletedCount]:
        """Returns the counts by reason, including deleted topics."""
        self.count()
        return total_counts([self._gone, *self._counts.values()])

    def expect(self, key: TopicPartition, deletions: Sequence[SegmentDeletion], release: Release | None = None) -> None:
        """Announces deletions by retention; `release` allows those of consumed records."""
        self.count()  # They happened before what is announced.
        expected = tuple(deletion for deletion in deletions if deletion.reason is not Reason.LOG_START)
        if expected:
            self._expected[key] = _PlannedDeletes(expected, release)

    def forget_all_but(self, topics: Container[str]) -> None:
        """Drops the counts of deleted topics."""
        self.count()
        self._gone = total_counts(
            [self._gone, *(counts for topic, counts in self._counts.items() if topic not in topics)]
        )
        self._counts = {topic: counts for topic, counts in self._counts.items() if topic in topics}
        self._expected = {key: expected for key, expected in self._expected.items() if key in self._partitions}
        self._quiet_until = {key: until for key, until in self._quiet_until.items() if key[0] in topics}

    def on_not_erased(self, log: Log, reason: str) -> None:
        """Logs that a corrupt log cannot be erased."""
        self._log.error(
            "log cannot be erased, its deleted records stay", partition=str(log.topic_partition), reason=reason
        )

    def on_without_room(self, log: Log, shortage: RoomShortage, logs: int) -> None:
        """Logs that erasing waits for room: once a minute for each directory."""
        self._log.warning(
            "no room to erase records: they stay in the files, and no reader gets them",
            partition=str(log.topic_partition),
            directory=shortage.directory,
            bytes_needed=shortage.needed_bytes,
            bytes_free=shortage.free_bytes,
            reason=shortage.sentence,
            partitions=logs,
        )

    def count(self) -> None:
        """Counts and logs the deletions since the last call, those by requests of a topic together."""
        requested: dict[str, list[PrefixDeletion]] = {}
        for deletion in self.uncounted:
            log, before, after, removed = deletion
            key = log.topic_partition
            partition = self._partitions.get(key)
            if removed or partition is None or not partition.is_leader or key in self._expected:
                self._count_requested(requested)
                self._count(key, before, after, removed)
            elif after > before:
                requested.setdefault(key.topic, []).append(deletion)
        self._count_requested(requested)
        self.uncounted.clear()

    def _count_requested(self, requested: dict[str, list[PrefixDeletion]]) -> None:
        for topic, deletions in requested.items():
            offsets = sum([after - before for _, before, after, _ in deletions])
            keys = [log.topic_partition for log, _, _, _ in deletions]
            self._add(topic, keys, Reason.REQUEST, (), offsets, deletions[-1].log_start_offset)
        requested.clear()

    def _count(self, key: TopicPartition, before: Offset, after: Offset, removed: list[RemovedSegment]) -> None:
        for deletion in self._expected.get(key, _NOTHING).deletions:
            start, end = max(before, deletion.first_offset), min(after, deletion.end_offset)
            if start < end:
                gone: list[RemovedSegment] = []
                others: list[RemovedSegment] = []
                for segment in removed:
                    is_meant = deletion.first_offset <= segment.base_offset < deletion.end_offset
                    (gone if is_meant else others).append(segment)
                self._add(key.topic, (key,), deletion.reason, gone, end - start, after)
                if deletion.reason is Reason.CONSUMED:
                    self._audit_consumed(key, start, end, self._expected[key].release)
                removed = others
                before = end
        if after > before or removed:
            reason = self._other_reason(key, rises=after > before)
            self._add(key.topic, (key,), reason, removed, after - before, after)
        if key in self._expected and after >= self._expected[key].deletions[-1].end_offset:
            del self._expected[key]

    def _add(
        self,
        topic: str,
        keys: Sequence[TopicPartition],
        reason: Reason,
        removed: Sequence[RemovedSegment],
        offsets: int,
        log_start_offset: Offset,
    ) -> None:
        """Counts deletions in partitions of a topic; `log_start_offset` is the last one's."""
        size_bytes = sum([segment.size for segment in removed])
        self._count_of(topic, reason).add(len(removed), size_bytes, offsets)
        name = topic, reason
        is_new = name not in self._untold
        untold = self._untold.setdefault(name, _UnloggedDeletes(keys[0], log_start_offset, set(), DeletedCount()))
        untold.partitions.update(keys)
        untold.count.add(len(removed), size_bytes, offsets)
        if untold.partition == keys[-1]:
            untold.log_start_offset = log_start_offset
        quiet_s = 0.0 if removed else self._quiet_until.get(name, 0.0) - self._loop.time()
        if quiet_s <= 0:
            self._tell_soon(name)
        elif is_new:
            self._loop.call_later(quiet_s, self._tell_soon, name)

    def count_compaction(self, key: TopicPartition, segments: int, size_bytes: int, records: int) -> None:
        """Counts what compaction removed: segments, bytes and records."""
        self._count_of(key.topic, Reason.COMPACTION).add(segments, size_bytes, records)

    def _count_of(self, topic: str, reason: Reason) -> DeletedCount:
        return self._counts.setdefault(topic, {}).setdefault(reason, DeletedCount())

    def _audit_consumed(self, key: TopicPartition, start: Offset, end: Offset, release: Release | None) -> None:
        partition = self._partitions.get(key)
        self._audit.unrequested(
            AuditEvent.DELETES,
            "records deleted",
            reason=Reason.CONSUMED.value,
            group=None if release is None else short(release.group_id),
            committer=None if release is None else release.committer,
            topic=key.topic,
            topic_id=None if partition is None else topic_id_text(partition.topic_id),
            partition=key.partition,
            old_log_start_offset=start,
            log_start_offset=end,
        )

    def _other_reason(self, key: TopicPartition, *, rises: bool) -> Reason:
        partition = self._partitions.get(key)
        return Reason.REQUEST if rises and partition is not None and partition.is_leader else Reason.LOG_START

    def _tell_soon(self, name: _Key) -> None:
        if name in self._untold and name not in self._soon:
            if not self._soon:
                self._loop.call_soon(self._tell)
            self._soon[name] = None

    def _tell(self) -> None:
        for name in list(islice(self._soon, LINES_AT_ONCE)):
            del self._soon[name]
            self._tell_of(name, self._untold.pop(name))
            self._quiet_until[name] = self._loop.time() + QUIET_S
        if self._soon:
            self._loop.call_soon(self._tell)

    def _tell_of(self, name: _Key, row: _UnloggedDeletes) -> None:
        topic, reason = name
        one = {"partition": str(row.partition), "log_start_offset": row.log_start_offset}
        many = {"topic": topic, "partitions": len(row.partitions)}
        self._log.info(
            "segments are deleted" if row.count.segments else "records are deleted",
            reason=reason.value,
            **(one if len(row.partitions) == 1 else many),
            segments=row.count.segments,
            bytes=row.count.size_bytes,
            offsets=row.count.offsets,
        )
