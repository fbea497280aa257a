"""AlterPartitionReassignments (key 45): starts or cancels reassignments of partitions (KIP-455)."""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Message, Nullable, String, Versions, versions


class ReassignablePartition(Message, kw_only=True):
    """A partition and its new replicas; null cancels a reassignment."""

    partition_index: Int32
    replicas: Annotated[list[Int32] | None, Nullable("0+")] = None


class ReassignableTopic(Message, kw_only=True):
    name: String
    partitions: list[ReassignablePartition]


@versions("0-1", flexible="0+")
class AlterPartitionReassignmentsRequest(ApiMessage, kw_only=True):
    timeout_ms: Int32 = 60_000
    allow_replication_factor_change: Annotated[Bool, Versions("1+")] = True
    topics: list[ReassignableTopic]


class ReassignablePartitionResponse(Message, kw_only=True):
    partition_index: Int32
    error_code: Int16
    error_message: String | None = None


class ReassignableTopicResponse(Message, kw_only=True):
    name: String
    partitions: list[ReassignablePartitionResponse]


@versions("0-1", flexible="0+")
class AlterPartitionReassignmentsResponse(ApiMessage, kw_only=True):
    """`error_code` applies to the whole request."""

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, Versions("1+")] = True
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[ReassignableTopicResponse]
