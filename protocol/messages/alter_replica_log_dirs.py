"""AlterReplicaLogDirs (key 34): moves replicas between the log directories of a broker (KIP-113)."""

from __future__ import annotations

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, String, versions


class AlterReplicaLogDirTopic(Message, kw_only=True):
    name: String
    partitions: list[Int32]


class AlterReplicaLogDir(Message, kw_only=True):
    """The absolute path of a directory, and the replicas to move there."""

    path: String
    topics: list[AlterReplicaLogDirTopic]


@versions("1-2", flexible="2+")
class AlterReplicaLogDirsRequest(ApiMessage, kw_only=True):
    dirs: list[AlterReplicaLogDir]


class AlterReplicaLogDirPartitionResult(Message, kw_only=True):
    """No error if the replica is being moved, or is already there."""

    partition_index: Int32
    error_code: Int16


class AlterReplicaLogDirTopicResult(Message, kw_only=True):
    topic_name: String
    partitions: list[AlterReplicaLogDirPartitionResult]


@versions("1-2", flexible="2+")
class AlterReplicaLogDirsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = msgspec.field(default_factory=list)
