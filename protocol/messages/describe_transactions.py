"""DescribeTransactions (key 65): what a coordinator knows of transactional ids (KIP-664).

Field by field this is Kafka's DescribeTransactionsRequest/Response.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Versions


class DescribeTransactionsRequest(ApiMessage, kw_only=True):
    """Which ones."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    transactional_ids: list[String]


class TopicData(Message, kw_only=True):
    """Partitions that the open transaction writes to."""

    topic: String
    partitions: list[Int32]


class TransactionState(Message, kw_only=True):
    """One transactional id, or why it is left out."""

    error_code: Int16
    transactional_id: String
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = msgspec.field(default_factory=list)


class DescribeTransactionsResponse(ApiMessage, kw_only=True):
    """What is known of each."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState]
