"""The partitions that come to this broker and leave it, and events that concern all requests waiting for one.

Guards: a request that waits for a partition is tested when the partition leaves, its directory fails, its log moves, or
this broker is fenced (rule DR4). Metadata decide which partitions are here (`assigned_partitions`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lowtide.protocol.types import TopicPartition
from lowtide.replication.partition import PartitionChange
from lowtide.storage.directory.log_starts import LogStartIncrement

if TYPE_CHECKING:
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.replication.partition import Partition
    from lowtide.storage.log.log import Log


class HostedPartitions:
    """Adds and removes the partitions of a `ReplicaManager`."""

    def __init__(self, replicas: ReplicaManager, log: Any) -> None:
        self._replicas = replicas
        self._log = log
        replicas.log_manager.listen_to_flushes(self._on_log_flushed)
        replicas.log_manager.moves.listen(self._on_log_moved)

    def add(self, partition: Partition) -> None:
        """Adds a hosted partition."""
        self._replicas.partitions[partition.topic_partition] = partition
        if self._replicas.early_refusals:
            producers = partition.log.producer_state
            for topic in (partition.topic_partition.topic, partition.topic_id):
                early = self._replicas.early_refusals.take((topic, partition.topic_partition.partition))
                if early is not None:
                    producers.verifications.take(early, producers.producers)

    def take_out(self, key: TopicPartition) -> None:
        """Removes a hosted partition, and answers the requests that wait for it."""
        partition = self._replicas.partitions.pop(key, None)
        if partition is not None:
            partition.count_records()
        if self._replicas.image is None or key.topic not in self._replicas.image.topics:
            self._replicas.traffic.forget(key.topic)
        self._replicas.led.forget(key)
        if partition is not None:
            partition.tell(PartitionChange.ROLE)
        self._replicas.waiting.release(key)

    def release(self, key: TopicPartition) -> None:
        """Tests the requests that wait for a partition."""
        partition = self._replicas.partitions.get(key)
        if partition is not None:
            partition.tell(PartitionChange.ROLE)
        self._replicas.waiting.release(key)

    def on_directory_failed(self, logs: Iterable[Log]) -> None:
        """Ends the requests that wait for partitions of a log directory that went offline."""
        logs = list(logs)
        self._replicas.offline.add(
            log.topic_partition for log in logs if log.topic_partition in self._replicas.partitions
        )
        for log in logs:
            self.release(log.topic_partition)

    def on_fenced(self) -> None:
        """Ends the requests that wait: this broker must not act any more."""
        for topic, partition in self._replicas.partitions:
            self.release(TopicPartition(topic, partition))

    def _on_log_moved(self, old: Log, new: Log) -> None:
        """Uses the log of another directory, and repeats a delete that the old journal does not have durably yet."""
        partition = self._replicas.partitions.get(old.topic_partition)
        name = str(old.topic_partition)
        self._log.info("log has changed its directory", partition=name, path=new.directory, before=old.directory)
        if partition is None or partition.log is not old:
            return
        partition.move_to(new)
        if old.log_start_pending > new.log_start_offset:
            self._replicas.request_log_starts([LogStartIncrement(new, old.log_start_pending)])
        if new.flush_is_due:
            self._replicas.flush(partition)
        self.release(old.topic_partition)

    def _on_log_flushed(self, log: Log) -> None:
        # Records above the recovery point wait for nothing more if they are fewer than `flush.messages`.
        flushed = log.recovery_point if log.flush_is_due else log.log_end_offset
        self._replicas.waiting.flushes.advance(log.topic_partition, flushed)
