"""ListTransactions: v0-v1.

Behaviour: tells the transactional ids that this broker coordinates, with state and producer.

Version notes: v1 looks for transactions that have been open for long.

Errors: COORDINATOR_LOAD_IN_PROGRESS. States that there aren't are named in the answer.

KIPs: 664, 994.
"""

from __future__ import annotations

from lowtide.broker.connection import RequestContext
from lowtide.broker.coordinator.transaction import STATE_NAMES, Transaction
from lowtide.broker.coordinator.transaction_service import TransactionCoordinator
from lowtide.broker.dispatcher import HandlerSpec
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_transactions import ListedTransaction, ListTransactionsRequest, ListTransactionsResponse


def handler(transactions: TransactionCoordinator) -> HandlerSpec:
    """The handler over the transactions of a broker."""

    def handle(request: ListTransactionsRequest, _context: RequestContext) -> ListTransactionsResponse:
        shards = transactions.loaded()
        if isinstance(shards, ErrorCode):
            return ListTransactionsResponse(error_code=shards)
        names = set(STATE_NAMES.values())
        unknown = [state for state in dict.fromkeys(request.state_filters) if state not in names]
        states = [state for state in request.state_filters if state in names]
        rows: list[ListedTransaction] = []
        if states or not request.state_filters:
            now_ms = transactions.broker.clock.wall_ms()
            for shard in shards:
                listed = shard.groups.list(states, request.producer_id_filters, request.duration_filter, now_ms)
                rows.extend(map(_row, listed))
        return ListTransactionsResponse(error_code=ErrorCode.NONE, unknown_state_filters=unknown, transaction_states=rows)

    return HandlerSpec(key=ApiKey.LIST_TRANSACTIONS, handle=handle)


def _row(found: Transaction) -> ListedTransaction:
    return ListedTransaction(
        transactional_id=found.transactional_id, producer_id=found.producer_id, transaction_state=STATE_NAMES[found.state]
    )
