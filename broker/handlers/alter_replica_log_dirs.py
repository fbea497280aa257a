"""AlterReplicaLogDirs: v1-v2.

Behaviour: moves replicas of this broker to other log directories, which are named by their absolute paths. The response
means that the moves have begun; DescribeLogDirs shows the copy, called the future log, until it replaces the replica. A
request for another directory replaces the first one, and a request for the replica's own directory cancels its move. A
partition that this broker doesn't have is created in that directory if it is assigned here before the broker restarts;
the response is REPLICA_NOT_AVAILABLE. If a partition is listed twice, the last directory wins.

Version notes: v2 is flexible. Kafka serves v1 and v2 only.

Errors: CLUSTER_AUTHORIZATION_FAILED; LOG_DIR_NOT_FOUND for a directory that isn't one of the broker's;
INVALID_REPLICA_ASSIGNMENT for a cordoned directory (Kafka also refuses it as the replica's own directory, where the
request cancels a move); KAFKA_STORAGE_ERROR if either directory is offline or the copy can't be started;
INVALID_TOPIC_EXCEPTION for a topic whose name is too long for the folder of a copy; REPLICA_NOT_AVAILABLE,
UNKNOWN_TOPIC_OR_PARTITION.

KIPs: 113, 1066.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
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
from lowtide.replication.refusal import Refusal
from lowtide.storage.errors import StorageError
from lowtide.storage.folder_names import can_be_moved


class AlterReplicaLogDirs:
    """Answers AlterReplicaLogDirs requests."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._manager = broker.replicas.log_manager

    def handle(
        self, request: AlterReplicaLogDirsRequest, _context: RequestContext
    ) -> Answer[AlterReplicaLogDirsResponse]:
        """Answers for each partition once, even if it was named more often."""
        return self._broker.turns.answer(self._steps(_wanted(request)))

    def _steps(self, wanted: Mapping[TopicPartition, str]) -> Generator[None, None, AlterReplicaLogDirsResponse]:
        directories = self._manager.directories
        paths = {directories.absolute_path(path): path for path in directories.paths}
        outcomes = {}
        for key, absolute in wanted.items():
            outcomes[key] = self._alter(key, paths.get(absolute))
            yield  # Making the copy takes some tenths of a millisecond.
        return _answered(outcomes)

    def _alter(self, key: TopicPartition, path: str | None) -> ErrorCode:
        """Checks in Kafka's order."""
        if not can_be_moved(key):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if path is None:
            return ErrorCode.LOG_DIR_NOT_FOUND
        found = self._broker.replicas.partitions.get(key)
        if path in self._manager.directories.offline or (found is not None and found.log.offline):
            return ErrorCode.KAFKA_STORAGE_ERROR
        if path in self._manager.directories.cordoned and (found is None or found.log.parent_directory != path):
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT
        return self._prefer(key, path) if found is None else self._move(found, path)

    def _prefer(self, key: TopicPartition, path: str) -> ErrorCode:
        """Notes where a partition that is not here shall be created."""
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
    """Returns the handler."""
    return HandlerSpec(
        key=ApiKey.ALTER_REPLICA_LOG_DIRS,
        guard=on_cluster(Operation.ALTER, refused),
        handle=AlterReplicaLogDirs(broker).handle,
    )


def refused(request: AlterReplicaLogDirsRequest, _version: int, refusal: Refusal) -> AlterReplicaLogDirsResponse:
    """Returns the answer to a request that is refused as a whole."""
    return _answered(dict.fromkeys(_wanted(request), refusal.error_code))


def _wanted(request: AlterReplicaLogDirsRequest) -> dict[TopicPartition, str]:
    return {
        TopicPartition(topic.name, partition): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for partition in topic.partitions
    }


def _answered(outcomes: Mapping[TopicPartition, ErrorCode]) -> AlterReplicaLogDirsResponse:
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for key, error in outcomes.items():
        result = results.setdefault(key.topic, AlterReplicaLogDirTopicResult(topic_name=key.topic, partitions=[]))
        result.partitions.append(AlterReplicaLogDirPartitionResult(partition_index=key.partition, error_code=error))
    return AlterReplicaLogDirsResponse(results=list(results.values()))
