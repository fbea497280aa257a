"""DescribeLogDirs: v1-v5.

Behaviour: tells each log directory by its absolute path, with the bytes of its volume, and the logs in it that were
asked for, or all: a null list of topics is all, an empty one none. A log's size is that of its segments, so it falls
when segments go, not when the log start rises within one; its lag is 0, or -1 when no partition uses it. Partitions
that aren't here, or don't exist, are left out without an error, as in Kafka. All of it is known in memory, but for the
volume's two figures; it is gone through in slices.

Version notes: v3 has a top-level error, v4 the volume's bytes, v5 whether the directory gets no new partitions
(KIP-1066): never, for
`cordoned.log.dirs` isn't acted upon yet. A log that is being moved is listed in both directories; the lag of its copy,
the future log, is
the number of offsets by which it is behind.

Errors: KAFKA_STORAGE_ERROR for a directory that is offline, or whose volume can't be asked (there Kafka says
UNKNOWN_SERVER_ERROR); it has no topics then, and -1 for the bytes.

KIPs: 113, 827, 1066.
"""

from __future__ import annotations

from collections.abc import Generator

from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import cluster as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from lowtide.protocol.types import TopicPartition
from lowtide.storage.directory.log_manager import DirectoryUsage
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import Log

LOGS_A_STEP = 50
"""Some four tenths of a millisecond's work."""

_UNKNOWN_LAG = -1
"""The lag of a log that no partition uses. Source: Kafka's `DescribeLogDirsResponse`."""


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's state."""
    replicas = broker.replicas

    def steps(wanted: set[TopicPartition] | None) -> Generator[None, None, DescribeLogDirsResponse]:
        results = []
        for path in replicas.log_manager.directories.paths:
            try:
                usage = replicas.log_manager.directories.usage(path)
            except StorageError as error:
                broker.log.warning("log directory could not be described", directory=path, error=str(error))
                absolute = replicas.log_manager.directories.absolute_path(path)
                results.append(
                    DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=absolute, topics=[])
                )
            else:
                results.append((yield from _described(replicas, usage, wanted)))
        return DescribeLogDirsResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, results=results)

    def handle(
        request: DescribeLogDirsRequest, _context: RequestContext
    ) -> DescribeLogDirsResponse | Pending[DescribeLogDirsResponse]:
        wanted: set[TopicPartition] | None = None
        if request.topics is not None:
            wanted = {
                TopicPartition(topic.topic, partition) for topic in request.topics for partition in topic.partitions
            }
        return broker.turns.answer(steps(wanted))

    return HandlerSpec(key=ApiKey.DESCRIBE_LOG_DIRS, guard=guards.describe_log_dirs, handle=handle)


def _described(
    replicas: ReplicaManager, usage: DirectoryUsage, wanted: set[TopicPartition] | None
) -> Generator[None, None, DescribeLogDirsResult]:
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for number, log in enumerate(usage.logs, 1):
        key = log.topic_partition
        if wanted is None or key in wanted:
            topics.setdefault(key.topic, []).append(
                DescribeLogDirsPartition(
                    partition_index=key.partition,
                    partition_size=log.size_bytes,
                    offset_lag=_lag(replicas, log),
                    is_future_key=log.is_future,
                )
            )
        if number % LOGS_A_STEP == 0:
            yield
    return DescribeLogDirsResult(
        error_code=ErrorCode.NONE,
        log_dir=usage.absolute_path,
        topics=[DescribeLogDirsTopic(name=name, partitions=rows) for name, rows in topics.items()],
        total_bytes=usage.total_bytes,
        usable_bytes=usage.usable_bytes,
    )


def _lag(replicas: ReplicaManager, log: Log) -> int:
    """How far a replica's log is behind what is committed: never, but before a follower has caught up."""
    partition = replicas.partitions.get(log.topic_partition)
    move = replicas.log_manager.moves.move_of(log) if log.is_future else None
    if move is not None:
        return move.lag
    if partition is None or partition.log is not log:
        return _UNKNOWN_LAG
    return max(log.high_watermark - log.log_end_offset, 0)
