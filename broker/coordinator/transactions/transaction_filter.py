"""Which transactions ListTransactions asks for.

Source: Kafka's `TransactionStateManager.listTransactionStates`; KIP-664, KIP-994.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

import msgspec

from lowtide.broker.coordinator.transactions.transaction import Transaction
from lowtide.broker.coordinator.transactions.transaction_state import STATE_NAMES
from lowtide.protocol.types import ProducerId

LISTED_A_STEP: Final = 500
"""Some two tenths of a millisecond's work."""


class TransactionFilter(msgspec.Struct, frozen=True):
    """States by their names and producers, of which an empty set means all, and how long a transaction is open; negative: any."""

    states: frozenset[str]
    producer_ids: frozenset[ProducerId]
    duration_ms: int

    def matches(self, transaction: Transaction, wall_ms: int) -> bool:
        """Whether a transaction is one of these at a wall-clock time."""
        return (
            (not self.states or STATE_NAMES[transaction.state] in self.states)
            and (not self.producer_ids or transaction.producer_id in self.producer_ids)
            and (
                self.duration_ms < 0
                or (transaction.started_ms >= 0 and wall_ms - transaction.started_ms > self.duration_ms)
            )
        )

    def select(self, transactions: Iterable[Transaction], wall_ms: int) -> Generator[None, None, list[Transaction]]:
        """Those that match, in their order; in steps, for `broker/slices.py`. `transactions` may change meanwhile."""
        found = []
        for number, transaction in enumerate(list(transactions), 1):
            if self.matches(transaction, wall_ms):
                found.append(transaction)
            if number % LISTED_A_STEP == 0:
                yield
        return found
