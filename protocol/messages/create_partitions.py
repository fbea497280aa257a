"""CreatePartitions (key 37): give topics more partitions.

`count` is how many partitions the topic has afterwards, not how many are added. Null assignments leave the replicas of the new partitions
to the broker; else there is one row for each new partition, in order. Field by field this is Kafka's
CreatePartitionsRequest/Response.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Message, Nullable, String, Versions


class CreatePartitionsAssignment(Message, kw_only=True):
    """One new partition's replicas by broker id; the first is the preferred leader."""

    broker_ids: list[Int32]


class CreatePartitionsTopic(Message, kw_only=True):
    """A topic to grow."""

    name: String
    count: Int32
    assignments: Annotated[list[CreatePartitionsAssignment] | None, Nullable("0+")]


class CreatePartitionsRequest(ApiMessage, kw_only=True):
    """Topics to grow, or only to check (`validate_only`)."""

    VERSIONS: ClassVar = Versions("0-3")
    FLEXIBLE: ClassVar = Versions("2+")

    topics: list[CreatePartitionsTopic]
    timeout_ms: Int32
    validate_only: Bool


class CreatePartitionsTopicResult(Message, kw_only=True):
    """One topic grown, or why not."""

    name: String
    error_code: Int16
    error_message: String | None = None


class CreatePartitionsResponse(ApiMessage, kw_only=True):
    """The answer, topic by topic."""

    VERSIONS: ClassVar = Versions("0-3")
    FLEXIBLE: ClassVar = Versions("2+")

    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult]
