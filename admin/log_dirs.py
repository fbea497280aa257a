"""Log directories of brokers: describes them and their replicas, and moves replicas between them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from lowtide.admin.attempts import Done, Outcome
from lowtide.admin.call import AdminClientBase, failure, numbers_by_topic, outcome
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from lowtide.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from lowtide.protocol.types import BrokerId, TopicPartition

ROOM_MIN_BYTES: Final = 1 << 20
"""A directory with less usable space is full, as for Lowtide's brokers."""


class ReplicaSize(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A replica on a disk.

    `offset_lag` counts records behind the high watermark; a leader's counts uncommitted records.
    """

    size_bytes: int
    offset_lag: int
    is_future: bool
    """The replica is being moved into this directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """A log directory of a broker. With an `error` it is offline, and nothing else is known."""

    path: str
    error: BrokerAnsweredError | None
    replicas: Mapping[TopicPartition, ReplicaSize]
    total_bytes: int
    """The size of its volume; -1 from brokers before Kafka 3.3."""
    usable_bytes: int
    is_cordoned: bool = False
    """Whether it receives no new partitions; unknown, and False, from brokers before Kafka 4.3."""

    @property
    def is_full(self) -> bool:
        """Whether it has no room for appends. Lowtide's brokers return 0 if a quota refuses writes."""
        return self.error is None and 0 <= self.usable_bytes < ROOM_MIN_BYTES


def replicas_in(
    answers: Mapping[BrokerId, Mapping[str, LogDir] | AdminError],
) -> Iterator[tuple[BrokerId, TopicPartition, ReplicaSize]]:
    """Yields the replicas on all brokers that have answered."""
    for broker_id, directories in answers.items():
        if not isinstance(directories, AdminError):
            for directory in directories.values():
                for partition, replica in directory.replicas.items():
                    yield broker_id, partition, replica


async def describe_log_dirs(
    client: AdminClientBase,
    brokers: Collection[BrokerId] | None = None,
    *,
    partitions: Collection[TopicPartition] | None = None,
    timeout: float | None = None,
) -> dict[BrokerId, dict[str, LogDir] | AdminError]:
    """Returns the log directories of brokers (default: all that are reachable) by path, with their replicas.

    `partitions` limits the replicas.
    """
    call, topics = client.call(timeout), None
    if partitions is not None:
        topics = [
            DescribableLogDirTopic(topic=name, partitions=numbers)
            for name, numbers in numbers_by_topic(partitions).items()
        ]

    async def send(broker_id: BrokerId, asked: list[BrokerId]) -> Mapping[BrokerId, Outcome[dict[str, LogDir]]]:
        response = await call.ask(broker_id, DescribeLogDirsRequest(topics=topics))
        if response.error_code:
            return dict.fromkeys(asked, failure(f"broker {broker_id}", response.error_code))
        return {broker_id: Done({row.log_dir: _log_dir(broker_id, row) for row in response.results})}

    return await call.each(
        await call.cluster.brokers(call.deadline) if brokers is None else brokers,
        call.to_broker(lambda broker_id: broker_id),
        send,
        lambda broker_id: f"the log directories of broker {broker_id}",
    )


def _log_dir(broker_id: BrokerId, row: Any) -> LogDir:
    replicas = {
        TopicPartition(topic.name, replica.partition_index): ReplicaSize(
            size_bytes=replica.partition_size, offset_lag=replica.offset_lag, is_future=replica.is_future_key
        )
        for topic in row.topics
        for replica in topic.partitions
    }
    what = f"{row.log_dir} of broker {broker_id}"
    return LogDir(
        path=row.log_dir,
        error=BrokerAnsweredError(row.error_code, what) if row.error_code else None,
        replicas=replicas,
        total_bytes=row.total_bytes,
        usable_bytes=row.usable_bytes,
        is_cordoned=row.is_cordoned,
    )


async def alter_replica_log_dirs(
    client: AdminClientBase, wanted: Mapping[tuple[BrokerId, TopicPartition], str], *, timeout: float | None = None
) -> dict[tuple[BrokerId, TopicPartition], AdminError | None]:
    """Begins to move replicas of brokers into log directories, given by absolute path; None means begun (KIP-113).

    `describe_log_dirs` shows the progress (`is_future`). Naming the directory where the replica is cancels its move.
    """
    call = client.call(timeout)

    def what(replica: tuple[BrokerId, TopicPartition]) -> str:
        return f"{replica[1]} of broker {replica[0]}"

    async def send(
        broker_id: BrokerId, asked: list[tuple[BrokerId, TopicPartition]]
    ) -> Mapping[tuple[BrokerId, TopicPartition], Outcome[None]]:
        directories: dict[str, list[TopicPartition]] = {}
        for replica in asked:
            directories.setdefault(wanted[replica], []).append(replica[1])
        request = AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=path,
                    topics=[
                        AlterReplicaLogDirTopic(name=name, partitions=numbers)
                        for name, numbers in numbers_by_topic(keys).items()
                    ],
                )
                for path, keys in directories.items()
            ]
        )
        response = await call.ask(broker_id, request)
        found: dict[tuple[BrokerId, TopicPartition], Outcome[None]] = {}
        for topic in response.results:
            for row in topic.partitions:
                replica = (broker_id, TopicPartition(topic.topic_name, row.partition_index))
                found[replica] = outcome(what(replica), row)
        return found

    return await call.each(wanted, call.to_broker(lambda replica: replica[0]), send, what)
