"""Produce (key 0): appends record batches.

From version 13 topics are identified by id. `acks` is 0 (no response), 1 (the leader's log) or -1 (all in-sync
replicas).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.messages.fetch import LeaderIdAndEpoch, NodeEndpoint
from lowtide.protocol.schema import (
    NO_ROWS,
    ApiMessage,
    Int16,
    Int32,
    Int64,
    Message,
    Nullable,
    Records,
    String,
    Tagged,
    Uuid,
    Versions,
    versions,
)
from lowtide.protocol.types import ZERO_TOPIC_ID


class PartitionProduceData(Message, kw_only=True):
    """One partition's batches. `records` is a view into the frame, valid as long as the frame."""

    index: Int32
    records: Records | None


class TopicProduceData(Message, kw_only=True):
    """A topic by name, from version 13 by id."""

    name: Annotated[String, Versions("0-12")] = ""
    topic_id: Annotated[Uuid, Versions("13+")] = ZERO_TOPIC_ID
    partition_data: list[PartitionProduceData]


@versions("3-13", flexible="9+")
class ProduceRequest(ApiMessage, kw_only=True):
    transactional_id: Annotated[String | None, Versions("3+"), Nullable("3+")] = None
    acks: Int16
    timeout_ms: Int32
    topic_data: list[TopicProduceData]


class BatchIndexAndErrorMessage(Message, kw_only=True):
    """A record that caused its batch to be rejected: its index in the batch, and the reason (KIP-467)."""

    batch_index: Int32
    batch_index_error_message: String | None = None


class PartitionProduceResponse(Message, kw_only=True):
    """The offset of the first record, or an error. `log_append_time_ms` is -1 for CreateTime."""

    index: Int32
    error_code: Int16
    base_offset: Int64
    log_append_time_ms: Annotated[Int64, Versions("2+")] = -1
    log_start_offset: Annotated[Int64, Versions("5+")] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], Versions("8+")] = NO_ROWS
    error_message: Annotated[String | None, Versions("8+"), Nullable("8+")] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, Tagged(0, "10+")] = None


class TopicProduceResponse(Message, kw_only=True):
    """A topic by name, from version 13 by id."""

    name: Annotated[String, Versions("0-12")] = ""
    topic_id: Annotated[Uuid, Versions("13+")] = ZERO_TOPIC_ID
    partition_responses: list[PartitionProduceResponse]


@versions("3-13", flexible="9+")
class ProduceResponse(ApiMessage, kw_only=True):
    responses: list[TopicProduceResponse]
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    node_endpoints: Annotated[list[NodeEndpoint], Tagged(0, "10+")] = msgspec.field(default_factory=list)
