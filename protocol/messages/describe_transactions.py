"""DescribeTransactions (key 65): the transactions of a coordinator (KIP-664)."""

from __future__ import annotations

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, versions


@versions("0", flexible="0+")
class DescribeTransactionsRequest(ApiMessage, kw_only=True):
    transactional_ids: list[String]


class TopicData(Message, kw_only=True):
    """Partitions in the ongoing transaction."""

    topic: String
    partitions: list[Int32]


class TransactionState(Message, kw_only=True):
    error_code: Int16
    transactional_id: String
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = msgspec.field(default_factory=list)


@versions("0", flexible="0+")
class DescribeTransactionsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState]
