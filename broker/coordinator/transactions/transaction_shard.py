"""The transactions of one partition of `__transaction_state`: one coordinator's whole state, and what is asked of it.

Pure: a request, the time and the state give records and answers. A transaction changes by `note` only, which is called
for records, those of a log that is loaded and those that were just appended. While a record about it isn't committed,
other requests get a retriable error.

Guards: markers are sent to partitions (`TransactionPorts.tell`) only when that is committed, and until all have been it
stays as it ended; a producer that another has followed, or whose transaction took too long, can't end or begin one in
its epoch; every open transaction ends.

Source: Kafka's `TransactionCoordinator`, `TransactionStateManager`; KIP-98, KIP-360, KIP-588, KIP-664, KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeAlias

import msgspec

from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.in_transaction import InTransaction, TransactionEnded
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.broker.coordinator.transactions.next_transaction import (
    AskedEnd,
    completed,
    ended,
    identity_after,
    identity_of,
    next_end,
    next_producer,
)
from lowtide.broker.coordinator.transactions.transaction import EPOCH_BUMPS_SINCE, Transaction, from_value
from lowtide.broker.coordinator.transactions.transaction_settings import TransactionSettings
from lowtide.broker.coordinator.transactions.transaction_state import (
    ENDING,
    IDLE,
    TransactionEvent,
    TransactionState,
    may_follow,
    next_state,
)
from lowtide.broker.coordinator.transactions.uncommitted import OnError, TransactionChange, UncommittedTransactions
from lowtide.protocol.coordinator_records import CoordinatorRecord
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.transaction_records import TransactionRecord, encode_transaction
from lowtide.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Offset, ProducerEpoch, ProducerId, TopicPartition

RETRY_MS: Final = 1000
"""After so long what could not be kept is tried again: the end of a transaction that took too long, or its completion."""

TimerKey: TypeAlias = tuple[str, str]
_EXPIRY: Final[TimerKey] = ("expiry", "")

OnIdentity: TypeAlias = Callable[[ErrorCode, ProducerId, ProducerEpoch, Effects], None]
"""Gets the outcome of a request, and the id and epoch with which the producer goes on."""


class TransactionPorts(Protocol):
    """What the state needs of the broker."""

    def take_producer_id(self) -> ProducerId | None:
        """An unused id; None where none is at hand, and it is worth asking again."""
        ...

    def tell(self, transaction: Transaction) -> None:
        """Tell its partitions how it ended, and then `Transactions.plan_completion`. It has some."""
        ...


class Transactions:
    """The transactions of one coordinator's partition."""

    def __init__(self, settings: TransactionSettings, ports: TransactionPorts) -> None:
        self.settings = settings
        self.transactions: dict[str, Transaction] = {}
        self.timers: Timers[TimerKey] = Timers()
        self._ports = ports
        self._uncommitted = UncommittedTransactions()
        self._being_told: set[str] = set()
        """Those whose markers are being sent. A second sending would outlive it, and end what begins after it."""

    # ------------------------------------------------------------------ records
    @property
    def count(self) -> int:
        """Transactional ids that are known."""
        return len(self.transactions)

    def apply(self, change: TransactionRecord | InTransaction | TransactionEnded, offset: Offset) -> None:
        """Take over what a record of the log says that is being loaded.

        Errors: ProtocolError for a state that there isn't, and for a record in a transaction, which is never written
        here.
        """
        self._uncommitted.note(offset)
        if isinstance(change, TransactionEnded):
            return
        if isinstance(change, InTransaction):
            message = "a record about a transaction that is in one itself"
            raise ProtocolError(message)
        if change.value is None:
            self.transactions.pop(change.transactional_id, None)
            return
        try:
            self.transactions[change.transactional_id] = from_value(change.transactional_id, change.value)
        except ValueError as error:
            raise ProtocolError(str(error)) from error

    def note(self, change: TransactionChange, offset: Offset) -> None:
        """Take over what a record says that was just appended."""
        self._uncommitted.note(offset)
        if change.state is None:
            self.transactions.pop(change.transactional_id, None)
        else:
            self.transactions[change.transactional_id] = change.state

    def on_loaded(self, effects: Effects) -> None:
        """All records are applied: what was ending goes on ending, when what we know of it is committed."""
        for transaction in list(self.transactions.values()):
            if transaction.state in ENDING:
                self._keep(transaction, effects, self._tell_later(transaction.transactional_id, None))
            elif transaction.state is TransactionState.ONGOING:
                self.watch(transaction, effects.now_ms, effects.wall_ms)
        self._uncommitted.on_loaded(effects)
        self.timers.schedule(_EXPIRY, effects.now_ms + self.settings.expiry_check_interval_ms)

    def on_unloaded(self, effects: Effects) -> None:
        """Another broker coordinates these now."""
        self.transactions.clear()

    def _keep(self, state: Transaction, effects: Effects, then: OnError) -> None:
        """Ask for the record of a transactional id; `then` gets whether it is committed."""
        self._uncommitted.append(state.transactional_id, state, self.record_of(state, effects.wall_ms), effects, then)

    def record_of(self, state: Transaction, wall_ms: int) -> CoordinatorRecord:
        """The record of what a transactional id becomes now. What it is follows from `note`, when that is appended."""
        before = self.transactions.get(state.transactional_id)
        assert before is None or may_follow(before.state, state.state), (before, state)
        state.updated_ms = wall_ms
        return state.as_record()

    def take(self, state: Transaction, offset: Offset) -> None:
        """As `note`, of a record that was committed with its append: the id was never changing."""
        self._uncommitted.note(offset)
        self.transactions[state.transactional_id] = state

    # ------------------------------------------------------------------ producers
    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: tuple[ProducerId, ProducerEpoch] | None,
        effects: Effects,
        done: OnIdentity,
    ) -> None:
        """Give a producer its id and epoch, which ends what others had; `expected` is what it has itself (KIP-360).

        Errors: INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS, PRODUCER_FENCED,
        COORDINATOR_LOAD_IN_PROGRESS where no producer id is at hand, and those of `append_error`.
        """
        outcome: Transaction | ErrorCode
        if not transactional_id:
            outcome = ErrorCode.INVALID_REQUEST
        elif not 0 < timeout_ms <= self.settings.timeout_max_ms:
            outcome = ErrorCode.INVALID_TRANSACTION_TIMEOUT
        elif self._uncommitted.includes(transactional_id):
            outcome = ErrorCode.CONCURRENT_TRANSACTIONS
        else:
            known = self.transactions.get(transactional_id)
            outcome = next_producer(known, transactional_id, timeout_ms, expected, self._ports.take_producer_id)
        if isinstance(outcome, ErrorCode):
            done(outcome, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, effects)
            return
        state = outcome
        if state.state is TransactionState.ONGOING:
            self._fence(
                state, effects, lambda error, later: done(error or ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1, later)
            )
            return

        def kept(error: ErrorCode, later: Effects) -> None:
            given = (
                (state.producer_id, state.producer_epoch)
                if error == ErrorCode.NONE
                else (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            )
            done(error, *given, later)

        self._keep(state, effects, kept)

    # ------------------------------------------------------------------ partitions
    def _is_changing(self, transactional_id: str) -> bool:
        """Whether a change of a transactional id isn't complete.

        Source: Kafka's `TransactionMetadata.pendingTransitionInProgress`.
        """
        known = self.transactions.get(transactional_id)
        return self._uncommitted.includes(transactional_id) or (known is not None and known.state in ENDING)

    def _check(
        self, transactional_id: str, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> Transaction | ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return transaction if transaction.producer_epoch == producer_epoch else ErrorCode.PRODUCER_FENCED

    def verify(
        self, transactional_id: str, producer_id: ProducerId, producer_epoch: ProducerEpoch, partition: TopicPartition
    ) -> ErrorCode:
        """Whether a partition belongs to the open transaction (KIP-890).

        Errors: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
        TRANSACTION_ABORTABLE.
        """
        found = self._check(transactional_id, producer_id, producer_epoch)
        if isinstance(found, ErrorCode):
            return found
        if found.state in ENDING or self._uncommitted.is_settling:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        is_part = found.state is TransactionState.ONGOING and partition in found.partitions
        return ErrorCode.NONE if is_part else ErrorCode.TRANSACTION_ABORTABLE

    def add_partitions(
        self,
        transactional_id: str,
        identity: tuple[ProducerId, ProducerEpoch],
        partitions: Iterable[TopicPartition],
        client_version: int,
        effects: Effects,
        done: OnError,
    ) -> None:
        """Add partitions to the open transaction, or begin one.

        Errors: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, and those of
        `append_error`.
        """
        state = self.plan_partitions(transactional_id, identity, frozenset(partitions), client_version, effects.wall_ms)
        if isinstance(state, ErrorCode):
            done(state, effects)
            return
        begins = self.transactions[transactional_id].state is not TransactionState.ONGOING

        def kept(error: ErrorCode, later: Effects) -> None:
            if (
                begins and self.transactions.get(transactional_id) is state
            ):  # What took too long to commit is in the log all the same.
                self.watch(state, later.now_ms, later.wall_ms)
            done(error, later)

        self._keep(state, effects, kept)

    def plan_partitions(
        self,
        transactional_id: str,
        identity: tuple[ProducerId, ProducerEpoch],
        added: frozenset[TopicPartition],
        client_version: int,
        wall_ms: int,
    ) -> Transaction | ErrorCode:
        """Return the state that adding partitions leads to, or NONE where they are there.

        Errors: the first four of `add_partitions`.
        """
        # An end that isn't complete comes first: the producer may have its next epoch or id already.
        if self._is_changing(transactional_id):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        found = self._check(transactional_id, *identity)
        if isinstance(found, ErrorCode):
            return found
        begins = found.state is not TransactionState.ONGOING
        if not begins and added <= found.partitions:
            return ErrorCode.NONE
        return msgspec.structs.replace(
            found,
            state=next_state(found.state, TransactionEvent.ADD),
            partitions=found.partitions | added,
            started_ms=wall_ms if begins else found.started_ms,
            client_version=client_version,
        )

    # ------------------------------------------------------------------ ends
    def end(
        self,
        transactional_id: str,
        identity: tuple[ProducerId, ProducerEpoch],
        *,
        is_commit: bool,
        client_version: int,
        effects: Effects,
        done: OnIdentity,
    ) -> None:
        """End a transaction as its producer wants it; answered when that is committed, before the partitions know.

        Errors: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
        INVALID_TXN_STATE, COORDINATOR_LOAD_IN_PROGRESS where no producer id is at hand, and those of `append_error`.
        """
        state = self.plan_end(transactional_id, identity, is_commit=is_commit, client_version=client_version)
        if isinstance(state, ErrorCode):
            done(state, *identity_after(self.transactions.get(transactional_id), state), effects)
            return

        def ended(error: ErrorCode, later: Effects) -> None:
            given = identity_of(state) if error == ErrorCode.NONE else (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            done(error, *given, later)

        self._keep(state, effects, self._tell_later(transactional_id, ended))

    def plan_end(
        self, transactional_id: str, identity: tuple[ProducerId, ProducerEpoch], *, is_commit: bool, client_version: int
    ) -> Transaction | ErrorCode:
        """Return the state that an end leads to, or NONE where it has been reached before.

        Errors: INVALID_REQUEST, and those of `next_end`.
        """
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        known, asked = self.transactions.get(transactional_id), AskedEnd(*identity, is_commit, client_version)
        return next_end(known, asked, self._ports.take_producer_id, is_changing=self._is_changing(transactional_id))

    def _fence(self, known: Transaction, effects: Effects, then: OnError) -> None:
        """Abort an open transaction with an epoch that its producer doesn't have, but may ask for until another producer comes.

        Without an epoch left the next one has another id. Errors: COORDINATOR_LOAD_IN_PROGRESS where none is at hand.
        Source: KIP-588; Kafka's `prepareAbortOrCommit` under `transaction.version` 2.
        """
        state = ended(known, self._ports.take_producer_id, is_commit=False, client_version=EPOCH_BUMPS_SINCE)
        if isinstance(state, ErrorCode):
            then(state, effects)
        else:
            self._keep(state, effects, self._tell_later(known.transactional_id, then))

    def _tell_later(self, name: str, done: OnError | None) -> OnError:
        """When the end is committed: send markers to the partitions, or complete it where there are none."""

        def kept(error: ErrorCode, later: Effects) -> None:
            transaction = self.transactions.get(name)
            if done is not None:
                done(error, later)
            if transaction is None:
                return
            if transaction.state not in ENDING or error != ErrorCode.NONE:
                # What was appended may count all the same, and what was not is due again.
                self.timers.schedule(("retry", name), later.now_ms + RETRY_MS)
            elif transaction.partitions:
                self.tell(transaction)
            else:
                self.timers.cancel(("timeout", name))
                self.complete(completed(transaction), later)

        return kept

    def tell(self, transaction: Transaction) -> None:
        """The end is committed: send markers to its partitions, of which there are some."""
        name = transaction.transactional_id
        self.timers.cancel(("timeout", name))
        if name not in self._being_told:
            self._being_told.add(name)
            self._ports.tell(transaction)

    def plan_completion(
        self, transactional_id: str, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> Transaction | None:
        """Return the state after all markers of the end in this epoch; None where it isn't ending so, or a record of it is on its way."""
        known = self.transactions.get(transactional_id)
        if (
            known is None
            or known.state not in ENDING
            or (known.producer_id, known.producer_epoch) != (producer_id, producer_epoch)
        ):
            return None
        self._being_told.discard(transactional_id)
        return None if self._uncommitted.has_record_of(transactional_id) else completed(known)

    def complete(self, state: Transaction, effects: Effects) -> None:
        """Keep the state after all markers."""

        def kept(error: ErrorCode, later: Effects) -> None:
            if error != ErrorCode.NONE:
                self.timers.schedule(("retry", state.transactional_id), later.now_ms + RETRY_MS)

        self._keep(state, effects, kept)

    # ------------------------------------------------------------------ time
    def watch(self, transaction: Transaction, now_ms: int, wall_ms: int) -> None:
        """End an open transaction when its time is up, in any case that long from now: the wall clock may be wrong, or have been."""
        left_ms = min(transaction.started_ms + transaction.timeout_ms - wall_ms, transaction.timeout_ms)
        self.timers.schedule(("timeout", transaction.transactional_id), now_ms + max(left_ms, 0))

    def on_timer(self, key: TimerKey, effects: Effects) -> None:
        """Something is due."""
        kind, name = key
        if kind == "expiry":
            self.timers.schedule(_EXPIRY, effects.now_ms + self.settings.expiry_check_interval_ms)
            self._expire(effects)
            return
        transaction = self.transactions.get(name)
        if transaction is None:
            return
        if self._uncommitted.includes(name):
            self.timers.schedule(key, effects.now_ms + RETRY_MS)
        elif transaction.state is TransactionState.ONGOING and kind == "timeout":
            self._on_too_old(transaction, effects)
        elif transaction.state is TransactionState.ONGOING and self.timers.deadline_of(("timeout", name)) is None:
            self.watch(transaction, effects.now_ms, effects.wall_ms)
        elif transaction.state in ENDING and kind == "retry" and name not in self._being_told:
            self._keep(transaction, effects, self._tell_later(name, None))

    def _on_too_old(self, transaction: Transaction, effects: Effects) -> None:
        def then(error: ErrorCode, later: Effects) -> None:
            if error != ErrorCode.NONE:
                self.timers.schedule(("timeout", transaction.transactional_id), later.now_ms + RETRY_MS)

        self._fence(transaction, effects, then)

    def _expire(self, effects: Effects) -> None:
        oldest = effects.wall_ms - self.settings.id_expiration_ms
        for name, transaction in list(self.transactions.items()):
            if transaction.state in IDLE and transaction.updated_ms <= oldest and not self._uncommitted.includes(name):
                self._uncommitted.append(name, None, encode_transaction(name, None), effects, _nothing)


def _nothing(_error: ErrorCode, _effects: Effects) -> None:
    """What could not be forgotten now will be another time."""
