"""The partitions that this broker hosts: finds them, carries out what their decisions ask for, and wakes who waits.

Metadata changes come in as images. What they ask for on disk (a thousand new logs, say) is done in slices, so that no client
waits for it; `settled` tells when all of it is done. The paths of requests are plain functions: nothing can happen between a check
and the write that relies on it, except where a delete waits for the disk, after which everything is checked again.

Sources: KIP-107; Kafka's `ReplicaManager`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from lowtide.broker.partitions.delayed.commit import CommitWait
from lowtide.broker.partitions.delayed.queue import DelayedQueue, DelayedRequest
from lowtide.broker.partitions.fence import Fence
from lowtide.broker.partitions.followed_partitions import FollowedPartitions
from lowtide.broker.partitions.hosted_logs import HostedLogs
from lowtide.broker.partitions.leader_partitions import LedPartitions
from lowtide.broker.partitions.replication_throttle import ReplicationThrottle
from lowtide.broker.slices import RequestSlices, SlicedWork
from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.records import NO_LEADER
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from lowtide.replication.follower_state import UNKNOWN_BROKER_EPOCH
from lowtide.replication.leadership import may_be_registered
from lowtide.replication.partition import DEFAULT_LAG_TIME_MAX_MS, Partition, PartitionChange
from lowtide.runtime.clock import Clock
from lowtide.storage.directory.log_manager import LogManager
from lowtide.storage.directory.log_starts import LogStartIncrement
from lowtide.storage.errors import DamagedSegmentError, StorageError
from lowtide.storage.log.log import AppendedBatch, Log, LogConfig
from lowtide.storage.log.producer_state import DEFAULT_EXPIRATION_MS
from lowtide.storage.log.validator import ValidatedBatch

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
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        log: Any,
        log_config: Callable[[TopicImage], LogConfig],
        maximum_waiting_per_partition: int,
        lag_time_max_ms: int = DEFAULT_LAG_TIME_MAX_MS,
        on_partition_made: Callable[[], None] = lambda: None,
    ) -> None:
        """`log_config` gives the effective configuration of a topic's logs; `on_partition_made` is called with each new partition."""
        self.broker_id = broker_id
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.hosted_logs = HostedLogs(log_manager, log, on_free=self._on_names_free, has_to_go=self._has_to_go)
        self.producer_id_expiration_ms = DEFAULT_EXPIRATION_MS
        """How long a partition remembers a silent producer; partitions take a new value over with the next image that names them."""
        self.image: MetadataImage | None = None
        self.reports_log_starts = False
        """Whether all brokers report how far deletes have reached them: else none is acknowledged (KIP-107).

        Not even that of the only replica: one that is added may come without it.
        """
        self.own_epoch: Callable[[], BrokerEpoch] | None = None
        """Our registration, 0 for none; None where brokers don't register. What was won under another one is not led (rule DR8)."""
        self.is_fenced: Callable[[], bool] | None = None
        """Whether this broker must not act as a leader now; None for one that always may."""
        self._fence: Fence | None = None
        self.followed = FollowedPartitions()
        self.leader_throttle: ReplicationThrottle | None = None
        """Slows down what is served to followers, where a topic wants that."""

        def queue() -> DelayedQueue:
            return DelayedQueue(clock, loop, maximum_per_key=maximum_waiting_per_partition, on_bug=self._on_bug)

        self.fetches = queue()
        """Consumers' fetches, by high watermark."""
        self.follower_fetches = queue()
        """Followers' fetches, by log end."""
        self.session_fetches = queue()
        """Fetches of sessions, which see changes through the session."""
        self.flushes = queue()
        """Produce requests that wait for our disk, by recovery point."""
        self.commits = queue()
        """Those that wait for followers, by high watermark."""
        self.log_starts = queue()
        """Deletes that wait for our disk, by log start."""
        self.deletes = queue()
        """Deletes that wait for followers, by low watermark."""
        self.slices = RequestSlices(loop, clock, log)
        """For requests of very many partitions."""
        self.led = LedPartitions(self, clock, loop, lag_time_max_ms=lag_time_max_ms)
        self.log_manager = self._log_manager = log_manager
        log_manager.on_log_flushed = self._on_log_flushed
        self._clock = clock
        self._loop = loop
        self._log = log
        self._log_config = log_config
        self._on_partition_made = on_partition_made
        self._configured: tuple[TopicImage | None, LogConfig] = (None, LogConfig())
        self._work = SlicedWork(loop, clock, self._on_worked)
        self._settled: list[asyncio.Future[None]] = []
        self._quiet_until_ms = 0

    # ------------------------------------------------------------------ finding a partition
    def find(self, topic: str, partition: int) -> Partition | ErrorCode:
        """The partition, online here, or why not.

        Errors: KAFKA_STORAGE_ERROR (its directory is offline), NOT_LEADER_OR_FOLLOWER (hosted elsewhere, or not here yet, or this broker
        is fenced), UNKNOWN_TOPIC_OR_PARTITION.
        """
        found = self.partitions.get((topic, partition))
        if found is not None:
            fence = self._fence
            is_down = fence is not None and fence.session.broker_epoch == fence.epoch and self._clock.monotonic_ms() < fence.down_until_ms
            if not is_down and self.is_fenced is not None and self.is_fenced():
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            return found if not found.log.offline else ErrorCode.KAFKA_STORAGE_ERROR
        if (topic, partition) in self.hosted_logs.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.image.topics.get(topic) if self.image is not None else None
        if known is None or not 0 <= partition < len(known.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def fence_with(self, is_fenced: Callable[[], bool], fence: Fence | None = None) -> None:
        """From now on ask `is_fenced` before anything is answered, but while `fence` shows by itself that it is down."""
        self.is_fenced, self._fence = is_fenced, fence

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
            self._log_manager.fail_directory_of(log, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        if partition.leadership is not None:
            self.led.on_appended(partition)
            return appended
        if isinstance(appended, AppendedBatch) and not appended.duplicate:
            log.advance_high_watermark(log.log_end_offset)  # The only replica has committed all that it has.
        if partition.watchers:
            partition.tell(PartitionChange.HIGH_WATERMARK)
        if partition.topic_partition in self.fetches.watched:
            self.fetches.advance(partition.topic_partition, partition.log.high_watermark)
        return appended

    def low_watermark(self, partition: Partition) -> Offset:
        """How far deletes have reached everybody who must have them."""
        if partition.leadership is None or self.image is None:
            return partition.log.log_start_offset
        return partition.leadership.low_watermark(self.image, self._clock.monotonic_ms())

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
        self.fetches.advance(partition.topic_partition, partition.log.high_watermark)

    def flush(self, partition: Partition) -> None:
        """Begin to make a partition's log durable; `flushes` gets the outcome."""
        self._log_manager.flush(partition.log)

    def on_read_failed(self, partition: Partition, error: StorageError) -> None:
        """A log could not be read: a damaged segment hurts its partition only, a failing disk its directory, a lack of descriptors none."""
        if error.is_passing:
            now_ms = self._clock.monotonic_ms()
            if now_ms < self._quiet_until_ms:
                return
            self._quiet_until_ms = now_ms + _PASSING_LOGGED_MS
        self._log.error("log could not be read", partition=str(partition.topic_partition), error=str(error))
        if not isinstance(error, DamagedSegmentError):
            self._log_manager.fail_directory_of(partition.log, error)

    # ------------------------------------------------------------------ log starts
    def request_log_starts(self, increments: Sequence[LogStartIncrement], then: Callable[[], None] = lambda: None) -> None:
        """Raise log start offsets, each at or below its high watermark: durable first, then visible, then who waits is woken.

        One append to each directory's journal, however many partitions. A failed one takes its directory offline, which wakes them too.
        `then` is called when all are durable, or have failed; never from within this call.
        """
        self._log_manager.log_starts.request_log_starts(increments, partial(self._on_log_starts_durable, increments, then))

    def _on_log_starts_durable(self, increments: Sequence[LogStartIncrement], then: Callable[[], None], _error: OSError | None) -> None:
        """Log starts are visible; perhaps some that were received as a follower of a leader that has ended meanwhile."""
        for log, _ in increments:
            key = log.topic_partition
            partition = self.partitions.get(key)
            if partition is not None and partition.log is log:
                partition.tell(PartitionChange.LOG_START)
                self.follower_fetches.release(key)
                self.log_starts.advance(key, log.log_start_offset)
        then()

    # ------------------------------------------------------------------ metadata
    def on_image(
        self,
        image: MetadataImage,
        changed: Iterable[TopicImage],
        deleted: Iterable[TopicImage],
        brokers: Iterable[BrokerId] = (),
        *,
        new_defaults: bool = False,
    ) -> None:
        """Follow a change of the metadata: `changed` topics are new or different, `deleted` ones are gone; `brokers` came, went or changed.

        To be called for every image, also where nothing concerns a topic: what followers report is compared with the latest. Of a topic
        that is different only the partitions that are; all of them with `new_defaults`, or when it is the very one of the image before.
        """
        self.hosted_logs.tell_failed()
        before, self.image = self.image, image
        reported, self.reports_log_starts = self.reports_log_starts, image.log_start_reporting
        if before is not None and reported != self.reports_log_starts:
            for key in list(self.deletes.watched):  # From now on they can be acknowledged.
                self.deletes.release(key)
        self._configured = (None, LogConfig())  # What topics follow from may have changed, though they haven't.
        gone = {
            TopicPartition(topic.name, index): topic.topic_id
            for topic in deleted
            for index in range(len(topic.partitions))
            if (topic.name, index) in self.partitions or (topic.name, index) in self.hosted_logs.offline
        }
        for topic in changed:
            known = () if new_defaults or before is None else before.earlier_partitions(topic)
            for index, state in enumerate(topic.partitions):
                if index < len(known) and known[index] is state:
                    continue
                if self.broker_id in state.replicas:
                    self._work.add(partial(self._host, topic, index, state))
                elif (topic.name, index) in self.partitions or (topic.name, index) in self.hosted_logs.offline:
                    gone[TopicPartition(topic.name, index)] = topic.topic_id  # Its reassignment is through.
        if gone:
            self.remove(gone)
        for broker_id in (*brokers, *self.led.take_settled(image.revision)):
            self._work.add(partial(self._follow_broker, broker_id))
        self._work.begin()

    def on_registration(self) -> None:
        """We have registered, or the registration is lost: what we lead is another matter now."""
        if self.image is not None:
            self.on_image(self.image, self.image.topics.values(), [])

    @property
    def _is_settled(self) -> bool:
        return not self._work.waits and not self.hosted_logs.leaving

    async def settled(self) -> None:
        """Wait until all that was asked for is done on disk."""
        if not self._is_settled:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._settled.append(waiter)
            await waiter

    def tick(self) -> None:
        """Try again to make logs for which there was no room. On the order of once a second."""
        self._host_again(*self.hosted_logs.take_without_room())

    def on_directory_failed(self, logs: Iterable[Log]) -> None:
        """A log directory went offline: operations that wait for its partitions end."""
        logs = list(logs)
        self.hosted_logs.add_offline(log.topic_partition for log in logs if log.topic_partition in self.partitions)
        for log in logs:
            self._release(log.topic_partition)

    def on_fenced(self) -> None:
        """This broker must not act any more: operations that wait end."""
        for topic, partition in self.partitions:
            self._release(TopicPartition(topic, partition))

    def close(self) -> None:
        """Answer all that waits."""
        self.led.close()
        for queue in self._queues():
            queue.close()

    def leave(self) -> None:
        """Serve no partition any more: the logs are being closed, and what a worker brings from now on finds none to append to."""
        self.partitions.clear()

    def _host(self, topic: TopicImage, index: int, state: PartitionImage) -> None:
        """Have the partition here as the metadata say."""
        assert self.image is not None
        current = self.image.topics.get(topic.name)
        if current is None or current.topic_id != topic.topic_id or self.broker_id not in current.partitions[index].replicas:
            return
        config = self._config_of(topic)
        key = TopicPartition(topic.name, index)
        partition = self.partitions.get(key)
        if partition is None:
            partition = self._open(key, topic, config)
            if partition is None:
                return
        partition.configure(config)
        partition.log.producer_state.expiration_ms = self.producer_id_expiration_ms
        if state.leader == self.broker_id and not self._leads_by_this_registration(state):
            state = msgspec.structs.replace(state, leader=NO_LEADER)
        changed = partition.become(state, self.image, self._clock.monotonic_ms())
        if changed:
            self.followed.on_become(partition, self.image)
            self._release(key)
        self.led.on_become(partition, changed=changed)

    def _leads_by_this_registration(self, state: PartitionImage) -> bool:
        return self.own_epoch is None or (self.broker_id, self.own_epoch()) in zip(state.isr, state.isr_epochs, strict=True)

    def _follow_broker(self, broker_id: BrokerId) -> None:
        """A broker came, went or changed: the partitions that it follows here, or that it leads, are concerned."""
        self._work.extend(partial(self.led.on_broker_changed, partition, broker_id) for partition in self.led.of_follower(broker_id))
        self._work.extend(partial(self._reassign, partition) for partition in self.followed.of_leader(broker_id))

    def _reassign(self, partition: Partition) -> None:
        """The leader's address may be another."""
        if self.partitions.get(partition.topic_partition) is partition and self.image is not None:
            self.followed.on_leader_changed(partition, self.image)

    def _config_of(self, topic: TopicImage) -> LogConfig:
        """The configuration of a topic's logs, which is built once for all of its partitions that are worked on in turn."""
        if self._configured[0] is not topic:
            self._configured = (topic, self._log_config(topic))
        return self._configured[1]

    def _open(self, key: TopicPartition, topic: TopicImage, config: LogConfig) -> Partition | None:
        """The partition over its log, which is created where there is none; None when its directory cannot be written."""
        log = self.hosted_logs.open(key, topic.topic_id, config)
        if log is None:
            return None
        partition = Partition(
            topic_partition=key,
            topic_id=topic.topic_id,
            local_broker_id=self.broker_id,
            log=log,
            lag_time_max_ms=self.led.lag_time_max_ms,
        )
        self.partitions[key] = partition
        self._on_partition_made()
        return partition

    def remove(self, gone: Mapping[TopicPartition, TopicId]) -> None:
        """Stop partitions that aren't this broker's any more, and let their logs go."""
        self.hosted_logs.forget_offline(gone)
        for key in gone:
            self._let_go(key)
        self.hosted_logs.remove(gone)

    def _has_to_go(self, key: TopicPartition, topic_id: TopicId, latest_epoch: LeaderEpoch) -> bool:
        """Whether the metadata hold that a log is to be removed: its topic was deleted, or its partition is elsewhere by now."""
        assert self.image is not None
        topic = self.image.topic_by_id(topic_id)
        if topic is None or key.partition >= len(topic.partitions):
            return topic_id in self.image.deleted_topics
        state = topic.partitions[key.partition]
        return self.broker_id not in state.replicas and latest_epoch <= state.leader_epoch

    def _let_go(self, key: TopicPartition) -> None:
        """The partition isn't here any more."""
        partition = self.partitions.pop(key, None)
        self.led.forget(key)
        self.followed.forget(key)
        if partition is not None:
            partition.tell(PartitionChange.ROLE)
        self._release(key)

    def _queues(self) -> tuple[DelayedQueue, ...]:
        return (
            self.fetches,
            self.follower_fetches,
            self.session_fetches,
            self.flushes,
            self.commits,
            self.log_starts,
            self.deletes,
        )

    def _release(self, key: TopicPartition) -> None:
        """Something happened to a partition that operations waiting for it must see."""
        partition = self.partitions.get(key)
        if partition is not None:
            partition.tell(PartitionChange.ROLE)
        for queue in self._queues():
            queue.release(key)

    def _on_bug(self, request: DelayedRequest, error: Exception) -> None:
        self._log.error("request failed", request=type(request).__name__, exc_info=error)

    def _on_log_flushed(self, log: Log) -> None:
        self.flushes.advance(log.topic_partition, log.recovery_point)

    def _on_names_free(self, names: Iterable[str]) -> None:
        self._host_again(*names)
        self._tell_settled()

    def _host_again(self, *names: str) -> None:
        """Topics whose names were taken by logs on their way out may have been created again since."""
        if self.image is not None:
            self.on_image(self.image, [self.image.topics[name] for name in names if name in self.image.topics], [])

    def _on_worked(self) -> None:
        self.hosted_logs.tell_failed()
        self._tell_settled()

    def _tell_settled(self) -> None:
        if self._is_settled:
            waiters, self._settled = self._settled, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
