"""The partitions that this broker hosts: finds them, carries out what their decisions ask for, and wakes who waits.

Metadata changes come in as images. What they ask for on disk (a thousand new logs, say) is done in slices, so that nobody else
waits for it; `settled` tells when all of it is done. The paths of requests are plain functions: nothing can happen between a check
and the write that relies on it, except where a delete waits for the disk, after which everything is checked again.

Sources: KIP-107; Kafka's `ReplicaManager`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from lowtide.broker.delayed.queue import DelayedQueue, DelayedRequest
from lowtide.broker.slices import run_in_slices
from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import BrokerId, Offset, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.runtime.clock import Clock
from lowtide.storage.errors import DamagedSegmentError, StorageError
from lowtide.storage.log import AppendedBatch, Log, LogConfig
from lowtide.storage.log_manager import LogManager
from lowtide.storage.producer_state import DEFAULT_EXPIRATION_MS
from lowtide.storage.validator import ValidatedBatch

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics that DeleteRecords must not touch (Kafka's `Topic.isInternal`)."""


class ReplicaManager:
    """See the module."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        log_manager: LogManager,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        log: Any,
        log_config: Callable[[TopicImage], LogConfig],
        maximum_waiting_per_partition: int,
        on_partition_made: Callable[[], None] = lambda: None,
    ) -> None:
        """`log_config` gives the effective configuration of a topic's logs; `on_partition_made` is told of each partition hosted anew."""
        self.broker_id = broker_id
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.offline: frozenset[TopicPartition] = frozenset()
        """Partitions of this broker that it can't serve: their log directory is offline, or their log could not be made or loaded."""
        self.producer_id_expiration_ms = DEFAULT_EXPIRATION_MS
        """How long a partition remembers a silent producer; partitions take a new value over with the next image that names them."""
        self.image: MetadataImage | None = None
        self.is_fenced: Callable[[], bool] | None = None
        """Whether this broker must not act as a leader now; None for one that always may."""
        self.fetches = DelayedQueue(clock, loop, maximum_per_key=maximum_waiting_per_partition, on_bug=self._on_bug)
        self.flushes = DelayedQueue(clock, loop, maximum_per_key=maximum_waiting_per_partition, on_bug=self._on_bug)
        self.deletes = DelayedQueue(clock, loop, maximum_per_key=maximum_waiting_per_partition, on_bug=self._on_bug)
        self.log_manager = self._log_manager = log_manager
        log_manager.on_log_flushed = self._on_log_flushed
        self._clock = clock
        self._loop = loop
        self._log = log
        self._log_config = log_config
        self._on_partition_made = on_partition_made
        self._configured: tuple[TopicImage | None, LogConfig] = (None, LogConfig())
        self._work: deque[Callable[[], None]] = deque()
        self._working = False
        self._settled: list[asyncio.Future[None]] = []
        self._leaving: set[TopicPartition] = set()
        self._without_room: set[str] = set()

    # ------------------------------------------------------------------ finding a partition
    def find(self, topic: str, partition: int) -> Partition | ErrorCode:
        """The partition, online here, or why not.

        Errors: KAFKA_STORAGE_ERROR (its directory is offline), NOT_LEADER_OR_FOLLOWER (hosted elsewhere, or not here yet, or this broker
        is fenced), UNKNOWN_TOPIC_OR_PARTITION.
        """
        found = self.partitions.get((topic, partition))
        if found is not None:
            if self.is_fenced is not None and self.is_fenced():
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            return found if not found.log.offline else ErrorCode.KAFKA_STORAGE_ERROR
        if (topic, partition) in self.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.image.topics.get(topic) if self.image is not None else None
        if known is None or not 0 <= partition < len(known.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    # ------------------------------------------------------------------ records
    def append(self, partition: Partition, batch: ValidatedBatch, now_ms: int) -> AppendedBatch | ErrorCode:
        """Append a validated batch as leader; wake who waits for records. `now_ms` is wall-clock time.

        A failed disk takes its directory offline: KAFKA_STORAGE_ERROR.
        """
        try:
            appended = partition.append(batch, now_ms)
        except StorageError as error:
            self._log_manager.fail_directory_of(partition.log, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        self.fetches.advance(partition.topic_partition, partition.log.high_watermark)
        return appended

    def flush(self, partition: Partition) -> None:
        """Begin to make a partition's log durable; `flushes` hear of it."""
        self._log_manager.flush(partition.log)

    def on_read_failed(self, partition: Partition, error: StorageError) -> None:
        """A log could not be read: a damaged segment hurts its partition only, a failing disk its directory."""
        self._log.error("log could not be read", partition=str(partition.topic_partition), error=str(error))
        if not isinstance(error, DamagedSegmentError):
            self._log_manager.fail_directory_of(partition.log, error)

    def delete_to(self, accepted: list[tuple[Partition, Offset]]) -> None:
        """Raise log start offsets, each at or below its high watermark: durable first, then visible, then who waits is woken.

        One append to the journal of each directory, however many partitions there are. A failed journal takes its directory
        offline, which wakes them too.
        """

        def durable(_error: OSError | StorageError | None) -> None:
            for partition, _ in accepted:
                self.deletes.advance(partition.topic_partition, partition.low_watermark)

        self._log_manager.accept_log_start([(partition.log, offset) for partition, offset in accepted], durable)

    # ------------------------------------------------------------------ metadata
    def on_image(self, image: MetadataImage, changed: Iterable[TopicImage], deleted: Iterable[TopicImage]) -> None:
        """Follow a change of the metadata: `changed` topics are new or different, `deleted` ones are gone."""
        self.image = image
        self._configured = (None, LogConfig())  # What topics follow from may have changed, though they haven't.
        gone = [
            TopicPartition(topic.name, index)
            for topic in deleted
            for index in range(len(topic.partitions))
            if (topic.name, index) in self.partitions or (topic.name, index) in self.offline
        ]
        if gone:
            self._stop(gone)
        for topic in changed:
            for index, state in enumerate(topic.partitions):
                if self.broker_id in state.replicas:
                    self._work.append(partial(self._host, topic, index, state))
        self._work_on()

    def expect(self, image: MetadataImage) -> None:
        """Before the first image: what it says is here was here before, and isn't made anew where it may be in a directory that failed."""
        here = [
            (TopicPartition(topic.name, index), topic.topic_id)
            for topic in image.topics.values()
            for index, state in enumerate(topic.partitions)
            if self.broker_id in state.replicas
        ]
        offline = self._log_manager.expect(here)
        if offline:
            lost = list(self._log_manager.lost_directories)
            self._log.error("partitions are offline with their log directories", partitions=len(offline), missing_directories=lost)

    async def settled(self) -> None:
        """Wait until all that was asked for is done on disk."""
        if self._work or self._leaving:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._settled.append(waiter)
            await waiter

    def tick(self) -> None:
        """Try again to make logs for which there was no room. On the order of once a second."""
        names, self._without_room = self._without_room, set()
        self._host_again(*names)

    def on_directory_failed(self, logs: Iterable[Log]) -> None:
        """A log directory went offline: whoever waits for its partitions is told."""
        logs = list(logs)
        self.offline |= {log.topic_partition for log in logs if log.topic_partition in self.partitions}
        for log in logs:
            self._release(log.topic_partition)

    def on_fenced(self) -> None:
        """This broker must not act any more: whoever waits is told."""
        for topic, partition in self.partitions:
            self._release(TopicPartition(topic, partition))

    def close(self) -> None:
        """Answer all that waits."""
        for queue in (self.fetches, self.flushes, self.deletes):
            queue.close()

    def leave(self) -> None:
        """Serve no partition any more: the logs are being closed, and what a worker brings from now on finds none to append to."""
        self.partitions.clear()

    def _host(self, topic: TopicImage, index: int, state: PartitionImage) -> None:
        """Have the partition here as the metadata say."""
        current = self.image.topics.get(topic.name) if self.image is not None else None
        if current is None or current.topic_id != topic.topic_id:
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
        changed = partition.become(
            leader_id=state.leader,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            replicas=state.replicas,
            in_sync=state.isr,
        )
        if changed:
            self._release(key)

    def _config_of(self, topic: TopicImage) -> LogConfig:
        """The configuration of a topic's logs, which is made once for all of its partitions that are worked on in turn."""
        if self._configured[0] is not topic:
            self._configured = (topic, self._log_config(topic))
        return self._configured[1]

    def _open(self, key: TopicPartition, topic: TopicImage, config: LogConfig) -> Partition | None:
        """The partition over its log, which is made where there is none; None when its directory cannot be written."""
        log = self._log_manager.logs.get(key)
        if log is not None and log.topic_id != topic.topic_id:
            self._log.warning("log of an earlier topic of the same name is removed", partition=str(key))
            self._remove([key], then=partial(self._host_again, topic.name))
            return None
        if log is None:
            if key in self._leaving:
                return None
            try:
                log = self._log_manager.create_log(key, topic.topic_id, config)
            except StorageError as error:
                if key not in self.offline:
                    self._log.error("log could not be created", partition=str(key), error=str(error))
                if error.is_disk_full:
                    self._without_room.add(topic.name)
                self.offline |= {key}
                return None
            self.offline -= {key}
        if log.offline:
            self.offline |= {key}  # Its directory has failed before this partition was here to be told so.
        partition = Partition(topic_partition=key, topic_id=topic.topic_id, local_broker_id=self.broker_id, log=log)
        self.partitions[key] = partition
        self._on_partition_made()
        return partition

    def _stop(self, gone: list[TopicPartition]) -> None:
        self.offline -= set(gone)
        for key in gone:
            self.partitions.pop(key, None)
            self._release(key)
        self._remove(gone, then=partial(self._host_again, *dict.fromkeys(key.topic for key in gone)))

    def _release(self, key: TopicPartition) -> None:
        """Something happened to a partition that whoever waits for it must hear of."""
        for queue in (self.fetches, self.flushes, self.deletes):
            queue.release(key)

    def _on_bug(self, request: DelayedRequest, error: Exception) -> None:
        self._log.error("request failed", request=type(request).__name__, exc_info=error)

    def _on_log_flushed(self, log: Log) -> None:
        self.flushes.advance(log.topic_partition, log.recovery_point)

    def _remove(self, keys: list[TopicPartition], *, then: Callable[[], object]) -> None:
        """Delete logs; their names can be used again when `then` is called."""
        self._leaving.update(keys)

        def removed(error: OSError | StorageError | None) -> None:
            if error is not None:
                self._log.error("logs could not be deleted", partitions=len(keys), error=str(error))
            self._leaving.difference_update(keys)
            then()
            self._tell_settled()

        self._log_manager.delete_logs(keys, removed)

    def _host_again(self, *names: str) -> None:
        """Topics whose names were taken by logs on their way out may have been made anew since."""
        if self.image is not None:
            self.on_image(self.image, [self.image.topics[name] for name in names if name in self.image.topics], [])

    # ------------------------------------------------------------------ slices
    def _work_on(self) -> None:
        if not self._working:
            self._working = True
            run_in_slices(self._loop, self._clock, self._steps(), self._on_worked)

    def _steps(self) -> Iterator[None]:
        while self._work:
            self._work.popleft()()
            yield

    def _on_worked(self) -> None:
        self._working = False
        self._tell_settled()

    def _tell_settled(self) -> None:
        if not self._work and not self._leaving:
            waiters, self._settled = self._settled, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
