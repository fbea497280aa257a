"""DeleteRecords (key 21): raises the log start offset (KIP-107); version 3 can ask for the leader alone (KIP-1343).

Versions 0-2 are Kafka's; version 3 adds `leader_only` to the request and `leader_log_start_offset` to the response.
"""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Int64, Message, String, Versions, versions
from lowtide.protocol.types import UNKNOWN_OFFSET

TO_HIGH_WATERMARK = -1
"""Deletes everything below the high watermark."""


class DeleteRecordsPartition(Message, kw_only=True):
    """The new log start offset; -1 is the high watermark."""

    partition_index: Int32
    offset: Int64


class DeleteRecordsTopic(Message, kw_only=True):
    name: String
    partitions: list[DeleteRecordsPartition]


@versions("0-3", flexible="2+")
class DeleteRecordsRequest(ApiMessage, kw_only=True):
    """With `leader_only` the response does not wait for followers."""

    topics: list[DeleteRecordsTopic]
    timeout_ms: Int32
    leader_only: Annotated[Bool, Versions("3+")] = False


class DeleteRecordsPartitionResult(Message, kw_only=True):
    """The smallest log start offset of all live replicas, and from version 3 the leader's own; both -1 on error."""

    partition_index: Int32
    low_watermark: Int64
    leader_log_start_offset: Annotated[Int64, Versions("3+")] = UNKNOWN_OFFSET
    error_code: Int16


class DeleteRecordsTopicResult(Message, kw_only=True):
    name: String
    partitions: list[DeleteRecordsPartitionResult]


@versions("0-3", flexible="2+")
class DeleteRecordsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult]
