"""Carries out what coordinators decide: loads their state, appends their records, and releases answers when these are committed.

A coordinator's state is that of the partition's log. A broker that comes to lead the partition reads the log, pieces of it in the worker,
records a slice at a time, and refuses requests meanwhile (COORDINATOR_LOAD_IN_PROGRESS); one that no longer leads forgets it all
(NOT_COORDINATOR). Everything between a look at the state and the append of what follows from it happens in one turn of the loop.

Guards: no answer tells what could be lost with this broker alone: it waits until its records are committed; nothing is appended, and no
timer acts, in a leadership other than the one whose log the state was read from; a broken or unknown record costs itself only, and is
logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Generic

from lowtide.broker.coordinator.runtime.effects import Effects, Job, Promise, Then
from lowtide.broker.coordinator.runtime.in_transaction import InTransaction, TransactionEnded
from lowtide.broker.coordinator.runtime.shard import S, Shard, make_batches
from lowtide.broker.partitions.delayed.commit import committed_end
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import Pending
from lowtide.broker.slices import run_in_slices, run_in_turns
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.group_records import OffsetCommits, decode_record
from lowtide.protocol.records import BatchHeader, ControlRecordType, Record, iterate_batches, iterate_records, read_control_record
from lowtide.protocol.types import Offset, ProducerId
from lowtide.replication.partition import MAXIMUM_DECOMPRESSED_BYTES, Partition
from lowtide.runtime.clock import Clock
from lowtide.runtime.worker import Worker
from lowtide.storage.errors import StorageError
from lowtide.storage.log.markers import Marker
from lowtide.storage.log.segment_file import FileSlice

LOAD_BYTES_MAX: Final = 1 << 20
"""Read at a time while loading, however large `offsets.load.buffer.size` is; a larger batch is read whole."""

_MANY_RECORDS: Final = 10_000
"""Loading so many is worth a line in the log."""

_TOLD_ONE_BY_ONE: Final = 10
"""Records that can't be used are named in the log, so many of a partition; then they are counted. A log may be full of them."""

_RECORDS_A_STEP: Final = 32
"""Applied between two looks at the clock: some tenths of a millisecond."""


class CoordinatorRuntime(Generic[S]):
    """The coordinators of one topic on one broker."""

    def __init__(  # noqa: PLR0913  parts, each by its name
        self,
        *,
        topic: str,
        replicas: ReplicaManager,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        worker: Worker,
        log: Any,
        make_state: Callable[[], S],
        decode: Callable[[bytes | None, bytes | None], Any] = decode_record,
    ) -> None:
        """`make_state` makes the state of a partition, and `decode` what that understands out of a record, None for an unknown one."""
        self.topic = topic
        self.shards: dict[int, Shard[S]] = {}
        self._replicas = replicas
        self._clock = clock
        self._loop = loop
        self._worker = worker
        self._log = log
        self._make_state = make_state
        self._decode = decode
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._closed = False

    # ------------------------------------------------------------------ whose turn it is
    def find(self, number: int) -> Shard[S] | ErrorCode:
        """The state of one partition. Errors: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""
        partition = self._replicas.find(self.topic, number)
        shard = self.shards.get(number)
        if shard is not None and shard.partition is partition and shard.leads:
            return shard if shard.loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if shard is not None:
            self._unload(shard)
        if isinstance(partition, ErrorCode) or not partition.is_leader or self._closed:
            return ErrorCode.NOT_COORDINATOR
        shard = self.shards[number] = Shard(number, partition, self._make_state())
        self._load(shard, partition.log.log_start_offset, partition.log.log_end_offset)
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
        """Append the records of a decision, give its answers, and go on when the records are committed."""
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
            self._log.warning("records of a coordinator were not kept", partition=str(shard.partition.topic_partition), error=error.name)
        for job in effects.jobs:
            self._begin_job(shard, job)
        for work in effects.work:
            self._worker.submit(work.call, partial(self._go_on_after_work, shard, work.go_on))
        if shard.state.timers.has_sooner:
            self._set_timer(shard)

    def _begin_job(self, shard: Shard[S], job: Job) -> None:
        """Take its steps in turn with the work of requests, which causes it."""

        def fail(error: Exception) -> None:
            self._log.error("a coordinator's work failed", partition=str(shard.partition.topic_partition), exc_info=error)

        run_in_turns(self._replicas.slices.turns, job.steps, partial(self._go_on_after_job, shard, job.go_on), fail)

    def _go_on_after_work(self, shard: Shard[S], go_on: Callable[[Any, Effects], None], result: Any) -> None:
        if isinstance(result, BaseException):
            self._log.error("a coordinator's work failed", partition=str(shard.partition.topic_partition), exc_info=result)
        self._go_on_after_job(shard, partial(go_on, result))

    def _go_on_after_job(self, shard: Shard[S], go_on: Callable[[Effects], None]) -> None:
        if shard.unloaded:
            return
        effects = self.effects()
        go_on(effects)
        self.carry_out(shard, effects)

    def when_committed(self, shard: Shard[S], end_offset: Offset, then: list[Then]) -> None:
        """Go on when the log is committed up to `end_offset` (exclusive): now, if it is."""
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

    def _append(self, shard: Shard[S], effects: Effects) -> ErrorCode:
        """Append all records, or none. After a failure in between the state is read again, because the log has a part of them then."""
        if shard.unloaded or not shard.leads:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        partition, producer = shard.partition, effects.producer
        if not partition.has_enough_in_sync:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        batches = make_batches(effects.records, effects.wall_ms, producer, partition.log.config.max_message_bytes)
        if not batches:
            return ErrorCode.MESSAGE_TOO_LARGE
        offset = partition.log.log_end_offset
        for batch in batches:
            appended = self._replicas.append(partition, batch, effects.wall_ms)
            if isinstance(appended, ErrorCode):
                if batch is not batches[0]:
                    self._unload(shard)
                return appended
        for change in effects.changes:
            shard.state.note(change if producer is None else InTransaction(producer[0], change), offset)
            offset += len(change.values) if type(change) is OffsetCommits else 1
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
        """Have one question out to the partition: when the first that waits may go on."""
        if not shard.is_asking and shard.waiting:
            shard.is_asking = True
            self._replicas.when_committed(shard.partition, shard.waiting[0].end_offset, partial(self._on_committed, shard))

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
    def _set_timer(self, shard: Shard[S]) -> None:
        """Have one timer for all coordinators, for the earliest deadline or before it."""
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

    # ------------------------------------------------------------------ loading
    def _load(self, shard: Shard[S], offset: Offset, end_offset: Offset) -> None:
        """Read on at `offset`, up to `end_offset` (exclusive), which is where the log ended when this broker came to lead it."""
        if shard.unloaded:
            return
        if not shard.leads:
            self._unload(shard)
            return
        if offset >= end_offset:
            self._on_loaded(shard)
            return
        try:
            read = shard.partition.log.read(offset, min(LOAD_BYTES_MAX, shard.state.settings.load_buffer_bytes), end_offset=end_offset)
        except StorageError as error:
            self._replicas.on_read_failed(shard.partition, error)
            self._unload(shard)
            return
        if read.slice is None:
            self._on_loaded(shard)
            return
        self._worker.submit(partial(_read_slice, read.slice), partial(self._on_read, shard, read.slice, offset, end_offset))

    def _on_read(self, shard: Shard[S], read: FileSlice, offset: Offset, end_offset: Offset, content: bytes | BaseException) -> None:
        if isinstance(content, BaseException) or not read.token.valid:
            if not shard.unloaded:
                self._log.error("a coordinator's log could not be read", partition=str(shard.partition.topic_partition), error=str(content))
                self._unload(shard)
            return
        reached = [offset]

        def on_done() -> None:
            if shard.unloaded:
                return
            if reached[0] <= offset:
                self._log.error("a coordinator's log could not be read", partition=str(shard.partition.topic_partition), offset=offset)
                self._unload(shard)
                return
            self._load(shard, reached[0], end_offset)

        run_in_slices(self._loop, self._clock, self._apply(shard, content, reached), on_done)

    def _apply(self, shard: Shard[S], content: bytes, reached: list[Offset]) -> Iterator[None]:
        """Apply the whole batches of what was read from `reached[0]` on, and say there how far they reach."""
        applied = 0
        try:
            for position, header in iterate_batches(content):
                if shard.unloaded:
                    return
                batch = memoryview(content)[position : position + header.size_bytes]
                if header.is_control:
                    if header.base_offset >= reached[0]:
                        self._apply_marker(shard, header, batch)
                else:
                    producer_id = header.producer_id if header.is_transactional else None
                    for record in iterate_records(batch, max_bytes=MAXIMUM_DECOMPRESSED_BYTES):
                        if record.offset >= reached[0]:
                            self._apply_record(shard, record, producer_id)
                            applied += 1
                            if not applied % _RECORDS_A_STEP:
                                yield
                reached[0] = max(reached[0], header.next_offset)
        except ProtocolError as error:
            self._log.error("a coordinator's log is damaged", partition=str(shard.partition.topic_partition), error=str(error))
        shard.records_loaded += applied

    @staticmethod
    def _apply_marker(shard: Shard[S], header: BatchHeader, batch: memoryview) -> None:
        marker = read_control_record(batch, max_bytes=MAXIMUM_DECOMPRESSED_BYTES)
        if marker is not None:
            is_commit = marker.type is ControlRecordType.COMMIT
            shard.state.apply(TransactionEnded(header.producer_id, is_commit), header.base_offset)

    def _apply_record(self, shard: Shard[S], record: Record, producer_id: ProducerId | None) -> None:
        try:
            change = self._decode(record.key, record.value)
            if change is not None:
                shard.state.apply(change if producer_id is None else InTransaction(producer_id, change), record.offset)
                return
            reason = "its type is not known"
        except ProtocolError as error:
            reason = str(error)
        shard.records_left_aside += 1
        if shard.records_left_aside <= _TOLD_ONE_BY_ONE:
            self._log.warning(
                "record of a coordinator is left aside", partition=str(shard.partition.topic_partition), offset=record.offset, reason=reason
            )

    def _on_loaded(self, shard: Shard[S]) -> None:
        shard.loaded = True
        effects = self.effects()
        shard.state.on_loaded(effects)
        if shard.records_left_aside > _TOLD_ONE_BY_ONE:
            self._log.warning(
                "records of a coordinator were left aside",
                partition=str(shard.partition.topic_partition),
                records=shard.records_left_aside,
            )
        if shard.records_loaded >= _MANY_RECORDS:
            self._log.info(
                "coordinator loaded",
                partition=str(shard.partition.topic_partition),
                entries=shard.state.count,
                records=shard.records_loaded,
            )
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


def _read_slice(read: FileSlice) -> bytes:
    return read.file.pread(read.size, read.position)


def _answer(reply: Pending[Any], response: Any) -> None:
    """Give an answer, unless its connection was closed for a fault meanwhile."""
    if not reply.done:
        reply.complete(response)
