"""ListTransactions (key 66): the transactional ids of one coordinator (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, Nullable, String, Versions, versions


@versions("0-2", flexible="0+")
class ListTransactionsRequest(ApiMessage, kw_only=True):
    """Filters by state, producer, duration and name; without a filter, all."""

    state_filters: list[String]
    producer_id_filters: list[Int64]
    duration_filter: Annotated[Int64, Versions("1+")] = -1
    transactional_id_pattern: Annotated[String | None, Versions("2+"), Nullable("2+")] = None


class ListedTransaction(Message, kw_only=True):
    """Kafka's name is TransactionState."""

    transactional_id: String
    producer_id: Int64
    transaction_state: String


@versions("0-2", flexible="0+")
class ListTransactionsResponse(ApiMessage, kw_only=True):
    """`unknown_state_filters` are filters that this broker does not know."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    unknown_state_filters: list[String] = msgspec.field(default_factory=list)
    transaction_states: list[ListedTransaction] = msgspec.field(default_factory=list)
