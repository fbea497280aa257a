"""CreatePartitions (key 37): adds partitions to topics.

`count` is the new total number of partitions. With null assignments the broker places the replicas; otherwise there is
one row per new partition, in order.
"""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Message, Nullable, String, versions


class CreatePartitionsAssignment(Message, kw_only=True):
    """The replicas of one new partition; the first is the preferred leader."""

    broker_ids: list[Int32]


class CreatePartitionsTopic(Message, kw_only=True):
    name: String
    count: Int32
    assignments: Annotated[list[CreatePartitionsAssignment] | None, Nullable("0+")]


@versions("0-3", flexible="2+")
class CreatePartitionsRequest(ApiMessage, kw_only=True):
    """`validate_only` checks the request without creating partitions."""

    topics: list[CreatePartitionsTopic]
    timeout_ms: Int32
    validate_only: Bool


class CreatePartitionsTopicResult(Message, kw_only=True):
    name: String
    error_code: Int16
    error_message: String | None = None


@versions("0-3", flexible="2+")
class CreatePartitionsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult]
