"""DescribeLogDirs (key 35): a broker's log directories, and how large each partition is in them (KIP-113, KIP-827).

A null list of topics asks for all, an empty one for none; a directory is listed either way.
Field by field this is Kafka's DescribeLogDirsRequest/Response.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Int64, Message, String, Versions

UNKNOWN_BYTES = -1
"""In place of a volume's size: not known, because its directory is offline."""


class DescribableLogDirTopic(Message, kw_only=True):
    """Partitions of one topic."""

    topic: String
    partitions: list[Int32]


class DescribeLogDirsRequest(ApiMessage, kw_only=True):
    """Of which partitions; null for all."""

    VERSIONS: ClassVar = Versions("1-5")
    FLEXIBLE: ClassVar = Versions("2+")

    topics: list[DescribableLogDirTopic] | None


class DescribeLogDirsPartition(Message, kw_only=True):
    """One log: the bytes of its segments, and by how much it is behind; a future log is one that is being moved here."""

    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: Bool


class DescribeLogDirsTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: String
    partitions: list[DescribeLogDirsPartition]


class DescribeLogDirsResult(Message, kw_only=True):
    """One directory: its absolute path, what is in it, and the bytes of its volume."""

    error_code: Int16
    log_dir: String
    topics: list[DescribeLogDirsTopic]
    total_bytes: Annotated[Int64, Versions("4+")] = UNKNOWN_BYTES
    usable_bytes: Annotated[Int64, Versions("4+")] = UNKNOWN_BYTES
    is_cordoned: Annotated[Bool, Versions("5+")] = False


class DescribeLogDirsResponse(ApiMessage, kw_only=True):
    """The answer, directory by directory."""

    VERSIONS: ClassVar = Versions("1-5")
    FLEXIBLE: ClassVar = Versions("2+")

    throttle_time_ms: Int32
    error_code: Annotated[Int16, Versions("3+")] = 0
    results: list[DescribeLogDirsResult] = msgspec.field(default_factory=list)
