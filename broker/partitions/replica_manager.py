"""The partitions that this broker hosts: finds them, appends, raises log starts, and wakes the requests that wait.

Requests run in plain functions, so nothing happens between a check and the write that relies on it. A delete waits for
the disk and checks everything again. Metadata decide which partitions are here and what they do
(`assigned_partitions`). `leader_partitions` has the partitions that this broker leads.

Sources: KIP-107; Kafka's `ReplicaManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lowtide.broker.partitions.commit_waits import CommitWait
from lowtide.broker.turns import Turns
from lowtide.metadata.records import NO_LEADER
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import UNKNOWN_BROKER_EPOCH, BrokerEpoch, BrokerId, LeaderEpoch, Offset
from lowtide.replication.leadership import may_be_registered
from lowtide.replication.partition import Partition, PartitionChange
from lowtide.replication.topic_traffic import TrafficTable
from lowtide.storage.directory.log_starts import LogStartIncrement
from lowtide.storage.errors import DamagedSegmentError, StorageError
from lowtide.storage.log.log import AppendedBatch
from lowtide.storage.log.producers.verifications import EarlyRefusals

if TYPE_CHECKING:
    import asyncio

    from lowtide.broker.partitions.fence import Fence
    from lowtide.broker.partitions.hosted_logs import OfflinePartitions
    from lowtide.broker.partitions.leader_partitions import LedPartitions
    from lowtide.broker.partitions.replication_throttle import ReplicationThrottle
    from lowtide.broker.partitions.waiting import Waiting
    from lowtide.metadata.image import MetadataImage
    from lowtide.runtime.clock import Clock
    from lowtide.storage.directory.log_manager import LogManager
    from lowtide.storage.log.validation.validator import ValidatedBatch

_PASSING_LOGGED_MS: Final = 1000
"""The interval of log lines about reads that lacked descriptors or memory."""

_DAY_MS = 86_400_000


class ReplicaManager:
    """The partitions of a broker."""

    def __init__(  # noqa: PLR0913  parts, each by its name
        self,
        *,
        broker_id: BrokerId,
        log_manager: LogManager,
        waiting: Waiting,
        led: LedPartitions,
        offline: OfflinePartitions,
        leader_throttle: ReplicationThrottle,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        log: Any,
        fence: Fence | None = None,
    ) -> None:
        """`leader_throttle` limits the bytes that followers get. Without a fence the broker may always act."""
        self.broker_id = broker_id
        self.partitions: dict[tuple[str, int], Partition] = {}
        """The hosted partitions. `HostedPartitions` changes them."""
        self.image: MetadataImage | None = None
        """The metadata in force. `follow` sets them."""
        self.reports_log_starts = False
        """Whether all brokers report their log starts. Otherwise no delete is acknowledged (KIP-107).

        This includes the only replica of a partition: a broker that does not report may become another one.
        """
        self.is_fenced: Callable[[], bool] | None = None if fence is None else fence.is_up
        """Whether this broker must not act as a leader now; None if it always may."""
        self.log_manager = log_manager
        self.waiting = waiting
        self.led = led
        self.offline = offline
        self.leader_throttle = leader_throttle
        self.traffic = TrafficTable()
        """The traffic of topics with partitions here."""
        self.turns = Turns(loop, clock, log)
        """For long work of requests."""
        self._fence = fence
        self.early_refusals = EarlyRefusals()
        self._fetches = waiting.fetches
        self._clock = clock
        self._log = log
        self._quiet_until_ms = 0

    def find(self, topic: str, partition: int) -> Partition | ErrorCode:
        """Returns the partition if it is online here, else the error.

        Errors: KAFKA_STORAGE_ERROR (its directory is offline), NOT_LEADER_OR_FOLLOWER (hosted elsewhere, or not here
        yet, or this broker is fenced), UNKNOWN_TOPIC_OR_PARTITION.
        """
        found = self.partitions.get((topic, partition))
        if found is not None:
            fence = self._fence
            is_down = (
                fence is not None
                and fence.registration.broker_epoch == fence.epoch
                and self._clock.monotonic_ms() < fence.down_until_ms
            )
            if not is_down and self.is_fenced is not None and self.is_fenced():
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            return found if not found.log.offline else ErrorCode.KAFKA_STORAGE_ERROR
        if (topic, partition) in self.offline.keys:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.image.topics.get(topic) if self.image is not None else None
        if known is None or not 0 <= partition < len(known.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def leader_elsewhere(self, topic: str, partition: int) -> tuple[BrokerId, LeaderEpoch] | None:
        """Returns another broker that leads the partition, and its leader epoch; None if there is none."""
        known = self.image.topics.get(topic) if self.image is not None else None
        if known is None or not 0 <= partition < len(known.partitions):
            return None
        state = known.partitions[partition]
        return None if state.leader in (self.broker_id, NO_LEADER) else (state.leader, state.leader_epoch)

    def is_registered(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Returns whether the metadata have this registration of another broker."""
        broker = self.image.brokers.get(broker_id) if self.image is not None else None
        return broker is not None and broker.epoch == broker_epoch

    def may_be_registered(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Returns whether another broker's registration may be in force. An unknown one may."""
        if self.image is None:
            return False
        return broker_epoch == UNKNOWN_BROKER_EPOCH or may_be_registered(broker_id, broker_epoch, self.image)

    def append(
        self, partition: Partition, batch: ValidatedBatch, now_ms: int, *, is_awaited: bool = True
    ) -> AppendedBatch | ErrorCode:
        """Appends a validated batch as leader, and wakes requests that wait for records. `now_ms` is wall-clock time.

        `is_awaited`: the caller waits for followers. A failed disk takes its directory offline: KAFKA_STORAGE_ERROR.
        """
        log = partition.log
        try:
            appended = log.append_as_leader(batch, leader_epoch=partition.leader_epoch, now_ms=now_ms)
        except StorageError as error:
            self.log_manager.fail_directory_of(log, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        if type(appended) is AppendedBatch and not appended.duplicate:
            partition.traffic.bytes_in += batch.size_bytes
        self._tell_of_append(partition, is_awaited=is_awaited)
        return appended

    def append_together(
        self,
        partition: Partition,
        batches: list[ValidatedBatch],
        size: int,
        deciding: list[ValidatedBatch],
        now_ms: int,
        *,
        is_awaited: bool,
    ) -> tuple[Offset, ...] | None:
        """Appends several batches of `size` bytes together; see `append` and `Log.append_together_as_leader`.

        Returns their base offsets; None if they must be appended one by one.
        """
        log = partition.log
        try:
            base_offsets = log.append_together_as_leader(
                batches, size, deciding, leader_epoch=partition.leader_epoch, now_ms=now_ms
            )
        except StorageError as error:
            self.log_manager.fail_directory_of(log, error)
            return None
        if base_offsets is not None:
            partition.traffic.bytes_in += size
            self._tell_of_append(partition, is_awaited=is_awaited)
        return base_offsets

    def _tell_of_append(self, partition: Partition, *, is_awaited: bool) -> None:
        """Wakes the requests that wait for records."""
        if partition.leadership is not None:
            self.led.on_appended(partition, is_awaited=is_awaited)
            return
        partition.log.advance_high_watermark(partition.log.log_end_offset)  # The only replica has committed all.
        if partition.watchers:
            partition.tell(PartitionChange.HIGH_WATERMARK)
        if partition.topic_partition in self._fetches.watched:
            self._fetches.advance(partition.topic_partition, partition.log.high_watermark)

    def low_watermark(self, partition: Partition) -> Offset:
        """Returns the smallest log start offset of all replicas that must have a delete."""
        assert self.image is not None, "it has partitions"
        return partition.low_watermark(self.image, self._clock.monotonic_ms())

    def when_committed(
        self, partition: Partition, offset: Offset, callback: Callable[[ErrorCode], None], *, timeout_ms: int = _DAY_MS
    ) -> None:
        """Calls `callback` once, when the high watermark reaches `offset` (exclusive) or the leadership ends.

        Calls it within this call if that is so already. The error code is NONE, NOT_LEADER_OR_FOLLOWER,
        KAFKA_STORAGE_ERROR, UNKNOWN_TOPIC_OR_PARTITION, or REQUEST_TIMED_OUT after `timeout_ms` or at a stop.
        """
        log = partition.log
        is_committed = partition.is_leader and not log.flush_is_due and log.high_watermark >= offset
        if is_committed and self.find(*partition.topic_partition) is partition:
            callback(ErrorCode.NONE)
            return
        CommitWait(self, partition, offset, callback, self._clock.monotonic_ms() + timeout_ms).start()

    def on_follower_appended(self, partition: Partition) -> None:
        """Wakes consumers after a fetch from the leader changed the log, its high watermark or its log start."""
        if self.partitions.get(partition.topic_partition) is not partition:
            return  # It left during a wait for the disk. Another one may have its name.
        if partition.watchers:
            partition.tell(PartitionChange.HIGH_WATERMARK)
        self._fetches.advance(partition.topic_partition, partition.log.high_watermark)

    def flush(self, partition: Partition) -> None:
        """Begins to flush a partition's log. The queue `flushes` gets the outcome."""
        self.log_manager.flush(partition.log)

    def on_read_failed(self, partition: Partition, error: StorageError) -> None:
        """Handles a failed read: a damaged segment affects its partition, a failing disk its whole directory."""
        if error.is_passing:
            now_ms = self._clock.monotonic_ms()
            if now_ms < self._quiet_until_ms:
                return
            self._quiet_until_ms = now_ms + _PASSING_LOGGED_MS
        self._log.error("log could not be read", partition=str(partition.topic_partition), error=str(error))
        if not isinstance(error, DamagedSegmentError):
            self.log_manager.fail_directory_of(partition.log, error)

    def request_log_starts(
        self, increments: Sequence[LogStartIncrement], then: Callable[[], None] = lambda: None
    ) -> None:
        """Raises log start offsets, each at or below its high watermark: durable first, then visible.

        Then calls `then`, and wakes the requests that wait for them; never within this call. Each directory's journal
        gets one append, however many partitions. A failed append takes its directory offline, with the same calls.
        """
        self.log_manager.log_starts.request_log_starts(
            increments, partial(self._on_log_starts_durable, increments, then)
        )

    def _on_log_starts_durable(
        self, increments: Sequence[LogStartIncrement], then: Callable[[], None], _error: OSError | None
    ) -> None:
        """Wakes the requests that wait for log starts, which are visible now."""
        try:
            then()
        finally:
            fetches = self.waiting.follower_fetches
            for log, _ in increments:
                key = log.topic_partition
                partition = self.partitions.get(key)
                if partition is not None and partition.topic_id == log.topic_id:  # The log may have moved.
                    if partition.watchers:
                        partition.tell(PartitionChange.LOG_START)
                    if key in fetches.watched:
                        fetches.release(key)
            leaving = [log for log, _ in increments if log.frees_many_bytes]
            if leaving:
                self.log_manager.directories.answers.hold(leaving, partial(self._wake_deletes, increments))
            else:
                self._wake_deletes(increments)

    def _wake_deletes(self, increments: Sequence[LogStartIncrement]) -> None:
        deletes = self.waiting.log_starts
        for log, _ in increments:
            key = log.topic_partition
            if key in deletes.watched:
                partition = self.partitions.get(key)
                if partition is not None and partition.topic_id == log.topic_id:
                    deletes.advance(key, partition.log.log_start_offset)

    def follow(self, image: MetadataImage) -> MetadataImage | None:
        """Puts metadata in force. Returns the previous ones."""
        before, self.image = self.image, image
        self.led.follow(image)
        reported, self.reports_log_starts = self.reports_log_starts, image.log_start_reporting
        if before is not None and reported != self.reports_log_starts:
            for key in list(self.waiting.deletes.watched):  # They can be acknowledged now.
                self.waiting.deletes.release(key)
        return before

    def close(self) -> None:
        """Completes all waits at shutdown."""
        self.led.close()
        self.waiting.close()
