"""Deletes what the topics' configurations say may go: looks through the partitions that this broker leads, from time to time.

Only the leader decides; followers let go of what lies below the log start that they learn. What goes is decided by
`storage/log/retention/retention_plan.py`. It goes as a delete of a client does: the new log start is durable in the
journal first, then visible, then the files go (`ReplicaManager.request_log_starts`). Each deletion is logged with its
reason, and counted (`deletion_ledger`).

A pass is done in slices; it costs a glance at the oldest segment of each partition, and what it deletes. Where consumed records may go and
some are old enough, all coordinators are asked first (`consumption`), once for all partitions of the pass. Between two partitions anything
may happen, so each is looked at as it is then.

Sources: Kafka's LogManager.cleanupLogs; KIP-47, KIP-68.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from lowtide.broker.config.dynamic_config import BrokerConfigs
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.consumed import NOT_CONSUMED, ConsumedEnd
from lowtide.broker.retention.consumption import Asked, Consumption, Doubt, Outcome, asked_about
from lowtide.broker.retention.deleted_counts import DeletedCount
from lowtide.broker.retention.deletion_ledger import DeletionLedger
from lowtide.broker.slices import walk_in_slices
from lowtide.protocol.types import Offset
from lowtide.replication.partition import Partition
from lowtide.storage.directory.log_starts import LogStartIncrement
from lowtide.storage.errors import DamagedSegmentError, StorageError
from lowtide.storage.log.log import Log
from lowtide.storage.log.retention.retention_plan import (
    Reason,
    RetentionOffsets,
    RetentionPlan,
    SegmentTimes,
    may_go_as_consumed,
    plan_retention,
)
from lowtide.storage.log.segments.segment import Segment

PARTITIONS_PER_STEP: Final = 16
"""Looked at between two looks at the clock: some ten microseconds each, where nothing goes."""

DELETIONS_AT_ONCE: Final = 256
"""Partitions whose log starts rise together when the disk has them: some five milliseconds' work."""

DISK_MS: Final = 1_000
"""How long they are waited for before the next ones follow."""

ASKED_MAX: Final = 10_000
"""Partitions whose consumption is asked for in one pass: a few megabytes. The next pass continues where this one ended."""


class Retention:
    """The retention passes of a broker. `start` once, then `stop`."""

    def __init__(
        self,
        broker: BrokerContext,
        times: SegmentTimes[Segment],
        loop: asyncio.AbstractEventLoop,
        consumption: Consumption,
    ) -> None:
        self.times = times
        self.consumption = consumption
        self.ledger = DeletionLedger(broker.replicas.partitions, loop, broker.log, broker.audit)
        self.held: Mapping[str, int] = {}
        """Partitions whose consumed records each group keeps, as the last pass found: it is the slowest, or has not committed."""
        self.next_check_ms: int | None = None
        """When the next pass begins, by the wall clock; None while one is under way."""
        self._replicas = broker.replicas
        self._replicas.log_manager.listen_to_deletions(self.ledger.on_prefix_deleted)
        self._replicas.log_manager.listen_to_erasing(self.ledger.on_not_erased)
        self._configs = broker.configs
        self._clock = broker.clock
        self._turns = broker.turns
        self._tasks = broker.tasks
        self._log = broker.log
        self._running: list[asyncio.Task[None]] = []
        self._asked_until = 0
        self._undurable: list[tuple[Log, Offset]] = []
        """Deletions that are on their way to the disk, with the log starts that they lead to."""
        self._doubt: str | None = None
        self._has_unreleased = False

    @property
    def deleted(self) -> Mapping[tuple[str, Reason], DeletedCount]:
        """What went, by topic and reason."""
        return self.ledger.counts

    @property
    def asks_groups(self) -> bool:
        """Whether consumed records may go before their time (KIP-68)."""
        return self._configs.current.values["log.retention.commitoffset.enable"] is True

    def start(self) -> None:
        """Look through all partitions after `log.initial.task.delay.ms`, then every `log.retention.check.interval.ms`."""
        self._running = [self._tasks.spawn(self._run(), name="retention")]

    def stop(self) -> None:
        """Delete nothing more."""
        for task in self._running:
            task.cancel()

    async def _run(self) -> None:
        await self._rest(_number(self._configs, "log.initial.task.delay.ms"))
        while True:
            due_ms = self._clock.monotonic_ms() + _number(self._configs, "log.retention.check.interval.ms")
            # As a task of its own: a bug of ours is logged, and costs one pass.
            self._running[1:] = [self._tasks.spawn(self.run_pass(), name="retention pass")]
            await asyncio.wait(self._running[1:])
            await self._rest(max(due_ms - self._clock.monotonic_ms(), 0))

    async def _rest(self, delay_ms: int) -> None:
        self.next_check_ms = self._clock.wall_ms() + delay_ms
        await asyncio.sleep(delay_ms / 1000)
        self.next_check_ms = None

    # ------------------------------------------------------------------ a pass
    async def run_pass(self) -> None:
        """One pass over all partitions."""
        consumed: Outcome = {}
        if self.asks_groups:
            asked: list[Asked] = []
            await walk_in_slices(self._turns, self._note_askable(asked))
            consumed = await self._ask(asked)
            self.held = Counter(each.group_id for each in consumed.values() if each.group_id is not None)
            self._tell_unreleased(consumed)
        left = deque(self._replicas.partitions.items())
        while left:
            await walk_in_slices(self._turns, self._steps(left, consumed))
            await self._made_durable()
        if self._replicas.image is not None:
            self.ledger.forget_all_but(self._replicas.image.topics)

    def _note_askable(self, asked: list[Asked]) -> Iterator[None]:
        """Note the partitions of which something could go for being consumed."""
        for number, (key, partition) in enumerate(list(self._replicas.partitions.items())):
            if number % PARTITIONS_PER_STEP == 0:
                yield
            log = partition.log
            if (
                log.config.retention_commitoffset_ms < 0
                or self._replicas.partitions.get(key) is not partition
                or not self._may_delete(partition)
            ):
                continue
            try:
                if may_go_as_consumed(
                    log.segments, offsets_of(partition), log.config, self.times, self._clock.wall_ms()
                ):
                    asked.append(asked_about(partition))
            except StorageError:
                continue  # It will be logged when the partition's turn comes.

    async def _ask(self, asked: list[Asked]) -> Outcome:
        """What all groups have consumed of these, or of as many as may be asked for; nothing where there is any doubt."""
        if not asked:
            return {}
        if len(asked) > ASKED_MAX:
            begin = self._asked_until % len(asked)
            asked = list(islice(asked + asked, begin, begin + ASKED_MAX))
            self._asked_until = begin + ASKED_MAX
        outcome = await self.consumption.ask(asked)
        doubt = outcome.reason if isinstance(outcome, Doubt) else None
        if doubt != self._doubt:
            self._doubt = doubt
            if doubt is not None:
                self._log.info("consumed records are kept: what all groups have consumed is not known", reason=doubt)
        return {} if isinstance(outcome, Doubt) else outcome

    def _tell_unreleased(self, consumed: Outcome) -> None:
        """Say, when that begins, that consumed records stay because none of the groups may delete them."""
        unreleased = [asked.key for asked, row in consumed.items() if row.offset > 0 and row.release is None]
        if unreleased and not self._has_unreleased:
            message = "consumed records are kept: no group that may delete them has committed"
            self._log.info(message, partitions=len(unreleased), first=str(unreleased[0]))
        self._has_unreleased = bool(unreleased)

    def _steps(self, left: deque[tuple[tuple[str, int], Partition]], consumed: Outcome) -> Iterator[None]:
        """Look at partitions, until none is left or many deletions are on their way to the disk."""
        while left and len(self._undurable) < DELETIONS_AT_ONCE:
            key, partition = left.popleft()
            if len(left) % PARTITIONS_PER_STEP == 0:
                yield
            is_here = self._replicas.partitions.get(key) is partition
            row = consumed.get(asked_about(partition), NOT_CONSUMED)
            if is_here and self._may_delete(partition) and self._look_at(partition, row):
                yield

    async def _made_durable(self) -> None:
        """Wait for the disk, so that never many log starts rise in one turn of the loop; not for ever, for there may be several disks."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISK_MS / 1000):
                while any(map(_is_on_its_way, self._undurable)):
                    self.ledger.has_more.clear()
                    await self.ledger.has_more.wait()
        self._undurable.clear()

    def _may_delete(self, partition: Partition) -> bool:
        log, is_fenced = partition.log, self._replicas.is_fenced
        return partition.is_leader and not (log.offline or log.truncating or (is_fenced is not None and is_fenced()))

    def _look_at(self, partition: Partition, row: ConsumedEnd) -> bool:
        """Delete what may go of a partition now. Returns whether anything went."""
        log, now_ms, consumed = partition.log, self._clock.wall_ms(), row.offset if row.is_known else None
        try:
            plan = plan_retention(log.segments, offsets_of(partition, consumed), log.config, self.times, now_ms)
            if plan.rolls:
                log.roll(now_ms)
        except StorageError as error:
            if not error.is_disk_full:
                self._on_failed(partition, error)  # Where a resource is lacking, the next pass tries again.
                return False
            plan = self._without_last(partition, consumed, now_ms)
        if not plan.deletions or plan.log_start_offset <= log.log_start_pending:
            return False  # What lies below the log start is removed as soon as that has risen.
        self.ledger.expect(partition.topic_partition, plan.deletions, row.release)
        self._replicas.request_log_starts([LogStartIncrement(log, plan.log_start_offset)])
        self._undurable.append((log, plan.log_start_offset))
        return True

    def _without_last(self, partition: Partition, consumed: Offset | None, now_ms: int) -> RetentionPlan:
        """What may go where the last segment can't be rolled: what makes room mustn't wait for room."""
        log = partition.log
        segments = log.segments
        end_offset = min(segments[-1].base_offset, log.high_watermark)
        offsets = RetentionOffsets(log.log_start_offset, end_offset, log.log_end_offset, consumed)
        return plan_retention(segments, offsets, log.config, self.times, now_ms)

    def _on_failed(self, partition: Partition, error: StorageError) -> None:
        """A segment that is damaged is logged at each pass; a disk that fails takes its directory offline."""
        self._log.error("retention has failed", partition=str(partition.topic_partition), error=str(error))
        if not isinstance(error, DamagedSegmentError):
            self._replicas.log_manager.fail_directory_of(partition.log, error)


def offsets_of(partition: Partition, consumed: Offset | None = None) -> RetentionOffsets:
    """Where a partition stands now."""
    log = partition.log
    return RetentionOffsets(log.log_start_offset, log.high_watermark, log.log_end_offset, consumed)


def _is_on_its_way(deletion: tuple[Log, Offset]) -> bool:
    """Whether a log start still is to rise there: the disk may have failed meanwhile, or a truncation come between."""
    log, offset = deletion
    return log.log_start_offset < offset <= log.log_start_pending and not log.offline


def _number(configs: BrokerConfigs, name: str) -> int:
    value = configs.current.values[name]
    assert isinstance(value, int), name
    return value
