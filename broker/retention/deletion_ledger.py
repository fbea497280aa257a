"""Every deletion explains itself: what went from each topic, and why, in counters and in lines of the log.

Each rise of a log start has a reason: a client's request, a rule of retention, or, on a follower, that its leader's log
start has risen. Retention says beforehand what it deletes and why; when the rise is durable that is what counts, and
the rest was a request.

A count's offsets are those that became unreadable, its bytes those of segments that left the log, which may be later: a
delete into the middle of a segment lets no segment go. One line is written for each topic and reason of a pass of the
loop in which segments went, however many partitions that concerns. Where only records went, as with trimming record by
record, that is logged at once too, and what follows
`QUIET_S` after the last line.

What goes for being consumed is a line of the audit log, too, of each partition: with the group whose commit let it go,
and who committed.

Guards: counters are kept of topics that exist, so their number is bounded. A few lines are written in one turn of the
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from lowtide.broker.audit.audit_log import NO_AUDIT, AuditEvent, AuditLog, short
from lowtide.broker.coordinator.groups.consumed import Release
from lowtide.broker.retention.deleted_counts import DeletedCount, total_counts
from lowtide.protocol.types import Offset, TopicPartition, topic_id_text
from lowtide.replication.partition import Partition
from lowtide.storage.log.log import Log
from lowtide.storage.log.retention.retention_plan import Reason, SegmentDeletion
from lowtide.storage.log.segments.segment_files import RemovedSegment

QUIET_S: Final = 10.0
"""Between two lines about one topic and reason, where no segment went."""

LINES_AT_ONCE: Final = 32
"""Some two milliseconds."""

_Key = tuple[str, Reason]


class _Untold(msgspec.Struct):
    """What went since the last line, and of which partitions: the first, and how many."""

    partition: TopicPartition
    log_start_offset: Offset
    partitions: set[TopicPartition]
    count: DeletedCount


class _Expected(NamedTuple):
    """What retention is about to delete of a partition, and whose commit lets go what has been consumed."""

    deletions: tuple[SegmentDeletion, ...]
    release: Release | None


_NOTHING: Final = _Expected((), None)


class DeletionLedger:
    """What was deleted, and why, for log lines and counters. Used from the event loop only."""

    def __init__(
        self,
        partitions: Mapping[tuple[str, int], Partition],
        loop: asyncio.AbstractEventLoop,
        log: Any,
        audit: AuditLog = NO_AUDIT,
    ) -> None:
        self._counts: dict[str, dict[Reason, DeletedCount]] = {}
        self._gone = total_counts([])
        """What topics have counted that are gone."""
        self.has_more = asyncio.Event()
        """Set when a log start has risen or segments have left a log."""
        self._partitions = partitions
        self._loop = loop
        self._log = log
        self._audit = audit
        self._expected: dict[TopicPartition, _Expected] = {}
        self._untold: dict[_Key, _Untold] = {}
        self._soon: dict[_Key, None] = {}
        """Of these the next turns of the loop tell."""
        self._quiet_until: dict[_Key, float] = {}

    @property
    def counts(self) -> dict[_Key, DeletedCount]:
        """By topic and reason."""
        return {(topic, reason): count for topic, counts in self._counts.items() for reason, count in counts.items()}

    def totals(self) -> dict[Reason, DeletedCount]:
        """By reason, of all topics, those that are gone included."""
        return total_counts([self._gone, *self._counts.values()])

    def expect(self, key: TopicPartition, deletions: Sequence[SegmentDeletion], release: Release | None = None) -> None:
        """Retention is about to delete these; `release` lets go what has been consumed."""
        expected = tuple(deletion for deletion in deletions if deletion.reason is not Reason.LOG_START)
        if expected:
            self._expected[key] = _Expected(expected, release)

    def forget_all_but(self, topics: Container[str]) -> None:
        """Forget topics that are gone."""
        self._gone = total_counts(
            [self._gone, *(counts for topic, counts in self._counts.items() if topic not in topics)]
        )
        self._counts = {topic: counts for topic, counts in self._counts.items() if topic in topics}
        self._expected = {key: expected for key, expected in self._expected.items() if key in self._partitions}
        self._quiet_until = {key: until for key, until in self._quiet_until.items() if key[0] in topics}

    def on_not_erased(self, log: Log, reason: str) -> None:
        """A log is damaged where its deleted records are to be erased."""
        self._log.error(
            "a log can't be erased, its deleted records stay", partition=str(log.topic_partition), reason=reason
        )

    def on_prefix_deleted(self, log: Log, before: Offset, removed: Sequence[RemovedSegment]) -> None:
        """A log start has risen from `before`, and these segments left the log; perhaps only one of the two."""
        self.has_more.set()
        key, after = log.topic_partition, log.log_start_offset
        if after <= before and not removed:
            return
        for deletion in self._expected.get(key, _NOTHING).deletions:
            start, end = max(before, deletion.first_offset), min(after, deletion.end_offset)
            if start < end:
                gone: list[RemovedSegment] = []
                others: list[RemovedSegment] = []
                for segment in removed:
                    is_meant = deletion.first_offset <= segment.base_offset < deletion.end_offset
                    (gone if is_meant else others).append(segment)
                self.add(key, deletion.reason, gone, end - start, after)
                if deletion.reason is Reason.CONSUMED:
                    self._audit_consumed(key, start, end, self._expected[key].release)
                removed = others
                before = end
        if after > before or removed:
            self.add(key, self._other_reason(key, rises=after > before), removed, after - before, after)
        if key in self._expected and after >= self._expected[key].deletions[-1].end_offset:
            del self._expected[key]

    def add(
        self,
        key: TopicPartition,
        reason: Reason,
        removed: Sequence[RemovedSegment],
        offsets: int,
        log_start_offset: Offset,
    ) -> None:
        """Count what went from a partition."""
        size_bytes = sum(segment.size for segment in removed)
        _add(
            self._counts.setdefault(key.topic, {}).setdefault(reason, DeletedCount()), len(removed), size_bytes, offsets
        )
        name = key.topic, reason
        is_new = name not in self._untold
        untold = self._untold.setdefault(name, _Untold(key, log_start_offset, set(), DeletedCount()))
        untold.partitions.add(key)
        _add(untold.count, len(removed), size_bytes, offsets)
        if untold.partition == key:
            untold.log_start_offset = log_start_offset
        quiet_s = 0.0 if removed else self._quiet_until.get(name, 0.0) - self._loop.time()
        if quiet_s <= 0:
            self._tell_soon(name)
        elif is_new:
            self._loop.call_later(quiet_s, self._tell_soon, name)

    def count_compaction(self, key: TopicPartition, segments: int, size_bytes: int, records: int) -> None:
        """Count what compaction has made superfluous in a partition: segments and bytes less, and records that are gone."""
        _add(
            self._counts.setdefault(key.topic, {}).setdefault(Reason.COMPACTION, DeletedCount()),
            segments,
            size_bytes,
            records,
        )

    def _audit_consumed(self, key: TopicPartition, start: Offset, end: Offset, release: Release | None) -> None:
        partition = self._partitions.get(key)
        self._audit.by_itself(
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

    def _tell_of(self, name: _Key, row: _Untold) -> None:
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


def _add(count: DeletedCount, segments: int, size_bytes: int, offsets: int) -> None:
    count.segments += segments
    count.size_bytes += size_bytes
    count.offsets += offsets
