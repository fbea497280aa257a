"""The quick path of DeleteRecords: one partition, to an offset above its log start.

The compiled module reads the request and writes the answer of the usual end, in which the offset is the new log start
everywhere. What is decided is decided in the order of the handler (`broker/handlers/delete_records.py`), which is the
definition; whatever isn't usual is left to it before anything is changed. The journal is asked first and the rest
follows while the disk works. What waits is the plain request, and any end but the usual one is its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowtide.broker.handlers.deletes.delayed_delete import DelayedDeleteRecords
from lowtide.broker.network.routes import QuickPath
from lowtide.broker.observation.deletes import DeleteRequest, DeleteRow
from lowtide.protocol import native
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from lowtide.replication.partition import Partition
from lowtide.replication.topic_names import INTERNAL_TOPICS
from lowtide.storage.directory.log_starts import LogStartIncrement

if TYPE_CHECKING:
    from lowtide.broker.observation.deletes import RecentDeletes
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.broker.request_context import Client
    from lowtide.protocol.native import SmallDelete as Asked
    from lowtide.runtime.clock import Clock


class SmallDeletes:
    """Small DeleteRecords requests over a broker's partitions. One for each broker; it keeps nothing of a request."""

    def __init__(self, replicas: ReplicaManager, clock: Clock, recent: RecentDeletes) -> None:
        self._replicas = replicas
        self._clock = clock
        self._recent = recent

    def handle(self, asked: Asked, _buffer: Any, client: Client) -> Any:
        """Journal the new log start, and promise an answer; None, without having changed anything, if the request isn't usual after all.

        Where too many wait it is the answer that is returned.
        """
        client_id, topic, index, offset, timeout_ms, leader_only, answer = asked
        partition = self._replicas.find(topic, index)
        if not isinstance(partition, Partition) or topic in INTERNAL_TOPICS:
            return None
        log = partition.log
        if offset <= log.log_start_pending or isinstance(partition.check_delete(offset), ErrorCode):
            return None
        delayed = DelayedSmallDelete(answer)
        old_log_start_offset = log.log_start_offset
        self._replicas.request_log_starts([LogStartIncrement(log, offset)], delayed.on_durable)
        row = DeleteRow(
            key=TopicPartition(topic, index),
            partition=partition,
            leader_epoch=partition.leader_epoch,
            offset=offset,
            old_log_start_offset=old_log_start_offset,
        )
        request = DeleteRequest(
            rows=[row],
            leader_only=leader_only,
            timeout_ms=max(timeout_ms, 0),
            asked_ms=self._clock.monotonic_ms(),
            principal=client.principal,
            client_address=client.client_address,
            client_id=client_id,
        )
        return delayed.begin(self._replicas, self._clock, request, self._recent)


class DelayedSmallDelete(DelayedDeleteRecords):
    """One that waits. It begins to when the journal was asked already, whose answer never comes before."""

    __slots__ = ("_answer",)

    def __init__(self, answer: bytes) -> None:
        """`answer` is the frame for a row whose offset is the log start everywhere."""
        self._answer = answer

    def begin(self, replicas: ReplicaManager, clock: Clock, asked: DeleteRequest, recent: RecentDeletes) -> Any:
        """Wait. Returns the promise of an answer, or the answer if too many wait."""
        super().__init__(replicas, clock, asked, recent)
        if not self._watch():
            return self._end()
        self._pending.on_abandoned = self._forget
        return self._pending

    def on_durable(self) -> None:
        """The journal has answered: look at once. What has failed, or waits for its room, is woken as any delete is."""
        row = self._rows[0]
        log = None if row.partition is None else row.partition.log
        if (
            self.watch_bucket >= 0
            and log is not None
            and log.log_start_offset >= row.offset
            and not log.frees_many_bytes
        ):
            self._queue.test_now(self)

    def _response(self) -> Any:
        row = self._rows[0]
        is_usual = (
            row.done and row.error_code == ErrorCode.NONE and row.low_watermark == row.log_start_offset == row.offset
        )
        return self._answer if is_usual else super()._response()


def small_delete(replicas: ReplicaManager, clock: Clock, recent: RecentDeletes) -> QuickPath | None:
    """The quick path over a broker's partitions; None without the compiled module."""
    compiled = native.compiled
    return None if compiled is None else QuickPath(compiled.read_delete, SmallDeletes(replicas, clock, recent).handle)
