"""DescribeTransactions (key 65): the transactions of a coordinator (KIP-664)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Versions


class DescribeTransactionsRequest(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

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


class DescribeTransactionsResponse(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState]
