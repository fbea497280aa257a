"""ListPartitionReassignments (key 46): ongoing reassignments of partitions (KIP-455).

Null topics request all.
"""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, Nullable, String, versions


class ListPartitionReassignmentsTopic(Message, kw_only=True):
    name: String
    partition_indexes: list[Int32]


@versions("0-0", flexible="0+")
class ListPartitionReassignmentsRequest(ApiMessage, kw_only=True):
    timeout_ms: Int32 = 60_000
    topics: Annotated[list[ListPartitionReassignmentsTopic] | None, Nullable("0+")] = None


class OngoingPartitionReassignment(Message, kw_only=True):
    """`replicas` includes those being added and removed."""

    partition_index: Int32
    replicas: list[Int32]
    adding_replicas: list[Int32]
    removing_replicas: list[Int32]


class OngoingTopicReassignment(Message, kw_only=True):
    name: String
    partitions: list[OngoingPartitionReassignment]


@versions("0-0", flexible="0+")
class ListPartitionReassignmentsResponse(ApiMessage, kw_only=True):
    """`error_code` applies to the whole request."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    topics: list[OngoingTopicReassignment]
