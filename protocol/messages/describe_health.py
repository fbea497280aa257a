"""DescribeHealth (key 32007): the state of a broker's event loop and disks. Lowtide's own.

DescribeLogDirs has the sizes of replicas and volumes; this adds deleted bytes that still use space, and the lag of the
event loop; docs/adr/0008-requests-of-our-own.md.
"""

from __future__ import annotations

import msgspec

from lowtide.protocol.schema import ApiMessage, Float64, Int16, Int32, Int64, Message, String, versions


@versions("0", flexible="0+")
class DescribeHealthRequest(ApiMessage, kw_only=True):
    pass


class LagBucket(Message, kw_only=True):
    """Samples up to `up_to_ms` (inclusive), -1 for the last bucket; buckets do not overlap."""

    up_to_ms: Float64
    count: Int64


class LoopLagHistogram(Message, kw_only=True):
    """The lag of a timer that fires ten times a second, since the broker's start."""

    count: Int64
    sum_ms: Float64
    max_ms: Float64
    buckets: list[LagBucket]


class UnfreedBytes(Message, kw_only=True):
    """Deleted bytes that still use disk space, by cause.

    The causes are `round`, `reader`, `batch`, `block`, `file-system`, `compacted`, `switched-off`.
    """

    waits_for: String
    size_bytes: Int64


class LogDirectoryHealth(Message, kw_only=True):
    """A log directory. The rest of its volume that is not usable belongs to others."""

    path: String
    error_code: Int16
    live_bytes: Int64 = -1
    """The bytes of segments above the log start offsets."""
    deleted_bytes: Int64 = -1
    """The bytes below log start offsets or of removed logs that still use space."""
    unfreed: list[UnfreedBytes] = msgspec.field(default_factory=list)
    """The same by cause."""
    total_bytes: Int64 = -1
    usable_bytes: Int64 = -1


@versions("0", flexible="0+")
class DescribeHealthResponse(ApiMessage, kw_only=True):
    error_code: Int16
    described_at_ms: Int64 = -1
    up_ms: Int64 = -1
    """The time since it began to serve clients."""
    connections: Int32 = -1
    waiting_deletes: Int32 = -1
    """Deletes that wait for the disk or for followers."""
    waiting_produces: Int32 = -1
    lag: LoopLagHistogram | None = None
    """The lag that clients see, for any reason."""
    held: LoopLagHistogram | None = None
    """The part that the broker's own code causes."""
    log_dirs: list[LogDirectoryHealth] = msgspec.field(default_factory=list)
