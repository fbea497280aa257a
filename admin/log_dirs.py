"""Log directories of brokers, how large the replicas in them are, and moves between them (DescribeLogDirs, AlterReplicaLogDirs)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from lowtide.admin.anywhere import outcome_of_error, to_a_broker
from lowtide.admin.attempts import Attempts, Done, Outcome
from lowtide.admin.errors import BrokerAnsweredError
from lowtide.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from lowtide.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from lowtide.protocol.types import BrokerId, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.cluster import Cluster
    from lowtide.admin.errors import AdminError
    from lowtide.admin.patience import Deadline


class ReplicaSize(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A replica on a disk.

    `offset_lag` is how many records it is behind the high watermark (a leader's is what isn't committed).
    """

    size_bytes: int
    offset_lag: int
    is_future: bool
    """It is being moved into this directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """A directory of a broker. `error` is None, or why it is of no use: then nothing else is known."""

    path: str
    error: BrokerAnsweredError | None
    replicas: Mapping[TopicPartition, ReplicaSize]
    total_bytes: int
    """Of its volume; -1 where the broker doesn't tell (before Kafka 3.3)."""
    usable_bytes: int


async def describe_log_dirs(
    cluster: Cluster,
    brokers: Collection[BrokerId] | None,
    partitions: Collection[TopicPartition] | None,
    deadline: Deadline,
) -> dict[BrokerId, dict[str, LogDir] | AdminError]:
    """See `AdminClient.describe_log_dirs`."""
    topics = None
    if partitions is not None:
        indexes: dict[str, list[int]] = {}
        for topic, partition in partitions:
            indexes.setdefault(topic, []).append(partition)
        topics = [DescribableLogDirTopic(topic=name, partitions=of_topic) for name, of_topic in indexes.items()]

    async def send(broker_id: BrokerId, asked: list[BrokerId], _: int) -> Mapping[BrokerId, Outcome[dict[str, LogDir]]]:
        async with cluster.broker(broker_id, deadline) as handle:
            response = await handle.ask(DescribeLogDirsRequest(topics=topics))
        if response.error_code:
            return dict.fromkeys(asked, outcome_of_error(f"broker {broker_id}", response.error_code, None))
        found: dict[str, LogDir] = {}
        for row in response.results:
            replicas = {
                TopicPartition(topic.name, replica.partition_index): ReplicaSize(
                    size_bytes=replica.partition_size, offset_lag=replica.offset_lag, is_future=replica.is_future_key
                )
                for topic in row.topics
                for replica in topic.partitions
            }
            error = (
                BrokerAnsweredError(row.error_code, f"{row.log_dir} of broker {broker_id}") if row.error_code else None
            )
            found[row.log_dir] = LogDir(
                path=row.log_dir,
                error=error,
                replicas=replicas,
                total_bytes=row.total_bytes,
                usable_bytes=row.usable_bytes,
            )
        return {broker_id: Done(found)}

    attempts = Attempts[BrokerId, dict[str, LogDir]](
        cluster, deadline, to_a_broker(cluster, deadline, lambda broker_id: broker_id), send
    )
    await attempts.run(list(await cluster.brokers(deadline)) if brokers is None else list(brokers))
    return attempts.results(lambda broker_id: f"the log directories of broker {broker_id}")


async def alter_replica_log_dirs(
    cluster: Cluster, wanted: Mapping[tuple[BrokerId, TopicPartition], str], deadline: Deadline
) -> dict[tuple[BrokerId, TopicPartition], AdminError | None]:
    """See `AdminClient.alter_replica_log_dirs`."""

    async def send(
        broker_id: BrokerId, asked: list[tuple[BrokerId, TopicPartition]], _: int
    ) -> Mapping[tuple[BrokerId, TopicPartition], Outcome[None]]:
        directories: dict[str, dict[str, list[int]]] = {}
        for replica in asked:
            _broker, key = replica
            directories.setdefault(wanted[replica], {}).setdefault(key.topic, []).append(key.partition)
        request = AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=path,
                    topics=[AlterReplicaLogDirTopic(name=name, partitions=indexes) for name, indexes in topics.items()],
                )
                for path, topics in directories.items()
            ]
        )
        async with cluster.broker(broker_id, deadline) as handle:
            response = await handle.ask(request)
        found: dict[tuple[BrokerId, TopicPartition], Outcome[None]] = {}
        for result in response.results:
            for row in result.partitions:
                key = TopicPartition(result.topic_name, row.partition_index)
                subject = f"{key} of broker {broker_id}"
                found[broker_id, key] = (
                    outcome_of_error(subject, row.error_code, None) if row.error_code else Done(None)
                )
        return found

    to_broker = to_a_broker(cluster, deadline, lambda replica: replica[0])
    attempts = Attempts[tuple[BrokerId, TopicPartition], None](cluster, deadline, to_broker, send)
    await attempts.run(list(wanted))
    return attempts.results(lambda replica: f"{replica[1]} of broker {replica[0]}")
