"""A ShareFetch that reads records for its member, and waits for them.

It waits until `minimum_bytes` can be read in all its partitions together, one of them ends, or its time is up. Only
partitions that report a change are looked at again, a limited number in one turn.

Guards: records are acquired only for an answer that is sent at once.

Source: KIP-932; Kafka's `DelayedShareFetch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.broker.partitions.share.leader_share_partition import LeaderSharePartition
from lowtide.broker.partitions.share.share_reading import ShareRead, read_for_member, readable_end
from lowtide.broker.partitions.share.share_values import AcquireLimits
from lowtide.broker.pending import DelayedQueue, Pending
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.purgatory import DelayedOperation
from lowtide.storage.errors import StorageError

if TYPE_CHECKING:
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.broker.partitions.share.share_partition import SharePartition
    from lowtide.protocol.types import TopicPartition

VISITS_MAX: Final = 200
"""Partitions looked at in one turn of the loop: some milliseconds."""

READS_MAX: Final = 50
"""Partitions with records in one answer. Others come with the next one."""


class ShareFetchParams(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a ShareFetch."""

    member_id: str
    records_max: int
    batch_size: int
    is_strict: bool
    minimum_bytes: int
    maximum_bytes: int
    may_wait: bool
    deadline_ms: int
    """The end of its wait, on the monotonic clock."""


FetchedShare = tuple[LeaderSharePartition, ShareRead | ErrorCode]


class ShareFetch(DelayedOperation):
    """A member's fetch from partitions that are led here. `pending` gets the records, partition by partition."""

    __slots__ = ("_changed", "_queue", "_ready", "_replicas", "_targets", "_wanted", "pending")

    def __init__(
        self,
        targets: Sequence[LeaderSharePartition],
        wanted: ShareFetchParams,
        replicas: ReplicaManager,
        queue: DelayedQueue,
    ) -> None:
        """Records of the first of `targets` come first."""
        super().__init__(wanted.deadline_ms)
        self._targets = targets
        self._wanted = wanted
        self._replicas = replicas
        self._queue = queue
        self._changed: dict[LeaderSharePartition, None] = dict.fromkeys(targets)
        self._ready: dict[LeaderSharePartition, int] = {}
        """The bytes that can be read, for partitions that have any."""
        self.pending: Pending[list[FetchedShare]] = Pending()

    def start(self) -> Pending[list[FetchedShare]]:
        """Answers, or begins to wait. A fetch that must not wait is answered with what there is."""
        for share in self._targets:
            share.watch(self)
        self.pending.on_abandoned = self._forget
        if not self.try_complete() and (not self._wanted.may_wait or not self._queue.watch(self)):
            self.on_complete()
        return self.pending

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """Returns nothing: the partitions call `look`."""
        return ()

    def look(self, share: LeaderSharePartition) -> None:
        self._changed[share] = None
        self._queue.wake(self)

    # ------------------------------------------------------------------ trying
    def try_complete(self) -> bool:
        """Answers if a partition has ended, or if enough can be read and some of it can be acquired."""
        has_ended = self._visit()
        if not has_ended and not (self._ready and sum(self._ready.values()) >= self._wanted.minimum_bytes):
            self._visit_on()
            return False
        found = self._acquire()
        if not found:
            self._visit_on()
            return False
        self._answer(found)
        return True

    def on_complete(self) -> None:
        """Answers with what there is."""
        self._visit()
        self._answer(self._acquire())

    def fail(self) -> None:
        self._leave()
        self.pending.fail()

    def _visit(self) -> bool:
        """Looks at partitions that have changed. Returns whether one has ended."""
        has_ended = False
        for share in list(self._changed)[:VISITS_MAX]:
            del self._changed[share]
            self._ready.pop(share, None)
            if share.has_ended:
                has_ended = True
            elif share.state is not None and (size := self._bytes_of(share, share.state)):
                self._ready[share] = size
        return has_ended

    def _visit_on(self) -> None:
        """Looks at the remaining partitions in another turn of the loop."""
        if self._changed:
            self._replicas.turns.call_later(0, self._wake)

    def _wake(self) -> None:
        if not self.pending.done:
            self._queue.wake(self)

    def _bytes_of(self, share: LeaderSharePartition, state: SharePartition) -> int:
        """Returns about how many bytes a member could get, up to `minimum_bytes`; at least 1 if there are records."""
        log = share.partition.log
        offset = max(state.next_fetch_offset, log.log_start_offset)
        end_offset = readable_end(log, committed=share.rules.reads_committed)
        if offset >= end_offset or not state.may_acquire:
            return 0
        if self._wanted.minimum_bytes <= 1:
            return 1
        try:
            return max(log.bytes_between(offset, end_offset, self._wanted.minimum_bytes), 1)
        except StorageError:
            return self._wanted.minimum_bytes  # The read will report the error.

    def _acquire(self) -> list[FetchedShare]:
        """Reads and acquires records, partition by partition.

        Partitions that have ended are returned with their errors.
        """
        found: list[FetchedShare] = [(share, share.error) for share in self._targets if share.has_ended]
        left, bytes_left, is_joined = self._wanted.records_max, self._wanted.maximum_bytes, False
        ready = [share for share in self._targets if share in self._ready and not share.has_ended][:READS_MAX]
        for index, share in enumerate(ready):
            del self._ready[share]
            if left <= 0 or bytes_left <= 0:
                self._changed[share] = None
                continue
            size = AcquireLimits(left, self._wanted.batch_size, self._wanted.is_strict, is_joined)
            read = self._read(share, size, max(bytes_left // (len(ready) - index), 1))
            if isinstance(read, ErrorCode):
                found.append((share, read))
            elif read.acquired:
                found.append((share, read))
                is_joined = True
                left = 0 if read.is_apart else left - read.count
                bytes_left -= 0 if read.records is None else len(read.records)
            elif read.is_unfinished:
                self._changed[share] = None
        return found

    def _read(self, share: LeaderSharePartition, size: AcquireLimits, max_bytes: int) -> ShareRead | ErrorCode:
        wanted, partition, committed = self._wanted, share.partition, share.rules.reads_committed
        share.check()
        if share.has_ended:
            return share.error

        def visit(state: SharePartition, now_ms: int) -> ShareRead:
            return read_for_member(state, partition, wanted.member_id, size, max_bytes, now_ms, committed=committed)

        partition.traffic.fetch_requests += 1
        try:
            return share.read(visit)
        except StorageError as error:
            self._replicas.on_read_failed(partition, error)
            partition.traffic.failed_fetch_requests += 1
            return ErrorCode.KAFKA_STORAGE_ERROR

    # ------------------------------------------------------------------ ending
    def _answer(self, found: list[FetchedShare]) -> None:
        self._leave()
        for share, read in found:
            if isinstance(read, ShareRead) and read.records is not None:
                share.partition.traffic.bytes_out += len(read.records)
        self.pending.complete(found)

    def _forget(self) -> None:
        self.pending.on_abandoned = None  # Breaks a reference cycle.
        self._leave()
        self._queue.remove(self)

    def _leave(self) -> None:
        for share in self._targets:
            share.unwatch(self)
