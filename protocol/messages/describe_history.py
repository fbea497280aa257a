"""DescribeHistory (key 32006): log start, end and size of partitions over the last hour. Lowtide's own.

The samples are in memory and begin with the broker's start; docs/adr/0008-requests-of-our-own.md.
"""

from __future__ import annotations

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, versions


class DescribeHistoryTopic(Message, kw_only=True):
    name: String
    partitions: list[Int32]


@versions("0", flexible="0+")
class DescribeHistoryRequest(ApiMessage, kw_only=True):
    """Partitions with a replica on the broker, and the time after which samples are wanted (wall clock, 0 for all)."""

    topics: list[DescribeHistoryTopic]
    after_ms: Int64 = 0


class LogSample(Message, kw_only=True):
    """The state of a log at one time. Between samples farther apart than the interval nothing changed."""

    at_ms: Int64
    log_start_offset: Int64
    log_end_offset: Int64
    size_bytes: Int64


class HistoryOfPartition(Message, kw_only=True):
    """Samples are ordered from oldest to newest."""

    partition_index: Int32
    error_code: Int16
    samples: list[LogSample] = msgspec.field(default_factory=list)


class HistoryOfTopic(Message, kw_only=True):
    name: String
    partitions: list[HistoryOfPartition]


@versions("0", flexible="0+")
class DescribeHistoryResponse(ApiMessage, kw_only=True):
    """`interval_ms` is the time between two samples of a changing partition."""

    error_code: Int16
    described_at_ms: Int64 = -1
    interval_ms: Int64 = -1
    topics: list[HistoryOfTopic] = msgspec.field(default_factory=list)
