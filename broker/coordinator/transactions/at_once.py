"""Changes of transactions whose record is committed by its append, so that the outcome is known in the same turn.

With one replica these are nearly all changes. The decisions are those of `Transactions.add_partitions`, `end` and
`complete`; here nothing waits for a later turn. If a record may have to wait, nothing is changed, and the caller uses
these.

Guards: nothing is answered about a record before it is in the log of the leadership in which it was decided.
"""

from __future__ import annotations

from typing import Protocol

from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.coordinator.transactions.next_transaction import Identity, identity_after, identity_of
from lowtide.broker.coordinator.transactions.transaction import Transaction
from lowtide.broker.coordinator.transactions.transaction_shard import Transactions
from lowtide.broker.coordinator.transactions.transaction_state import TransactionState
from lowtide.broker.coordinator.transactions.uncommitted import TransactionChange
from lowtide.protocol.coordinator_records import CoordinatorRecord
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import Offset, ProducerEpoch, ProducerId, TopicPartition
from lowtide.runtime.clock import Clock


class Keeper(Protocol):
    """The coordinator's runtime, as far as it is needed here."""

    def keep(self, shard: Shard[Transactions], records: list[CoordinatorRecord], wall_ms: int) -> Offset | None:
        """Appends records that are committed at once; returns None if they aren't."""
        ...

    def set_timer(self, shard: Shard[Transactions]) -> None:
        """Takes over a new deadline."""
        ...


class AtOnce:
    """The changes of one broker's transactions."""

    def __init__(self, keeper: Keeper, clock: Clock) -> None:
        self._keeper = keeper
        self._clock = clock

    def add(
        self,
        shard: Shard[Transactions],
        transactional_id: str,
        identity: Identity,
        partitions: frozenset[TopicPartition],
        client_version: int,
    ) -> ErrorCode | None:
        """As `Transactions.add_partitions`. Returns the outcome; None if it isn't known now."""
        if not shard.commits_at_once:
            return None
        transactions, wall_ms = shard.state, self._clock.wall_ms()
        state = transactions.plan_partitions(transactional_id, identity, partitions, client_version, wall_ms)
        if isinstance(state, ErrorCode):
            return state
        begins = transactions.transactions[transactional_id].state is not TransactionState.ONGOING
        if not self._take(shard, state, wall_ms):
            return None
        if begins:
            transactions.watch(state, self._clock.monotonic_ms(), wall_ms)
            self._keeper.set_timer(shard)
        return ErrorCode.NONE

    def end(
        self,
        shard: Shard[Transactions],
        transactional_id: str,
        identity: Identity,
        *,
        is_commit: bool,
        client_version: int,
    ) -> tuple[ErrorCode, ProducerId, ProducerEpoch] | None:
        """As `Transactions.end`.

        Returns the outcome and the producer's next identity; None if they aren't known now.
        """
        if not shard.commits_at_once:
            return None
        transactions = shard.state
        state = transactions.plan_end(transactional_id, identity, is_commit=is_commit, client_version=client_version)
        if isinstance(state, ErrorCode):
            return state, *identity_after(transactions.transactions.get(transactional_id), state)
        if not state.partitions or not self._take(shard, state, self._clock.wall_ms()):
            return None
        transactions.send_markers(state)
        return ErrorCode.NONE, *identity_of(state)

    def complete(self, shard: Shard[Transactions], state: Transaction) -> bool:
        """As `Transactions.complete`. Returns whether that is done."""
        return shard.commits_at_once and self._take(shard, state, self._clock.wall_ms())

    def _take(self, shard: Shard[Transactions], state: Transaction, wall_ms: int) -> bool:
        offset = self._keeper.keep(shard, [shard.state.record_of(state, wall_ms)], wall_ms)
        if offset is None:
            return False
        shard.state.note(TransactionChange(state.transactional_id, state), offset)
        return True
