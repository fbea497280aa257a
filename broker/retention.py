"""Deletes what the topics' configurations say may go: looks through the partitions that this broker leads, from time to time.

Only the leader decides; followers let go of what lies below the log start that they learn. What goes is decided by `storage/retention.py`.
It goes as a delete of a client does: the new log start is durable in the journal first, then visible, then the files go
(`ReplicaManager.delete_to`). Each deletion is told in one line with its reason, and counted.

A pass is done in slices; it costs a glance at the oldest segment of each partition, and what it deletes. Between two partitions anything
may happen, so each is looked at as it is then.

Sources: Kafka's LogManager.cleanupLogs; KIP-47, KIP-68.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from lowtide.broker.config_dynamic import BrokerConfigs
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.consumed import ConsumedOffsets
from lowtide.broker.slices import run_in_slices
from lowtide.protocol.types import Offset
from lowtide.replication.partition import Partition
from lowtide.storage.errors import DamagedSegmentError, StorageError
from lowtide.storage.retention import Deletion, Reason, RetentionOffsets, RetentionPlan, SegmentTimes, plan_retention
from lowtide.storage.segment import Segment

Survey = Callable[[ConsumedOffsets], Iterator[None]]
"""Finds out, a step at a time, what all groups have consumed."""

PARTITIONS_PER_STEP: Final = 16
"""Looked at between two looks at the clock: some ten microseconds each, where nothing goes."""


class DeletedCount(msgspec.Struct):
    """What went from a topic for one reason, since the broker started."""

    segments: int = 0
    size_bytes: int = 0
    offsets: int = 0
    """Compaction may have left fewer records."""


class Retention:
    """See the module. `start` once, then `stop`."""

    def __init__(self, broker: BrokerContext, times: SegmentTimes[Segment], loop: asyncio.AbstractEventLoop, survey: Survey) -> None:
        self.deleted: dict[tuple[str, Reason], DeletedCount] = {}
        """By topic and reason."""
        self._replicas = broker.replicas
        self._configs = broker.configs
        self._times = times
        self._clock = broker.clock
        self._loop = loop
        self._log = broker.log
        self._survey = survey
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def start(self) -> None:
        """Look through all partitions after `log.initial.task.delay.ms`, then every `log.retention.check.interval.ms`."""
        self._wait(_number(self._configs, "log.initial.task.delay.ms"))

    def stop(self) -> None:
        """Delete nothing more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, delay_ms: int) -> None:
        self._timer = self._loop.call_later(delay_ms / 1000, self._begin)

    def _begin(self) -> None:
        due_ms = self._clock.monotonic_ms() + _number(self._configs, "log.retention.check.interval.ms")
        run_in_slices(self._loop, self._clock, self.steps(), lambda: self._on_done(due_ms))

    def _on_done(self, due_ms: int) -> None:
        if not self._stopped:
            self._wait(max(due_ms - self._clock.monotonic_ms(), 0))

    # ------------------------------------------------------------------ a pass
    def steps(self) -> Iterator[None]:
        """One pass over all partitions."""
        consumed = ConsumedOffsets()
        consumed.in_doubt = self._configs.current.values["log.retention.commitoffset.enable"] is not True
        if not consumed.in_doubt:
            yield from self._survey(consumed)
        for number, (key, partition) in enumerate(list(self._replicas.partitions.items())):
            if number % PARTITIONS_PER_STEP == 0:
                yield
            if self._stopped:
                return
            is_here = self._replicas.partitions.get(key) is partition
            if is_here and self._may_delete(partition) and self._look_at(partition, consumed.of(*key, partition.topic_id)):
                yield

    def _may_delete(self, partition: Partition) -> bool:
        log, is_fenced = partition.log, self._replicas.is_fenced
        return partition.is_leader and not (log.offline or log.unsettled or (is_fenced is not None and is_fenced()))

    def _look_at(self, partition: Partition, consumed: Offset | None) -> bool:
        """Delete what may go of a partition now. Returns whether anything went."""
        log, now_ms = partition.log, self._clock.wall_ms()
        offsets = RetentionOffsets(log.log_start_offset, log.high_watermark, log.log_end_offset, consumed)
        try:
            plan = plan_retention(log.segments, offsets, log.config, self._times, now_ms)
            if plan.rolls:
                log.roll(now_ms)
        except StorageError as error:
            if not error.is_disk_full:
                self._on_failed(partition, error)
                return False
            plan = self._without_last(partition, consumed, now_ms)
        if not plan.deletions or plan.log_start_offset <= log.log_start_pending:
            return False  # What lies below the log start is removed as soon as that has risen.
        self._replicas.delete_to([(partition, plan.log_start_offset)])
        self._tell(partition, plan)
        return True

    def _without_last(self, partition: Partition, consumed: Offset | None, now_ms: int) -> RetentionPlan:
        """What may go where the last segment can't be rolled: what makes room mustn't wait for room."""
        log = partition.log
        segments = log.segments
        end_offset = min(segments[-1].base_offset, log.high_watermark)
        offsets = RetentionOffsets(log.log_start_offset, end_offset, log.log_end_offset, consumed)
        return plan_retention(segments, offsets, log.config, self._times, now_ms)

    def _on_failed(self, partition: Partition, error: StorageError) -> None:
        """A segment that is damaged is told at each pass; a disk that fails takes its directory offline."""
        self._log.error("retention has failed", partition=str(partition.topic_partition), error=str(error))
        if not isinstance(error, DamagedSegmentError):
            self._replicas.log_manager.fail_directory_of(partition.log, error)

    # ------------------------------------------------------------------ what is told
    def _tell(self, partition: Partition, plan: RetentionPlan) -> None:
        for deletion in plan.deletions:
            if deletion.reason is not Reason.LOG_START:
                self._count(partition, deletion)
                self._log.info(
                    "segments are deleted",
                    partition=str(partition.topic_partition),
                    reason=deletion.reason.value,
                    segments=deletion.segment_count,
                    bytes=deletion.size_bytes,
                    from_offset=deletion.first_offset,
                    log_start_offset=deletion.end_offset,
                )

    def _count(self, partition: Partition, deletion: Deletion) -> None:
        count = self.deleted.setdefault((partition.topic_partition.topic, deletion.reason), DeletedCount())
        count.segments += deletion.segment_count
        count.size_bytes += deletion.size_bytes
        count.offsets += deletion.end_offset - deletion.first_offset


def _number(configs: BrokerConfigs, name: str) -> int:
    value = configs.current.values[name]
    assert isinstance(value, int), name
    return value
