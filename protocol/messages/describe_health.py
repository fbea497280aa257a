"""DescribeHealth (key 32007): how a broker's event loop and its disks are. Lowtide's own.

DescribeLogDirs has the sizes of replicas and of volumes; this has what was deleted and takes room still, and how long
requests wait for the loop; docs/adr/0008-requests-of-our-own.md.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from lowtide.protocol.schema import ApiMessage, Float64, Int16, Int32, Int64, Message, String, Versions


class DescribeHealthRequest(ApiMessage, kw_only=True):
    """Nothing is to be said."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")


class LagBucket(Message, kw_only=True):
    """Samples of up to `up_to_ms` (inclusive), -1 for the last bucket, which has no bound; those of smaller buckets are not in it."""

    up_to_ms: Float64
    count: Int64


class LagHistogram(Message, kw_only=True):
    """How late a timer rang that rings ten times a second, since the broker's start."""

    count: Int64
    sum_ms: Float64
    max_ms: Float64
    buckets: list[LagBucket]


class UnfreedBytes(Message, kw_only=True):
    """Deleted bytes that take room still, by what they wait for: `round`, `reader`, `batch`, `file-system`, `compacted`, `switched-off`."""

    waits_for: String
    size_bytes: Int64


class LogDirectoryHealth(Message, kw_only=True):
    """A log directory. What of its volume is none of these bytes, and not usable, is of others."""

    path: String
    error_code: Int16
    live_bytes: Int64 = -1
    """Segments of logs, without what is below log starts."""
    deleted_bytes: Int64 = -1
    """What is below log starts, or left its log, and takes room still."""
    unfreed: list[UnfreedBytes] = msgspec.field(default_factory=list)
    """The same by what it waits for."""
    total_bytes: Int64 = -1
    usable_bytes: Int64 = -1


class DescribeHealthResponse(ApiMessage, kw_only=True):
    """The broker that was asked."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    error_code: Int16
    described_at_ms: Int64 = -1
    up_ms: Int64 = -1
    """Since it began to serve clients."""
    connections: Int32 = -1
    waiting_deletes: Int32 = -1
    """Requests that wait for the disk or for followers."""
    waiting_produces: Int32 = -1
    lag: LagHistogram | None = None
    """How long clients wait for the loop, whatever the reason."""
    held: LagHistogram | None = None
    """The part that the broker's own code causes."""
    log_dirs: list[LogDirectoryHealth] = msgspec.field(default_factory=list)
