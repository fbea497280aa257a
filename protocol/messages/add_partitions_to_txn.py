"""AddPartitionsToTxn (key 24): adds partitions to a transaction (KIP-98), or verifies that they belong to it (KIP-890).

Up to version 3 a producer sends it for its own transaction; from version 4 brokers send it for many.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Int64, Message, String, Versions, versions


class AddPartitionsToTxnTopic(Message, kw_only=True):
    name: String
    partitions: list[Int32]


class AddPartitionsToTxnTransaction(Message, kw_only=True):
    """With `verify_only` nothing is added."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    verify_only: Bool = False
    topics: list[AddPartitionsToTxnTopic]


@versions("0-5", flexible="3+")
class AddPartitionsToTxnRequest(ApiMessage, kw_only=True):
    transactions: Annotated[list[AddPartitionsToTxnTransaction], Versions("4+")] = msgspec.field(default_factory=list)
    v3_and_below_transactional_id: Annotated[String, Versions("0-3")] = ""
    v3_and_below_producer_id: Annotated[Int64, Versions("0-3")] = 0
    v3_and_below_producer_epoch: Annotated[Int16, Versions("0-3")] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], Versions("0-3")] = msgspec.field(default_factory=list)


class AddPartitionsToTxnPartitionResult(Message, kw_only=True):
    partition_index: Int32
    partition_error_code: Int16


class AddPartitionsToTxnTopicResult(Message, kw_only=True):
    name: String
    results_by_partition: list[AddPartitionsToTxnPartitionResult]


class AddPartitionsToTxnResult(Message, kw_only=True):
    transactional_id: String
    topic_results: list[AddPartitionsToTxnTopicResult]


@versions("0-5", flexible="3+")
class AddPartitionsToTxnResponse(ApiMessage, kw_only=True):
    """`error_code` applies to the whole request."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Versions("4+")] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], Versions("4+")] = msgspec.field(
        default_factory=list
    )
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], Versions("0-3")] = msgspec.field(
        default_factory=list
    )
