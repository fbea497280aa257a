"""Carries out what coordinators decide: appends their records, and releases answers when these are committed.

A coordinator's state is that of the partition's log. A broker that comes to lead the partition reads the log
(`shard_loader`), and refuses requests meanwhile (COORDINATOR_LOAD_IN_PROGRESS); one that no longer leads forgets it all
(NOT_COORDINATOR). Everything between a look at the state and the append of what follows from it happens in one turn of
the loop.

Guards: no answer tells what could be lost with this broker alone: it waits until its records are committed; nothing is
appended, and no timer acts, in a leadership other than the one whose log the state was read from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic

from lowtide.broker.coordinator.runtime.effects import Effects, Job, Promise, Then
from lowtide.broker.coordinator.runtime.in_transaction import InTransaction, TransactionEnded
from lowtide.broker.coordinator.runtime.shard import CoordinatedTopic, S, Shard, make_batch, make_batches
from lowtide.broker.coordinator.runtime.shard_loader import ShardLoader
from lowtide.broker.partitions.delayed.commit import committed_end
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import Pending
from lowtide.broker.slices import run_in_slices, run_in_turns
from lowtide.protocol.control_records import ControlRecordType
from lowtide.protocol.coordinator_records import CoordinatorRecord
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import OffsetCommits
from lowtide.protocol.types import Offset, ProducerEpoch, ProducerId
from lowtide.replication.partition import Partition
from lowtide.runtime.clock import Clock
from lowtide.runtime.worker import Worker
from lowtide.storage.log.markers import Marker


class CoordinatorRuntime(Generic[S]):
    """The coordinators of one topic on one broker."""

    def __init__(
        self,
        topic: CoordinatedTopic[S],
        *,
        replicas: ReplicaManager,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        worker: Worker,
        log: Any,
    ) -> None:
        self.topic = topic.name
        self.shards: dict[int, Shard[S]] = {}
        self._replicas = replicas
        self._clock = clock
        self._loop = loop
        self._worker = worker
        self._log = log
        self._make_state = topic.make_state
        self._loader = ShardLoader(topic.decode, replicas=replicas, clock=clock, loop=loop, worker=worker, log=log)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._closed = False

    # ------------------------------------------------------------------ whose turn it is
    def find(self, number: int) -> Shard[S] | ErrorCode:
        """The state of one partition. Errors: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""
        partition = self._replicas.find(self.topic, number)
        shard = self.shards.get(number)
        # As `Shard.leads`, without a call: many requests come by. What `find` returns has a log that is online.
        if (
            shard is not None
            and (led := shard.partition) is partition
            and led.is_leader
            and led.led_since == shard.led_since
        ):
            return shard if shard.loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if shard is not None:
            self._unload(shard)
        if isinstance(partition, ErrorCode) or not partition.is_leader or self._closed:
            return ErrorCode.NOT_COORDINATOR
        shard = self.shards[number] = Shard(number, partition, self._make_state())
        self._loader.load(shard, on_loaded=self._on_loaded, on_failed=self._unload)
        return shard if shard.loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def follow(self, partition_count: int) -> None:
        """Load what this broker has come to lead, forget what it leads no longer, and look after what has waited too long."""
        for number in range(partition_count):
            self.find(number)
        for number in [number for number in self.shards if number >= partition_count]:
            self._unload(self.shards[number])
        now_ms = self._clock.monotonic_ms()
        for shard in list(self.shards.values()):
            while shard.waiting and shard.waiting[0].deadline_ms <= now_ms and not shard.unloaded:
                self._go_on(shard, shard.waiting.popleft().then, ErrorCode.REQUEST_TIMED_OUT)

    def close(self) -> None:
        """The broker stops: waiting clients are sent elsewhere."""
        self._closed = True
        for shard in list(self.shards.values()):
            self._unload(shard)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------ decisions
    def effects(self) -> Effects:
        """The beginning of a decision, made now."""
        return Effects(self._clock.monotonic_ms(), self._clock.wall_ms())

    def carry_out(self, shard: Shard[S], effects: Effects) -> None:
        """Append the records of a decision, give its answers, and continue when the records are committed."""
        error = ErrorCode.NONE
        if effects.records:
            error = self._append(shard, effects)
        for reply, response in effects.answers:
            _answer(reply, response)
        if effects.then:
            log = shard.partition.log
            end_offset = log.log_end_offset if effects.records else effects.barrier + 1
            if error != ErrorCode.NONE or (not effects.records and effects.barrier < committed_end(log)):
                self._go_on(shard, effects.then, error, effects)
            elif shard.unloaded:
                self._go_on(shard, effects.then, ErrorCode.NOT_LEADER_OR_FOLLOWER, effects)
            elif not shard.waiting and committed_end(log) >= end_offset:
                self._go_on(shard, effects.then, ErrorCode.NONE, effects)
            else:
                self._wait(shard, end_offset, effects.then)
        elif error != ErrorCode.NONE:
            self._log.warning(
                "records of a coordinator were not kept",
                partition=str(shard.partition.topic_partition),
                error=error.name,
            )
        for job in effects.jobs:
            self._begin_job(shard, job)
        for work in effects.work:
            self._worker.submit(work.call, partial(self._go_on_after_work, shard, work.go_on))
        self.set_timer(shard)

    def _begin_job(self, shard: Shard[S], job: Job) -> None:
        """Take its steps in turn with the work of requests, which causes it."""

        def fail(error: Exception) -> None:
            self._log.error(
                "a coordinator's work failed", partition=str(shard.partition.topic_partition), exc_info=error
            )

        run_in_turns(self._replicas.slices.turns, job.steps, partial(self._go_on_after_job, shard, job.go_on), fail)

    def _go_on_after_work(self, shard: Shard[S], go_on: Callable[[Any, Effects], None], result: Any) -> None:
        if isinstance(result, BaseException):
            self._log.error(
                "a coordinator's work failed", partition=str(shard.partition.topic_partition), exc_info=result
            )
        self._go_on_after_job(shard, partial(go_on, result))

    def _go_on_after_job(self, shard: Shard[S], go_on: Callable[[Effects], None]) -> None:
        if shard.unloaded:
            return
        effects = self.effects()
        go_on(effects)
        self.carry_out(shard, effects)

    def when_committed(self, shard: Shard[S], end_offset: Offset, then: list[Then]) -> None:
        """Continue when the log is committed up to `end_offset` (exclusive): now, if it is."""
        if not shard.waiting and committed_end(shard.partition.log) >= end_offset:
            self._go_on(shard, then, ErrorCode.NONE)
        else:
            self._wait(shard, end_offset, then)

    def _wait(self, shard: Shard[S], end_offset: Offset, then: list[Then]) -> None:
        shard.wait(end_offset, self._clock.monotonic_ms() + shard.state.settings.commit_timeout_ms, then)
        self._ask(shard)

    def note_marker(self, partition: Partition, marker: Marker, offset: Offset) -> None:
        """A marker was appended to a partition whose state is loaded here (see `may_mark`)."""
        shard = self.shards.get(partition.topic_partition.partition)
        if shard is not None and shard.partition is partition and shard.loaded and not shard.unloaded:
            is_commit = marker.control.type is ControlRecordType.COMMIT
            shard.state.note(TransactionEnded(marker.producer_id, is_commit), offset)

    def may_mark(self, partition: Partition) -> bool:
        """Whether a marker may be appended to a partition now: while its log is read it could be missed."""
        shard = self.find(partition.topic_partition.partition)
        return not isinstance(shard, ErrorCode) and shard.partition is partition

    def keep(
        self,
        shard: Shard[S],
        records: list[CoordinatorRecord],
        wall_ms: int,
        producer: tuple[ProducerId, ProducerEpoch] | None = None,
    ) -> Offset | None:
        """Append the records of a decision that `find` has found the shard for in this turn.

        Returns the offset of the first. They are committed then, and what follows can be said at once. None, and
        nothing was changed, where they may have to wait, for other replicas or those before them, or are refused: the
        decision is one for `carry_out`.
        """
        partition = shard.partition
        if partition.leadership is not None or shard.waiting or shard.unloaded:  # As `commits_at_once`, without a call.
            return None
        batch = make_batch(records, wall_ms, producer)
        if batch.size_bytes > partition.log.config.max_message_bytes:
            return None
        return self._replicas.append_committed(partition, batch, wall_ms)

    def _append(self, shard: Shard[S], effects: Effects) -> ErrorCode:
        """Append all records, or none.

        After a failure in between the state is read again, because the log has a part of them then.
        """
        if shard.unloaded or not shard.leads:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        producer, wall_ms = effects.producer, effects.wall_ms
        offset = self.keep(shard, effects.records, wall_ms, producer)
        if offset is None:
            offset = shard.partition.log.log_end_offset
            error = self._append_one_by_one(shard, effects)
            if error != ErrorCode.NONE:
                return error
        for change in effects.changes:
            shard.state.note(change if producer is None else InTransaction(producer[0], change), offset)
            offset += len(change.values) if type(change) is OffsetCommits else 1
        return ErrorCode.NONE

    def _append_one_by_one(self, shard: Shard[S], effects: Effects) -> ErrorCode:
        partition = shard.partition
        if not partition.has_enough_in_sync:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        batches = make_batches(
            effects.records, effects.wall_ms, effects.producer, partition.log.config.max_message_bytes
        )
        if not batches:
            return ErrorCode.MESSAGE_TOO_LARGE
        for batch in batches:
            appended = self._replicas.append(partition, batch, effects.wall_ms)
            if isinstance(appended, ErrorCode):
                if batch is not batches[0]:
                    self._unload(shard)
                return appended
        return ErrorCode.NONE

    def _go_on(self, shard: Shard[S], then: list[Then], error: ErrorCode, before: Effects | None = None) -> None:
        """Carry out what follows; at the time of what it follows from, where that was made in this very turn."""
        effects: Effects | None = None
        for go_on in then:
            if type(go_on) is Promise:
                _answer(go_on.reply, go_on.outcome(error))
                continue
            if effects is None:
                effects = self.effects() if before is None else Effects(before.now_ms, before.wall_ms)
            go_on(error, effects)
        if effects is not None:
            self.carry_out(shard, effects)

    def _ask(self, shard: Shard[S]) -> None:
        """Have one question out to the partition: when the first waiting one may continue."""
        if not shard.is_asking and shard.waiting:
            shard.is_asking = True
            self._replicas.when_committed(
                shard.partition, shard.waiting[0].end_offset, partial(self._on_committed, shard)
            )

    def _on_committed(self, shard: Shard[S], error: ErrorCode) -> None:
        shard.is_asking = False
        if shard.unloaded:
            return
        if error != ErrorCode.NONE:
            self._unload(shard)
            return
        end_offset = committed_end(shard.partition.log)
        while shard.waiting and shard.waiting[0].end_offset <= end_offset and not shard.unloaded:
            self._go_on(shard, shard.waiting.popleft().then, ErrorCode.NONE)
        if not shard.unloaded:
            self._ask(shard)

    # ------------------------------------------------------------------ time
    def set_timer(self, shard: Shard[S]) -> None:
        """Have one timer for all coordinators, for the earliest deadline or before it: of this one it may be sooner than it was."""
        if shard.state.timers.has_sooner:
            self._set_timer(shard)

    def _set_timer(self, shard: Shard[S]) -> None:
        timers = shard.state.timers
        if self._closed or not shard.loaded:
            return
        timers.has_sooner = False
        next_ms = timers.next_ms
        if next_ms is None or (self._timer is not None and self._timer_ms <= next_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = next_ms
        delay_ms = max(next_ms - self._clock.monotonic_ms(), 0)
        self._timer = self._loop.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        run_in_slices(self._loop, self._clock, self._due(), self._set_timers)

    def _due(self) -> Iterator[None]:
        for shard in list(self.shards.values()):
            while shard.loaded and not shard.unloaded:
                if not shard.leads or self._replicas.find(self.topic, shard.number) is not shard.partition:
                    self._unload(shard)
                    break
                effects = self.effects()
                key = shard.state.timers.take_due(effects.now_ms)
                if key is None:
                    break
                shard.state.on_timer(key, effects)
                self.carry_out(shard, effects)
                yield

    def _set_timers(self) -> None:
        for shard in self.shards.values():
            self._set_timer(shard)

    # ------------------------------------------------------------------ coming and going
    def _on_loaded(self, shard: Shard[S]) -> None:
        shard.loaded = True
        effects = self.effects()
        shard.state.on_loaded(effects)
        self.carry_out(shard, effects)

    def _unload(self, shard: Shard[S]) -> None:
        if shard.unloaded:
            return
        shard.unloaded = True
        if self.shards.get(shard.number) is shard:
            del self.shards[shard.number]
        effects = self.effects()
        shard.state.on_unloaded(effects)
        self.carry_out(shard, effects)
        while shard.waiting:
            self._go_on(shard, shard.waiting.popleft().then, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _answer(reply: Pending[Any], response: Any) -> None:
    """Give an answer, unless its connection was closed for a fault meanwhile."""
    if not reply.done:
        reply.complete(response)
