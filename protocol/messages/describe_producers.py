"""DescribeProducers (key 61): what a partition remembers of its idempotent and transactional producers (KIP-664).

Field by field this is Kafka's DescribeProducersRequest/Response.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, Nullable, String, Versions
from lowtide.protocol.types import NO_SEQUENCE, UNKNOWN_OFFSET


class DescribeProducersTopicRequest(Message, kw_only=True):
    """Partitions of one topic."""

    name: String
    partition_indexes: list[Int32]


class DescribeProducersRequest(ApiMessage, kw_only=True):
    """Of which partitions."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    topics: list[DescribeProducersTopicRequest]


class ProducerState(Message, kw_only=True):
    """One producer. -1 stands for what there is none of: a sequence, a time, a coordinator, an open transaction."""

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = NO_SEQUENCE
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = UNKNOWN_OFFSET


class DescribeProducersPartitionResponse(Message, kw_only=True):
    """The producers of one partition, or why they are left out."""

    partition_index: Int32
    error_code: Int16
    error_message: Annotated[String | None, Nullable("0+")] = None
    active_producers: list[ProducerState] = msgspec.field(default_factory=list)


class DescribeProducersTopicResponse(Message, kw_only=True):
    """Partitions of one topic."""

    name: String
    partitions: list[DescribeProducersPartitionResponse]


class DescribeProducersResponse(ApiMessage, kw_only=True):
    """The answer, partition by partition."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32
    topics: list[DescribeProducersTopicResponse]
