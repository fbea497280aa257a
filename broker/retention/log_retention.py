"""Deletes old records of the partitions that this broker leads, by their topics' configuration.

Only the leader decides; followers delete below the log start offset that they learn.
`storage/log/retention/retention_plan.py` decides what is deleted. It works like a client's delete: the new log start
offset becomes durable in the journal, then visible, then files are removed (`ReplicaManager.request_log_starts`). Each
deletion is logged and counted (`deletion_ledger`).

A pass runs in slices, and looks at the oldest segment of each partition. If consumed records can be deleted and some
are old enough, all coordinators are asked first (`consumption`), once per pass. State can change between two
partitions, so each is checked when its turn comes.

Sources: Kafka's LogManager.cleanupLogs; KIP-47, KIP-68.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final

from lowtide.broker.config.key import number
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.consumed import NOT_CONSUMED, ConsumedEnd
from lowtide.broker.retention.consumption import Consumption, ConsumptionQuery, Doubt, Outcome, consumption_query
from lowtide.broker.retention.deletion_ledger import COUNTED_AFTER_S, DeletedCount, DeletionLedger
from lowtide.protocol.types import Offset
from lowtide.replication.partition import Partition
from lowtide.storage.directory.log_settings import DeletionListener, ErasingListener
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
"""The number of partitions between two checks of the clock: about ten microseconds each, without deletions."""

DELETIONS_AT_ONCE: Final = 256
"""The number of partitions whose log start offsets rise together: about five milliseconds of work."""

DISK_MS: Final = 1_000
"""The time to wait for them before the next ones follow."""

ASKED_MAX: Final = 10_000
"""The number of partitions whose consumption is requested per pass: a few megabytes. The next pass continues."""


class Retention:
    """The retention passes of a broker. Call `start` once, then `stop`."""

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
        """The number of partitions whose consumed records each group keeps, because it is the slowest or has not
        committed."""
        self.next_check_ms: int | None = None
        """The wall-clock time of the next pass; None during one."""
        self._replicas = broker.replicas
        count_later = partial(loop.call_later, COUNTED_AFTER_S, self.ledger.count)
        self._replicas.log_manager.listen_to_deletions(DeletionListener(self.ledger.uncounted, count_later))
        on_erasing = ErasingListener(self.ledger.on_not_erased, self.ledger.on_without_room)
        self._replicas.log_manager.listeners.erasing.append(on_erasing)
        self._configs = broker.configs
        self._clock = broker.clock
        self._turns = broker.turns
        self._tasks = broker.tasks
        self._log = broker.log
        self._running: list[asyncio.Task[None]] = []
        self._asked_until = 0
        self._undurable: list[tuple[Log, Offset]] = []
        """Deletions that are not durable yet, with their new log start offsets."""
        self._is_durable = asyncio.Event()
        """Set when one of them became durable, or its disk failed."""
        self._doubt: str | None = None
        self._has_unreleased = False

    @property
    def deleted(self) -> Mapping[tuple[str, Reason], DeletedCount]:
        return self.ledger.counts

    @property
    def asks_groups(self) -> bool:
        """Whether consumed records can be deleted early (KIP-68)."""
        return self._configs.current.values["log.retention.commitoffset.enable"] is True

    def _setting(self, name: str) -> int:
        return number(self._configs.current.values[name])

    def start(self) -> None:
        """Starts passes after `log.initial.task.delay.ms`, then every `log.retention.check.interval.ms`."""
        self._running = [self._tasks.spawn(self._run(), name="retention")]

    def stop(self) -> None:
        for task in self._running:
            task.cancel()

    async def _run(self) -> None:
        await self._rest(self._setting("log.initial.task.delay.ms"))
        while True:
            due_ms = self._clock.monotonic_ms() + self._setting("log.retention.check.interval.ms")
            # A separate task: an unexpected error is logged and ends one pass.
            self._running[1:] = [self._tasks.spawn(self.run_pass(), name="retention pass")]
            await asyncio.wait(self._running[1:])
            await self._rest(max(due_ms - self._clock.monotonic_ms(), 0))

    async def _rest(self, delay_ms: int) -> None:
        self.next_check_ms = self._clock.wall_ms() + delay_ms
        await asyncio.sleep(delay_ms / 1000)
        self.next_check_ms = None

    # ------------------------------------------------------------------ a pass
    async def run_pass(self) -> None:
        consumed: Outcome = {}
        if self.asks_groups:
            asked: list[ConsumptionQuery] = []
            await self._turns.walk(self._note_askable(asked))
            consumed = await self._ask(asked)
            self.held = Counter(each.group_id for each in consumed.values() if each.group_id is not None)
            self._tell_unreleased(consumed)
        left = deque(self._replicas.partitions.items())
        while left:
            await self._turns.walk(self._steps(left, consumed))
            await self._made_durable()
        if self._replicas.image is not None:
            self.ledger.forget_all_but(self._replicas.image.topics)

    def _note_askable(self, asked: list[ConsumptionQuery]) -> Iterator[None]:
        """Finds the partitions with consumed records that could be deleted."""
        for index, (key, partition) in enumerate(list(self._replicas.partitions.items())):
            if index % PARTITIONS_PER_STEP == 0:
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
                    asked.append(consumption_query(partition))
            except StorageError:
                continue  # It is logged when the partition is checked.

    async def _ask(self, asked: list[ConsumptionQuery]) -> Outcome:
        """Returns what all groups have consumed of at most `ASKED_MAX` of these partitions; nothing if in doubt."""
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
                self._log.info("consumed records are kept: the consumed offsets are unknown", reason=doubt)
        return {} if isinstance(outcome, Doubt) else outcome

    def _tell_unreleased(self, consumed: Outcome) -> None:
        """Logs once that consumed records stay because no group may delete them."""
        unreleased = [asked.key for asked, row in consumed.items() if row.offset > 0 and row.release is None]
        if unreleased and not self._has_unreleased:
            message = "consumed records are kept: no group that may delete them has committed"
            self._log.info(message, partitions=len(unreleased), first=str(unreleased[0]))
        self._has_unreleased = bool(unreleased)

    def _steps(self, left: deque[tuple[tuple[str, int], Partition]], consumed: Outcome) -> Iterator[None]:
        """Checks partitions, until none is left or many deletions are not durable yet."""
        while left and len(self._undurable) < DELETIONS_AT_ONCE:
            key, partition = left.popleft()
            if len(left) % PARTITIONS_PER_STEP == 0:
                yield
            is_here = self._replicas.partitions.get(key) is partition
            row = consumed.get(consumption_query(partition), NOT_CONSUMED)
            if is_here and self._may_delete(partition) and self._look_at(partition, row):
                yield

    async def _made_durable(self) -> None:
        """Waits until the deletions are durable, to bound those per pass of the loop, but not for a hanging disk."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISK_MS / 1000):
                while any(map(_is_on_its_way, self._undurable)):
                    self._is_durable.clear()
                    await self._is_durable.wait()
        self._undurable.clear()

    def _may_delete(self, partition: Partition) -> bool:
        log, is_fenced = partition.log, self._replicas.is_fenced
        return partition.is_leader and not (log.offline or log.truncating or (is_fenced is not None and is_fenced()))

    def _look_at(self, partition: Partition, row: ConsumedEnd) -> bool:
        """Deletes old records of a partition. Returns whether anything was deleted."""
        log, now_ms, consumed = partition.log, self._clock.wall_ms(), row.offset if row.is_known else None
        try:
            plan = plan_retention(log.segments, offsets_of(partition, consumed), log.config, self.times, now_ms)
            if plan.rolls:
                log.roll(now_ms)
        except StorageError as error:
            if not error.is_disk_full:
                self._on_failed(partition, error)  # The next pass retries if a resource is missing.
                return False
            plan = self._without_last(partition, consumed, now_ms)
        if not plan.deletions or plan.log_start_offset <= log.log_start_pending:
            return False  # Segments below the log start offset are removed when it is durable.
        self.ledger.expect(partition.topic_partition, plan.deletions, row.release)
        self._replicas.request_log_starts([LogStartIncrement(log, plan.log_start_offset)], self._is_durable.set)
        self._undurable.append((log, plan.log_start_offset))
        return True

    def _without_last(self, partition: Partition, consumed: Offset | None, now_ms: int) -> RetentionPlan:
        """Returns the plan if the active segment cannot be rolled because the disk is full."""
        log = partition.log
        segments = log.segments
        end_offset = min(segments[-1].base_offset, log.high_watermark)
        offsets = RetentionOffsets(log.log_start_offset, end_offset, log.log_end_offset, consumed)
        return plan_retention(segments, offsets, log.config, self.times, now_ms)

    def _on_failed(self, partition: Partition, error: StorageError) -> None:
        """Logs a corrupt segment at each pass; a failed disk takes its directory offline."""
        self._log.error("retention failed", partition=str(partition.topic_partition), error=str(error))
        if not isinstance(error, DamagedSegmentError):
            self._replicas.log_manager.fail_directory_of(partition.log, error)


def offsets_of(partition: Partition, consumed: Offset | None = None) -> RetentionOffsets:
    """Returns the offsets of a partition."""
    log = partition.log
    return RetentionOffsets(log.log_start_offset, log.high_watermark, log.log_end_offset, consumed)


def _is_on_its_way(deletion: tuple[Log, Offset]) -> bool:
    """Returns whether a log start offset is still pending: the disk may have failed, or the log been truncated."""
    log, offset = deletion
    return log.log_start_offset < offset <= log.log_start_pending and not log.offline
