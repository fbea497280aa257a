"""ListTransactions: v0-v2.

Behaviour: lists the transactional ids that this broker coordinates, with state and producer, in slices.

Version notes: v1 filters by the age of open transactions, v2 by a pattern in RE2 syntax that matches whole names; an
empty pattern matches all.

Errors: COORDINATOR_LOAD_IN_PROGRESS, INVALID_REGULAR_EXPRESSION. Unknown states are listed in the response.

KIPs: 664, 994, 1152.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

import msgspec

from lowtide.broker.coordinator.modern.subscription_patterns import NamePattern, PatternError
from lowtide.broker.coordinator.transactions.transaction import Transaction
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.coordinator.transactions.transaction_state import STATE_NAMES
from lowtide.broker.guards import transactions as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer, Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_transactions import (
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from lowtide.protocol.types import ProducerId

STATES: Final = frozenset(STATE_NAMES.values()) | {"PrepareEpochFence"}
"""The valid names of states. No transaction is ever in the last one, as in Kafka."""

IDS_A_STEP: Final = 200
"""A fifth of a millisecond's work."""

LISTED_A_STEP: Final = 500
"""Some two tenths of a millisecond of work."""

LONG_NAME: Final = 500
"""Longer ids are matched by a worker: one of 32,767 letters would block the loop for a tenth of a second. The package
that matches them releases the interpreter."""


class TransactionFilter(msgspec.Struct, frozen=True):
    """Names of states and producer ids, where an empty set means all, and a minimum age; a negative one means any.

    Source: Kafka's `TransactionStateManager.listTransactionStates`; KIP-664, KIP-994.
    """

    states: frozenset[str]
    producer_ids: frozenset[ProducerId]
    duration_ms: int

    def matches(self, transaction: Transaction, wall_ms: int) -> bool:
        """Returns whether a transaction matches at a wall-clock time."""
        return (
            (not self.states or STATE_NAMES[transaction.state] in self.states)
            and (not self.producer_ids or transaction.producer_id in self.producer_ids)
            and (
                self.duration_ms < 0
                or (transaction.started_ms >= 0 and wall_ms - transaction.started_ms > self.duration_ms)
            )
        )

    def select(self, transactions: Iterable[Transaction], wall_ms: int) -> Generator[None, None, list[Transaction]]:
        """Returns the transactions that match, in steps. `transactions` may change meanwhile."""
        found = []
        for number, transaction in enumerate(list(transactions), 1):
            if self.matches(transaction, wall_ms):
                found.append(transaction)
            if number % LISTED_A_STEP == 0:
                yield
        return found


def handler(transactions: TransactionCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def handle(request: ListTransactionsRequest, _context: RequestContext) -> Answer[ListTransactionsResponse]:
        shards = transactions.loaded()
        if isinstance(shards, ErrorCode):
            return ListTransactionsResponse(error_code=shards)
        unknown = [state for state in dict.fromkeys(request.state_filters) if state not in STATES]
        states = [state for state in request.state_filters if state in STATES]
        try:
            pattern = NamePattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
        except PatternError:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        response = ListTransactionsResponse(error_code=ErrorCode.NONE, unknown_state_filters=unknown)
        long: list[Transaction] = []
        if request.state_filters and not states:
            return response

        wanted = TransactionFilter(frozenset(states), frozenset(request.producer_id_filters), request.duration_filter)

        def work() -> Generator[None, None, ListTransactionsResponse]:
            now_ms = transactions.broker.clock.wall_ms()
            for shard in shards:
                listed = yield from wanted.select(shard.state.transactions.values(), now_ms)
                if pattern is not None:
                    long.extend(found for found in listed if len(found.transactional_id) > LONG_NAME)
                    listed = [found for found in listed if len(found.transactional_id) <= LONG_NAME]
                    matching = set((yield from pattern.matching([found.transactional_id for found in listed])))
                    listed = [found for found in listed if found.transactional_id in matching]
                for number, found in enumerate(listed, 1):
                    response.transaction_states.append(_row(found))
                    if number % IDS_A_STEP == 0:
                        yield
                if shard.unloaded:
                    response.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                yield
            return response

        pending: Pending[ListTransactionsResponse] = Pending()

        def on_matched(matching: list[Transaction] | BaseException) -> None:
            if isinstance(matching, BaseException):
                pending.fail()
                raise matching
            response.transaction_states.extend(map(_row, matching))
            pending.complete(response)

        def on_listed(listed: ListTransactionsResponse | None) -> None:
            if listed is None:
                pending.fail()
            elif pattern is None or not long:
                pending.complete(listed)
            else:
                matches = pattern.matches
                transactions.broker.worker.submit(
                    lambda: [found for found in long if matches(found.transactional_id)], on_matched
                )

        answer = transactions.broker.turns.answer(work())
        if isinstance(answer, Pending):
            pending.on_abandoned = answer.abandon
            answer.listen(on_listed)
        else:
            on_listed(answer)
        return pending

    return HandlerSpec(key=ApiKey.LIST_TRANSACTIONS, guard=guards.list_transactions, handle=handle)


def _row(found: Transaction) -> ListedTransaction:
    return ListedTransaction(
        transactional_id=found.transactional_id,
        producer_id=found.producer_id,
        transaction_state=STATE_NAMES[found.state],
    )
