"""AlterReplicaLogDirs: v1-v2.

Behaviour: has replicas of this broker moved into other log directories, by their absolute paths. The answer says that
the move has begun; DescribeLogDirs shows the copy, the future log, until it takes the replica's place. A request for
another directory replaces the first one, a request for the one where the replica is ends its move. A partition that
this broker doesn't have is created in that directory when it comes, if the broker isn't restarted before:
REPLICA_NOT_AVAILABLE says so. Of a partition named twice the last directory counts.

Version notes: v2 is flexible. Kafka serves v1 and v2 only.

Errors: CLUSTER_AUTHORIZATION_FAILED; LOG_DIR_NOT_FOUND for a directory that isn't one of the broker's;
KAFKA_STORAGE_ERROR where either directory is offline, or the copy can't be begun; INVALID_TOPIC_EXCEPTION for a topic
whose name is too long for the folder of a copy; REPLICA_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION.

KIPs: 113.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import cluster as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from lowtide.protocol.types import TopicPartition
from lowtide.replication.partition import Partition
from lowtide.storage.errors import StorageError
from lowtide.storage.folder_names import can_be_moved


class AlterReplicaLogDirs:
    """The decisions of this API over a broker's state."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._manager = broker.replicas.log_manager

    def handle(
        self, request: AlterReplicaLogDirsRequest, _context: RequestContext
    ) -> AlterReplicaLogDirsResponse | Pending[AlterReplicaLogDirsResponse]:
        """Answer for each partition that was named, once."""
        wanted = {
            TopicPartition(topic.name, partition): directory.path
            for directory in request.dirs
            for topic in directory.topics
            for partition in topic.partitions
        }
        return self._broker.turns.answer(self._steps(wanted))

    def _steps(self, wanted: Mapping[TopicPartition, str]) -> Generator[None, None, AlterReplicaLogDirsResponse]:
        directories = self._manager.directories
        paths = {directories.absolute_path(path): path for path in directories.paths}
        results: dict[str, AlterReplicaLogDirTopicResult] = {}
        for key, absolute in wanted.items():
            result = results.setdefault(key.topic, AlterReplicaLogDirTopicResult(topic_name=key.topic, partitions=[]))
            error = self._alter(key, paths.get(absolute))
            result.partitions.append(AlterReplicaLogDirPartitionResult(partition_index=key.partition, error_code=error))
            yield  # Making the copy takes some tenths of a millisecond.
        return AlterReplicaLogDirsResponse(results=list(results.values()))

    def _alter(self, key: TopicPartition, path: str | None) -> ErrorCode:
        """In Kafka's order."""
        if not can_be_moved(key):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if path is None:
            return ErrorCode.LOG_DIR_NOT_FOUND
        found = self._broker.replicas.partitions.get(key)
        if path in self._manager.directories.offline or (found is not None and found.log.offline):
            return ErrorCode.KAFKA_STORAGE_ERROR
        return self._prefer(key, path) if found is None else self._move(found, path)

    def _prefer(self, key: TopicPartition, path: str) -> ErrorCode:
        """The partition isn't here."""
        error = self._broker.replicas.find(*key)
        if error is ErrorCode.KAFKA_STORAGE_ERROR:
            return error
        self._manager.preferred.note(key, path)
        return (
            ErrorCode.REPLICA_NOT_AVAILABLE
            if error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )

    def _move(self, partition: Partition, path: str) -> ErrorCode:
        try:
            self._manager.moves.alter(partition.log, path)
        except StorageError as error:
            self._broker.log.warning(
                "a log can't be moved", partition=str(partition.topic_partition), to=path, error=str(error)
            )
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's state."""
    return HandlerSpec(
        key=ApiKey.ALTER_REPLICA_LOG_DIRS,
        guard=guards.alter_replica_log_dirs,
        handle=AlterReplicaLogDirs(broker).handle,
    )
