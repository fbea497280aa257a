"""DescribeLogDirs (key 35): a broker's log directories and the sizes of their partitions (KIP-113, KIP-827).

A null list of topics requests all, an empty one none; directories are listed either way.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Int64, Message, String, Versions, versions

UNKNOWN_BYTES = -1
"""The volume's size is unknown, because its directory is offline."""


class DescribableLogDirTopic(Message, kw_only=True):
    topic: String
    partitions: list[Int32]


@versions("1-5", flexible="2+")
class DescribeLogDirsRequest(ApiMessage, kw_only=True):
    """Null requests all partitions."""

    topics: list[DescribableLogDirTopic] | None


class DescribeLogDirsPartition(Message, kw_only=True):
    """A replica: the bytes of its segments, and its lag. A future replica is being moved to this directory."""

    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: Bool


class DescribeLogDirsTopic(Message, kw_only=True):
    name: String
    partitions: list[DescribeLogDirsPartition]


class DescribeLogDirsResult(Message, kw_only=True):
    """A directory by its absolute path, its replicas, and the bytes of its volume."""

    error_code: Int16
    log_dir: String
    topics: list[DescribeLogDirsTopic]
    total_bytes: Annotated[Int64, Versions("4+")] = UNKNOWN_BYTES
    usable_bytes: Annotated[Int64, Versions("4+")] = UNKNOWN_BYTES
    is_cordoned: Annotated[Bool, Versions("5+")] = False


@versions("1-5", flexible="2+")
class DescribeLogDirsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32
    error_code: Annotated[Int16, Versions("3+")] = 0
    results: list[DescribeLogDirsResult] = msgspec.field(default_factory=list)
