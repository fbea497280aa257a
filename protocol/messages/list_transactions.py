"""ListTransactions (key 66): the transactional ids of one coordinator (KIP-664, KIP-994).

Field by field this is Kafka's ListTransactionsRequest/Response up to version 1; version 2 has patterns of names (KIP-1152).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Versions


class ListTransactionsRequest(ApiMessage, kw_only=True):
    """Which ones: in these states, of these producers, open for longer than this; without a filter, all."""

    VERSIONS: ClassVar = Versions("0-1")
    FLEXIBLE: ClassVar = Versions("0+")

    state_filters: list[String]
    producer_id_filters: list[Int64]
    duration_filter: Annotated[Int64, Versions("1+")] = -1


class ListedTransaction(Message, kw_only=True):
    """One transactional id. Kafka's name for it is TransactionState."""

    transactional_id: String
    producer_id: Int64
    transaction_state: String


class ListTransactionsResponse(ApiMessage, kw_only=True):
    """What was found, and filters that mean nothing here."""

    VERSIONS: ClassVar = Versions("0-1")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32 = 0
    error_code: Int16
    unknown_state_filters: list[String] = msgspec.field(default_factory=list)
    transaction_states: list[ListedTransaction] = msgspec.field(default_factory=list)
