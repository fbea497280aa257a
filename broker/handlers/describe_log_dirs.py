"""DescribeLogDirs: v1-v5.

Behaviour: returns each log directory with its absolute path, the bytes of its volume, and the requested logs in it; a
null list of topics requests all, an empty one none. The size of a log is that of its segments, so it shrinks when
segments are removed, not when the log start rises within one. The lag of a log is 0, or -1 if no partition uses it. A
log that is being moved is listed in both directories; the lag of its copy, the future log, is the number of offsets
that it is behind. As in Kafka, partitions that aren't here are left out without an error. Everything but the volume's
sizes is in memory, and is collected in slices.

Version notes: v3 has a top-level error, v4 the bytes of the volume. v5 says whether the directory receives no new
partitions (KIP-1066).

Errors: KAFKA_STORAGE_ERROR for a directory that is offline or whose volume can't be read (UNKNOWN_SERVER_ERROR in
Kafka); it has no topics, and -1 for the bytes.

KIPs: 113, 827, 1066.
"""

from __future__ import annotations

from collections.abc import Generator

from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import Answer
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
from lowtide.replication.refusal import Refusal
from lowtide.storage.directory.log_manager import DirectoryUsage
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import Log

LOGS_A_STEP = 50
"""Some four tenths of a millisecond's work."""

_ERROR_SINCE = 3

_UNKNOWN_LAG = -1
"""The lag of a log that no partition uses. Source: Kafka's `DescribeLogDirsResponse`."""


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""
    replicas = broker.replicas

    def steps(wanted: set[TopicPartition] | None) -> Generator[None, None, DescribeLogDirsResponse]:
        results = []
        cordoned = replicas.log_manager.directories.cordoned
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
                results.append((yield from _described(replicas, usage, wanted, is_cordoned=path in cordoned)))
        return DescribeLogDirsResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, results=results)

    def handle(request: DescribeLogDirsRequest, _context: RequestContext) -> Answer[DescribeLogDirsResponse]:
        wanted: set[TopicPartition] | None = None
        if request.topics is not None:
            wanted = {
                TopicPartition(topic.topic, partition) for topic in request.topics for partition in topic.partitions
            }
        return broker.turns.answer(steps(wanted))

    return HandlerSpec(key=ApiKey.DESCRIBE_LOG_DIRS, guard=on_cluster(Operation.DESCRIBE, refused), handle=handle)


def refused(_request: DescribeLogDirsRequest, version: int, refusal: Refusal) -> DescribeLogDirsResponse:
    """Returns the answer to a request that is refused. Versions without a field for the error return nothing."""
    error = refusal.error_code if version >= _ERROR_SINCE else ErrorCode.NONE
    return DescribeLogDirsResponse(throttle_time_ms=0, error_code=error)


def _described(
    replicas: ReplicaManager, usage: DirectoryUsage, wanted: set[TopicPartition] | None, *, is_cordoned: bool
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
        is_cordoned=is_cordoned,
    )


def _lag(replicas: ReplicaManager, log: Log) -> int:
    """Returns how far a log is behind the committed records. Only a follower's log can be, until it has caught up."""
    partition = replicas.partitions.get(log.topic_partition)
    move = replicas.log_manager.moves.move_of(log) if log.is_future else None
    if move is not None:
        return move.lag
    if partition is None or partition.log is not log:
        return _UNKNOWN_LAG
    return max(log.high_watermark - log.log_end_offset, 0)
