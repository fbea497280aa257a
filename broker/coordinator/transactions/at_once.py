"""Changes of transactions whose record is committed with its append: what follows from them is known in the same turn.

With one replica that is every change of nearly every transaction. What a change leads to is decided by the functions
that decide it for
`Transactions.add_partitions`, `end` and `complete` as well; here nothing is kept for a later turn. Where a record may have to wait nothing
is changed, and the caller takes the way of those.

Guards: nothing is said of a record before it is in the log of the leadership in which it was decided.
"""

from __future__ import annotations

from typing import Protocol

from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.coordinator.transactions.next_transaction import identity_after, identity_of
from lowtide.broker.coordinator.transactions.transaction import Transaction
from lowtide.broker.coordinator.transactions.transaction_shard import Transactions
from lowtide.broker.coordinator.transactions.transaction_state import TransactionState
from lowtide.protocol.coordinator_records import CoordinatorRecord
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import Offset, ProducerEpoch, ProducerId, TopicPartition
from lowtide.runtime.clock import Clock


class Keeper(Protocol):
    """The runtime of the coordinator, as far as it matters here."""

    def keep(self, shard: Shard[Transactions], records: list[CoordinatorRecord], wall_ms: int) -> Offset | None:
        """Append records that are committed with that; None where they aren't."""
        ...

    def set_timer(self, shard: Shard[Transactions]) -> None:
        """A deadline was set."""
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
        identity: tuple[ProducerId, ProducerEpoch],
        partitions: frozenset[TopicPartition],
        client_version: int,
    ) -> ErrorCode | None:
        """`Transactions.add_partitions`, of which the outcome is known now; None where it isn't."""
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
        identity: tuple[ProducerId, ProducerEpoch],
        *,
        is_commit: bool,
        client_version: int,
    ) -> tuple[ErrorCode, ProducerId, ProducerEpoch] | None:
        """`Transactions.end`, of which the outcome is known now, with the identity for the answer; None where it isn't."""
        if not shard.commits_at_once:
            return None
        transactions = shard.state
        state = transactions.plan_end(transactional_id, identity, is_commit=is_commit, client_version=client_version)
        if isinstance(state, ErrorCode):
            return state, *identity_after(transactions.transactions.get(transactional_id), state)
        if not state.partitions or not self._take(shard, state, self._clock.wall_ms()):
            return None
        transactions.tell(state)
        return ErrorCode.NONE, *identity_of(state)

    def complete(self, shard: Shard[Transactions], state: Transaction) -> bool:
        """`Transactions.complete`; returns whether that is done."""
        return shard.commits_at_once and self._take(shard, state, self._clock.wall_ms())

    def _take(self, shard: Shard[Transactions], state: Transaction, wall_ms: int) -> bool:
        offset = self._keeper.keep(shard, [shard.state.record_of(state, wall_ms)], wall_ms)
        if offset is None:
            return False
        shard.state.take(state, offset)
        return True
