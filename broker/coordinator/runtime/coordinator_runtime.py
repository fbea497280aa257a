"""Carries out decisions of coordinators: appends their records, and sends answers when these are committed.

A coordinator's state is that of its partition's log. A broker that becomes the leader of the partition reads the log
(`shard_loader`) and refuses requests meanwhile (COORDINATOR_LOAD_IN_PROGRESS); a broker that is no longer the leader
drops the state (NOT_COORDINATOR). Reading the state and appending what follows from it happen in one turn of the event
loop.

Guards: no answer depends on a record that could be lost with this broker alone. Nothing is appended, and no timer acts,
in another leadership than the one whose log the state was read from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic

from lowtide.broker.coordinator.runtime.effects import Effects, Job, Promise, Then
from lowtide.broker.coordinator.runtime.in_transaction import EndMarker, InTransaction
from lowtide.broker.coordinator.runtime.shard import CoordinatedTopic, S, Shard, make_batches
from lowtide.broker.coordinator.runtime.shard_loader import ShardLoader
from lowtide.broker.partitions.commit_waits import committed_end
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import Pending
from lowtide.broker.turns import run_in_slices
from lowtide.protocol.control_records import ControlRecordType
from lowtide.protocol.errors import NONE, ErrorCode
from lowtide.protocol.group_records import OffsetCommits
from lowtide.protocol.types import Offset
from lowtide.replication.partition import Partition
from lowtide.runtime.clock import Clock
from lowtide.runtime.worker import Worker
from lowtide.storage.log.markers import Marker


class CoordinatorRuntime(Generic[S]):
    """The shards of one topic on one broker."""

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
        """Returns the shard of one partition. Errors: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""
        partition = self._replicas.find(self.topic, number)
        shard = self.shards.get(number)
        # As `Shard.leads`, inlined for speed. A partition that `find` returns has an online log.
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
        """Loads shards that this broker leads now, unloads the others, and fails waits that are overdue."""
        for number in range(partition_count):
            self.find(number)
        for number in [number for number in self.shards if number >= partition_count]:
            self._unload(self.shards[number])
        now_ms = self._clock.monotonic_ms()
        for shard in list(self.shards.values()):
            while shard.waiting and shard.waiting[0].deadline_ms <= now_ms and not shard.unloaded:
                self._continue(shard, shard.waiting.popleft().then, ErrorCode.REQUEST_TIMED_OUT)

    def close(self) -> None:
        """Unloads all shards: the broker stops."""
        self._closed = True
        for shard in list(self.shards.values()):
            self._unload(shard)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------ decisions
    def effects(self) -> Effects:
        """Returns empty effects of the current time."""
        return Effects(self._clock.monotonic_ms(), self._clock.wall_ms())

    def carry_out(self, shard: Shard[S], effects: Effects) -> None:
        """Appends the records of a decision, sends its answers, and continues when the records are committed."""
        error = NONE
        if effects.records:
            error = self._append(shard, effects)
        for reply, response in effects.answers:
            _answer(reply, response)
        if effects.then:
            log = shard.partition.log
            end_offset = log.log_end_offset if effects.records else effects.barrier + 1
            if error != NONE or (not effects.records and effects.barrier < committed_end(log)):
                self._continue(shard, effects.then, error, effects)
            elif shard.unloaded:
                self._continue(shard, effects.then, ErrorCode.NOT_LEADER_OR_FOLLOWER, effects)
            elif not shard.waiting and committed_end(log) >= end_offset:
                self._continue(shard, effects.then, NONE, effects)
            else:
                self._wait(shard, end_offset, effects.then)
        elif error != NONE:
            self._log.warning(
                "records of a coordinator were not appended",
                partition=str(shard.partition.topic_partition),
                error=error.name,
            )
        for job in effects.jobs:
            self._begin_job(shard, job)
        for work in effects.work:
            self._worker.submit(work.call, partial(self._after_work, shard, work.on_done))
        if shard.state.timers.has_sooner:
            self._set_timer(shard)

    def _begin_job(self, shard: Shard[S], job: Job) -> None:
        """Takes the steps of a job in turn with the work of requests."""

        def fail(error: Exception) -> None:
            self._log.error(
                "a coordinator's work failed", partition=str(shard.partition.topic_partition), exc_info=error
            )

        self._replicas.turns.run(job.steps, lambda _: self._after_job(shard, job.on_done), fail)

    def _after_work(self, shard: Shard[S], on_done: Callable[[Any, Effects], None], result: Any) -> None:
        if isinstance(result, BaseException):
            self._log.error(
                "a coordinator's work failed", partition=str(shard.partition.topic_partition), exc_info=result
            )
        self._after_job(shard, partial(on_done, result))

    def _after_job(self, shard: Shard[S], on_done: Callable[[Effects], None]) -> None:
        if shard.unloaded:
            return
        effects = self.effects()
        on_done(effects)
        self.carry_out(shard, effects)

    def when_committed(self, shard: Shard[S], end_offset: Offset, then: list[Then]) -> None:
        """Continues when the log is committed up to `end_offset` (exclusive), perhaps at once."""
        if not shard.waiting and committed_end(shard.partition.log) >= end_offset:
            self._continue(shard, then, NONE)
        else:
            self._wait(shard, end_offset, then)

    def _wait(self, shard: Shard[S], end_offset: Offset, then: list[Then]) -> None:
        shard.wait(end_offset, self._clock.monotonic_ms() + shard.state.settings.commit_timeout_ms, then)
        self._await_commit(shard)

    def note_marker(self, partition: Partition, marker: Marker, offset: Offset) -> None:
        """Applies a marker that was appended to a partition (see `may_mark`)."""
        shard = self.shards.get(partition.topic_partition.partition)
        if shard is not None and shard.partition is partition and shard.loaded and not shard.unloaded:
            is_commit = marker.control.type is ControlRecordType.COMMIT
            shard.state.note(EndMarker(marker.producer_id, is_commit), offset)

    def may_mark(self, partition: Partition) -> bool:
        """Returns whether a marker may be appended to a partition now.

        While its log is being read, the marker could be missed.
        """
        shard = self.find(partition.topic_partition.partition)
        return not isinstance(shard, ErrorCode) and shard.partition is partition

    def _append(self, shard: Shard[S], effects: Effects) -> ErrorCode:
        """Appends all records, or none.

        After a failure in between, the shard is unloaded because its log has some of them.
        """
        if shard.unloaded or not shard.leads:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        partition, producer, wall_ms = shard.partition, effects.producer, effects.wall_ms
        if partition.leadership is not None and not partition.has_enough_in_sync:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        log = partition.log
        offset = log.log_end_offset
        batches = make_batches(effects.records, wall_ms, producer, log.config.max_message_bytes)
        if not batches:
            return ErrorCode.MESSAGE_TOO_LARGE
        for batch in batches:
            appended = self._replicas.append(partition, batch, wall_ms)
            if type(appended) is ErrorCode:
                if batch is not batches[0]:
                    self._unload(shard)
                return appended
        for change in effects.changes:
            shard.state.note(change if producer is None else InTransaction(producer[0], change), offset)
            offset += len(change.values) if type(change) is OffsetCommits else 1
        return NONE

    def _continue(self, shard: Shard[S], then: list[Then], error: ErrorCode, before: Effects | None = None) -> None:
        """Carries out what follows, with the time of `before` if that is of this turn."""
        effects: Effects | None = None
        for each in then:
            if type(each) is Promise:
                _answer(each.reply, each.outcome(error))
                continue
            if effects is None:
                effects = self.effects() if before is None else Effects(before.now_ms, before.wall_ms)
            each(error, effects)
        if effects is not None:
            self.carry_out(shard, effects)

    def _await_commit(self, shard: Shard[S]) -> None:
        """Waits at the partition for the first waiting offset, unless a wait is under way."""
        if not shard.awaits_commit and shard.waiting:
            shard.awaits_commit = True
            self._replicas.when_committed(
                shard.partition, shard.waiting[0].end_offset, partial(self._on_committed, shard)
            )

    def _on_committed(self, shard: Shard[S], error: ErrorCode) -> None:
        shard.awaits_commit = False
        if shard.unloaded:
            return
        if error != NONE:
            self._unload(shard)
            return
        end_offset = committed_end(shard.partition.log)
        while shard.waiting and shard.waiting[0].end_offset <= end_offset and not shard.unloaded:
            self._continue(shard, shard.waiting.popleft().then, NONE)
        if not shard.unloaded:
            self._await_commit(shard)

    # ------------------------------------------------------------------ time
    def _set_timer(self, shard: Shard[S]) -> None:
        """Moves the runtime's single timer forward if this shard has an earlier deadline."""
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
            self._continue(shard, shard.waiting.popleft().then, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _answer(reply: Pending[Any], response: Any) -> None:
    """Completes a request, unless its connection was closed meanwhile."""
    if not reply.done:
        reply.complete(response)
