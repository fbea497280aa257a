"""AlterReplicaLogDirs (key 34): in which of a broker's log directories replicas are to be (KIP-113).

Field by field this is Kafka's AlterReplicaLogDirsRequest/Response.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, String, Versions


class AlterReplicaLogDirTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: String
    partitions: list[Int32]


class AlterReplicaLogDir(Message, kw_only=True):
    """One directory, by its absolute path, and what is to be in it."""

    path: String
    topics: list[AlterReplicaLogDirTopic]


class AlterReplicaLogDirsRequest(ApiMessage, kw_only=True):
    """To which directories which replicas are to be moved."""

    VERSIONS: ClassVar = Versions("1-2")
    FLEXIBLE: ClassVar = Versions("2+")

    dirs: list[AlterReplicaLogDir]


class AlterReplicaLogDirPartitionResult(Message, kw_only=True):
    """Whether a replica is being moved, or is there already."""

    partition_index: Int32
    error_code: Int16


class AlterReplicaLogDirTopicResult(Message, kw_only=True):
    """Partitions of one topic."""

    topic_name: String
    partitions: list[AlterReplicaLogDirPartitionResult]


class AlterReplicaLogDirsResponse(ApiMessage, kw_only=True):
    """The answer, partition by partition."""

    VERSIONS: ClassVar = Versions("1-2")
    FLEXIBLE: ClassVar = Versions("2+")

    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = msgspec.field(default_factory=list)
