"""A ShareFetch that reads what its member may have, and waits for it.

It waits until `minimum_bytes` can be read in all its partitions together, one of them ends, or its time is up.
Partitions tell when there may be something: only those are looked at again. Very many are looked at in portions.

Guards: records are acquired only for an answer that is given at once.

Source: KIP-932; Kafka's `DelayedShareFetch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lowtide.broker.partitions.share.leader_share_partition import LeaderSharePartition
from lowtide.broker.partitions.share.share_reading import ShareRead, read_for_member, readable_end
from lowtide.broker.partitions.share.share_values import Wanted
from lowtide.broker.pending import DelayedQueue, DelayedRequest, Pending
from lowtide.protocol.errors import ErrorCode
from lowtide.storage.errors import StorageError

if TYPE_CHECKING:
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.broker.partitions.share.share_partition import SharePartition
    from lowtide.protocol.types import TopicPartition

VISITS_MAX: Final = 200
"""Partitions that are looked at in one turn of the loop, some milliseconds."""

READS_MAX: Final = 50
"""Partitions that one answer has records of: what is more comes with the next."""


class FetchWanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a ShareFetch asks for."""

    member_id: str
    records_max: int
    batch_size: int
    is_strict: bool
    minimum_bytes: int
    maximum_bytes: int
    may_wait: bool
    deadline_ms: int
    """Until when it may wait, on the monotonic clock."""


Found = tuple[LeaderSharePartition, ShareRead | ErrorCode]


class ShareFetch(DelayedRequest):
    """The fetch of one member from partitions that are led here.

    `pending` gets what was found, partition by partition.
    """

    __slots__ = ("_changed", "_queue", "_ready", "_replicas", "_targets", "_wanted", "pending")

    def __init__(
        self,
        targets: Sequence[LeaderSharePartition],
        wanted: FetchWanted,
        replicas: ReplicaManager,
        queue: DelayedQueue,
    ) -> None:
        """The first of `targets` has its records first."""
        super().__init__()
        self._targets = targets
        self._wanted = wanted
        self._replicas = replicas
        self._queue = queue
        self._changed: dict[LeaderSharePartition, None] = dict.fromkeys(targets)
        self._ready: dict[LeaderSharePartition, int] = {}
        """Bytes that can be read, of partitions that have any."""
        self.pending: Pending[list[Found]] = Pending()

    def start(self) -> Pending[list[Found]]:
        """Answer, or begin to wait.

        One that doesn't want to wait is answered with what there is, as all are at a stop.
        """
        for share in self._targets:
            share.watch(self)
        self.pending.on_abandoned = self._forget
        if not self.try_complete() and (not self._wanted.may_wait or not self._queue.watch(self)):
            self.on_complete()
        return self.pending

    @property
    def deadline_ms(self) -> int:
        """See `DelayedRequest`."""
        return self._wanted.deadline_ms

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """Nothing: the partitions tell it."""
        return ()

    def look(self, share: LeaderSharePartition) -> None:
        """See `Waiter`."""
        self._changed[share] = None
        self._queue.wake(self)

    # ------------------------------------------------------------------ trying
    def try_complete(self) -> bool:
        """Answer where a partition has ended, or enough can be read and some of it be acquired."""
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
        """Answer with what there is now."""
        self._visit()
        self._answer(self._acquire())

    def fail(self) -> None:
        """See `DelayedRequest`."""
        self._leave()
        self.pending.fail()

    def _visit(self) -> bool:
        """See what the partitions have that have changed. Returns whether one has ended, or can't be read."""
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
        """Partitions are left to look at: in another turn of the loop."""
        if self._changed:
            self._replicas.slices.call_later(0, self._wake)

    def _wake(self) -> None:
        if not self.pending.done:
            self._queue.wake(self)

    def _bytes_of(self, share: LeaderSharePartition, state: SharePartition) -> int:
        """About how many bytes a member could have, at least 1 where there are records, and counting no further than is asked for."""
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
            return self._wanted.minimum_bytes  # The read finds the error, and reports it.

    def _acquire(self) -> list[Found]:
        """Read, and acquire, partition by partition; those that have ended come with their errors."""
        found: list[Found] = [(share, share.error) for share in self._targets if share.has_ended]
        left, bytes_left, is_joined = self._wanted.records_max, self._wanted.maximum_bytes, False
        ready = [share for share in self._targets if share in self._ready and not share.has_ended][:READS_MAX]
        for index, share in enumerate(ready):
            del self._ready[share]
            if left <= 0 or bytes_left <= 0:
                self._changed[share] = None
                continue
            size = Wanted(left, self._wanted.batch_size, self._wanted.is_strict, is_joined)
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

    def _read(self, share: LeaderSharePartition, size: Wanted, max_bytes: int) -> ShareRead | ErrorCode:
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
    def _answer(self, found: list[Found]) -> None:
        self._leave()
        for share, read in found:
            if isinstance(read, ShareRead) and read.records is not None:
                share.partition.traffic.bytes_out += len(read.records)
        self.pending.complete(found)

    def _forget(self) -> None:
        self.pending.on_abandoned = None  # Else it and its answer refer to each other.
        self._leave()
        self._queue.remove(self)

    def _leave(self) -> None:
        for share in self._targets:
            share.unwatch(self)


def nothing_found() -> Pending[Any]:
    """The answer of a fetch that asks for nothing."""
    pending: Pending[Any] = Pending()
    pending.complete([])
    return pending
