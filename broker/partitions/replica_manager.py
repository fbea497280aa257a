"""The partitions that this broker hosts, as requests and fetches see them: finds them, appends, deletes, and wakes who waits.

The paths of requests are plain functions: nothing can happen between a check and the write that relies on it, except where a delete waits
for the disk, after which everything is checked again.

Which partitions are here, and what they do, is decided by the metadata (`assigned_partitions`); what follows from leading them is in
`leader_partitions`.

Sources: KIP-107; Kafka's `ReplicaManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lowtide.broker.partitions.commit_waits import CommitWait
from lowtide.broker.slices import RequestSlices
from lowtide.metadata.records import NO_LEADER
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicPartition
from lowtide.replication.follower_state import UNKNOWN_BROKER_EPOCH
from lowtide.replication.leadership import may_be_registered
from lowtide.replication.partition import Partition, PartitionChange
from lowtide.replication.topic_traffic import TrafficTable
from lowtide.storage.directory.log_starts import LogStartIncrement
from lowtide.storage.errors import DamagedSegmentError, StorageError
from lowtide.storage.log.log import AppendedBatch, Log
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
"""How often a lack of descriptors or memory is logged that a read met."""

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
        """`leader_throttle` slows down what is served to followers, where a topic wants that.

        Without a fence the broker may always act.
        """
        self.broker_id = broker_id
        self.partitions: dict[tuple[str, int], Partition] = {}
        """Those that are here; `add` and `take_out` change it."""
        self.image: MetadataImage | None = None
        """The metadata that are acted on; `follow` sets it."""
        self.reports_log_starts = False
        """Whether all brokers report how far deletes have reached them: else none is acknowledged (KIP-107).

        Not even that of the only replica: one that is added may come without it.
        """
        self.is_fenced: Callable[[], bool] | None = None if fence is None else fence.is_up
        """Whether this broker must not act as a leader now; None for one that always may."""
        self.log_manager = log_manager
        self.waiting = waiting
        self.led = led
        self.offline = offline
        self.leader_throttle = leader_throttle
        self.traffic = TrafficTable()
        """What goes in and out of the topics with partitions here."""
        self.slices = RequestSlices(loop, clock, log)
        """For requests of very many partitions."""
        self._fence = fence
        self.early_refusals = EarlyRefusals()
        self._fetches = waiting.fetches
        self._clock = clock
        self._log = log
        self._quiet_until_ms = 0
        log_manager.listen_to_flushes(self._on_log_flushed)
        log_manager.moves.listen(self._on_log_moved)

    # ------------------------------------------------------------------ finding a partition
    def find(self, topic: str, partition: int) -> Partition | ErrorCode:
        """The partition, online here, or why not.

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
        """Another broker that leads a partition, and its leader epoch, as the metadata say; None where there is none."""
        known = self.image.topics.get(topic) if self.image is not None else None
        if known is None or not 0 <= partition < len(known.partitions):
            return None
        state = known.partitions[partition]
        return None if state.leader in (self.broker_id, NO_LEADER) else (state.leader, state.leader_epoch)

    def is_registered(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Whether the image shows this registration of another broker."""
        broker = self.image.brokers.get(broker_id) if self.image is not None else None
        return broker is not None and broker.epoch == broker_epoch

    def may_be_registered(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Whether another broker's registration may be in force; one that isn't given may be."""
        if self.image is None:
            return False
        return broker_epoch == UNKNOWN_BROKER_EPOCH or may_be_registered(broker_id, broker_epoch, self.image)

    # ------------------------------------------------------------------ records
    def append(self, partition: Partition, batch: ValidatedBatch, now_ms: int) -> AppendedBatch | ErrorCode:
        """Append a validated batch as leader; wake who waits for records. `now_ms` is wall-clock time.

        A failed disk takes its directory offline: KAFKA_STORAGE_ERROR.
        """
        log = partition.log
        try:
            appended = log.append_as_leader(batch, leader_epoch=partition.leader_epoch, now_ms=now_ms)
        except StorageError as error:
            self.log_manager.fail_directory_of(log, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        if type(appended) is AppendedBatch and not appended.duplicate:
            partition.traffic.bytes_in += batch.size_bytes
            if partition.leadership is None:
                log.advance_high_watermark(log.log_end_offset)  # The only replica has committed all that it has.
        self._tell_of_append(partition)
        return appended

    def append_committed(self, partition: Partition, batch: ValidatedBatch, now_ms: int) -> Offset | None:
        """Appends a batch that is committed with the append, because there is no other replica and no flush is due.

        Returns its base offset. Returns None and changes nothing if the batch may have to wait or is refused, which
        `append` then decides.
        """
        log = partition.log
        unflushed = log.log_end_offset + batch.last_offset_delta + 1 - log.recovery_point
        if partition.leadership is not None or unflushed >= log.config.flush_messages:
            return None
        base_offsets = self.append_together(partition, [batch], batch.size_bytes, [batch], now_ms)
        return None if base_offsets is None else base_offsets[0]

    def append_together(
        self,
        partition: Partition,
        batches: list[ValidatedBatch],
        size: int,
        deciding: list[ValidatedBatch],
        now_ms: int,
    ) -> tuple[Offset, ...] | None:
        """As `append` for each of the batches, which have `size` bytes together; see `Log.append_together_as_leader`.

        Returns their base offsets; None if they are to be appended one by one.
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
            if partition.leadership is None:
                log.advance_high_watermark(log.log_end_offset)
            self._tell_of_append(partition)
        return base_offsets

    def _tell_of_append(self, partition: Partition) -> None:
        """Wake who waits for records."""
        if partition.leadership is not None:
            self.led.on_appended(partition)
            return
        if partition.watchers:
            partition.tell(PartitionChange.HIGH_WATERMARK)
        if partition.topic_partition in self._fetches.watched:
            self._fetches.advance(partition.topic_partition, partition.log.high_watermark)

    def low_watermark(self, partition: Partition) -> Offset:
        """How far deletes have reached all replicas that must have them."""
        assert self.image is not None, "it has partitions"
        return partition.low_watermark(self.image, self._clock.monotonic_ms())

    def when_committed(
        self, partition: Partition, offset: Offset, callback: Callable[[ErrorCode], None], *, timeout_ms: int = _DAY_MS
    ) -> None:
        """Call `callback`, once, when the high watermark has reached `offset` (an exclusive end) in this leadership, or that has ended.

        At once, from within this call, where that is so already. The error code is NONE, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR,
        UNKNOWN_TOPIC_OR_PARTITION, or REQUEST_TIMED_OUT after `timeout_ms` or at a stop.
        """
        log = partition.log
        is_committed = partition.is_leader and not log.flush_is_due and log.high_watermark >= offset
        if is_committed and self.find(*partition.topic_partition) is partition:
            callback(ErrorCode.NONE)
            return
        CommitWait(self, partition, offset, callback, self._clock.monotonic_ms() + timeout_ms).start()

    def on_follower_appended(self, partition: Partition) -> None:
        """A partition that this broker follows has more records, or another high watermark or log start: consumers may wait for it here."""
        if self.partitions.get(partition.topic_partition) is not partition:
            return  # It has left while the disk was waited for; another one may have its name.
        if partition.watchers:
            partition.tell(PartitionChange.HIGH_WATERMARK)
        self._fetches.advance(partition.topic_partition, partition.log.high_watermark)

    def flush(self, partition: Partition) -> None:
        """Begin to make a partition's log durable; `flushes` gets the outcome."""
        self.log_manager.flush(partition.log)

    def on_read_failed(self, partition: Partition, error: StorageError) -> None:
        """A log could not be read: a damaged segment hurts its partition only, a failing disk its directory, a lack of descriptors none."""
        if error.is_passing:
            now_ms = self._clock.monotonic_ms()
            if now_ms < self._quiet_until_ms:
                return
            self._quiet_until_ms = now_ms + _PASSING_LOGGED_MS
        self._log.error("log could not be read", partition=str(partition.topic_partition), error=str(error))
        if not isinstance(error, DamagedSegmentError):
            self.log_manager.fail_directory_of(partition.log, error)

    # ------------------------------------------------------------------ log starts
    def request_log_starts(
        self, increments: Sequence[LogStartIncrement], then: Callable[[], None] = lambda: None
    ) -> None:
        """Raise log start offsets, each at or below its high watermark: durable first, then visible, then who waits is woken.

        One append to each directory's journal, however many partitions. A failed one takes its directory offline, which wakes them too.
        `then` is called, before the others are woken, when all are durable, or have failed; never from within this call.
        """
        self.log_manager.log_starts.request_log_starts(
            increments, partial(self._on_log_starts_durable, increments, then)
        )

    def _on_log_starts_durable(
        self, increments: Sequence[LogStartIncrement], then: Callable[[], None], _error: OSError | None
    ) -> None:
        """Log starts are visible; perhaps some that were received as a follower of a leader that has ended meanwhile."""
        try:
            then()
        finally:
            for log, _ in increments:
                key = log.topic_partition
                partition = self.partitions.get(key)
                if (
                    partition is not None and partition.topic_id == log.topic_id
                ):  # The log may be in another directory by now.
                    partition.tell(PartitionChange.LOG_START)
                    self.waiting.follower_fetches.release(key)
            leaving = [log for log, _ in increments if log.frees_many_bytes]
            if leaving:
                self.log_manager.directories.answers.hold(leaving, partial(self._wake_deletes, increments))
            else:
                self._wake_deletes(increments)

    def _wake_deletes(self, increments: Sequence[LogStartIncrement]) -> None:
        for log, _ in increments:
            partition = self.partitions.get(log.topic_partition)
            if partition is not None and partition.topic_id == log.topic_id:
                self.waiting.log_starts.advance(log.topic_partition, partition.log.log_start_offset)

    # ------------------------------------------------------------------ what is here
    def follow(self, image: MetadataImage) -> MetadataImage | None:
        """Act on these metadata from now on. Returns those before."""
        before, self.image = self.image, image
        self.led.follow(image)
        reported, self.reports_log_starts = self.reports_log_starts, image.log_start_reporting
        if before is not None and reported != self.reports_log_starts:
            for key in list(self.waiting.deletes.watched):  # From now on they can be acknowledged.
                self.waiting.deletes.release(key)
        return before

    def add(self, partition: Partition) -> None:
        """A partition is here from now on."""
        self.partitions[partition.topic_partition] = partition
        if self.early_refusals:
            producers = partition.log.producer_state
            for topic in (partition.topic_partition.topic, partition.topic_id):
                early = self.early_refusals.take((topic, partition.topic_partition.partition))
                if early is not None:
                    producers.verifications.take(early, producers.producers)

    def take_out(self, key: TopicPartition) -> None:
        """A partition isn't here any more: all who wait for it are answered."""
        partition = self.partitions.pop(key, None)
        if partition is not None:
            partition.count_records()
        if self.image is None or key.topic not in self.image.topics:
            self.traffic.forget(key.topic)
        self.led.forget(key)
        if partition is not None:
            partition.tell(PartitionChange.ROLE)
        self.waiting.release(key)

    def release(self, key: TopicPartition) -> None:
        """Something happened to a partition that operations waiting for it must see."""
        partition = self.partitions.get(key)
        if partition is not None:
            partition.tell(PartitionChange.ROLE)
        self.waiting.release(key)

    def on_directory_failed(self, logs: Iterable[Log]) -> None:
        """A log directory went offline: operations that wait for its partitions end."""
        logs = list(logs)
        self.offline.add(log.topic_partition for log in logs if log.topic_partition in self.partitions)
        for log in logs:
            self.release(log.topic_partition)

    def on_fenced(self) -> None:
        """This broker must not act any more: operations that wait end."""
        for topic, partition in self.partitions:
            self.release(TopicPartition(topic, partition))

    def close(self) -> None:
        """Answer all that waits."""
        self.led.close()
        self.waiting.close()

    def _on_log_moved(self, old: Log, new: Log) -> None:
        """A log is in another directory from now on.

        A delete that the old one's journal is about to have is repeated.
        """
        partition = self.partitions.get(old.topic_partition)
        self._log.info(
            "log has changed its directory",
            partition=str(old.topic_partition),
            path=new.directory,
            before=old.directory,
        )
        if partition is None or partition.log is not old:
            return
        partition.move_to(new)
        if old.log_start_pending > new.log_start_offset:
            self.request_log_starts([LogStartIncrement(new, old.log_start_pending)])
        if new.flush_is_due:
            self.flush(partition)
        self.release(old.topic_partition)

    def _on_log_flushed(self, log: Log) -> None:
        # Of a flush that ends below the log's end fewer records than `flush.messages` may be left: those wait for
        # nothing more.
        self.waiting.flushes.advance(
            log.topic_partition, log.recovery_point if log.flush_is_due else log.log_end_offset
        )
