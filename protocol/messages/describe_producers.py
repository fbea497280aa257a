"""DescribeProducers (key 61): the state of a partition's idempotent and transactional producers (KIP-664)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, Nullable, String, versions
from lowtide.protocol.types import NO_SEQUENCE, UNKNOWN_OFFSET


class DescribeProducersTopicRequest(Message, kw_only=True):
    name: String
    partition_indexes: list[Int32]


@versions("0", flexible="0+")
class DescribeProducersRequest(ApiMessage, kw_only=True):
    topics: list[DescribeProducersTopicRequest]


class ProducerState(Message, kw_only=True):
    """-1 stands for a missing sequence, time, coordinator or transaction."""

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = NO_SEQUENCE
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = UNKNOWN_OFFSET


class DescribeProducersPartitionResponse(Message, kw_only=True):
    partition_index: Int32
    error_code: Int16
    error_message: Annotated[String | None, Nullable("0+")] = None
    active_producers: list[ProducerState] = msgspec.field(default_factory=list)


class DescribeProducersTopicResponse(Message, kw_only=True):
    name: String
    partitions: list[DescribeProducersPartitionResponse]


@versions("0", flexible="0+")
class DescribeProducersResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32
    topics: list[DescribeProducersTopicResponse]
