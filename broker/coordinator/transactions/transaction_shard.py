"""The transactions of one partition of `__transaction_state`, and the requests about them.

Pure: a request, the time and the state give records and answers. A transaction changes only by records. While a record
about it isn't committed, other requests get a retriable error.

Guards: markers are sent (`TransactionPorts.send_markers`) only after the end is committed, and the end stays until all
are written; a producer with a successor, or whose transaction timed out, can neither end nor begin one in its epoch;
every open transaction ends.

Source: Kafka's `TransactionCoordinator`, `TransactionStateManager`; KIP-98, KIP-360, KIP-588, KIP-664, KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeAlias

from lowtide.broker.coordinator.counted_ids import CountedIds
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.in_transaction import EndMarker, InTransaction
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.broker.coordinator.transactions.next_transaction import (
    NO_IDENTITY,
    EndRequest,
    Identity,
    completed,
    ended,
    identity_after,
    identity_of,
    next_end,
    next_partitions,
    next_producer,
)
from lowtide.broker.coordinator.transactions.transaction import EPOCH_BUMPS_SINCE, Transaction, from_value
from lowtide.broker.coordinator.transactions.transaction_settings import TransactionSettings
from lowtide.broker.coordinator.transactions.transaction_state import (
    ENDING,
    FOLLOWS,
    IDLE,
    TransactionState,
)
from lowtide.broker.coordinator.transactions.uncommitted import OnError, TransactionChange, UncommittedTransactions
from lowtide.protocol.errors import NONE, ErrorCode, ProtocolError
from lowtide.protocol.transaction_records import TransactionRecord, encode_transaction
from lowtide.protocol.types import Offset, ProducerEpoch, ProducerId, TopicPartition

RETRY_MS: Final = 1000
"""The delay before a failed record is tried again: a timed-out transaction's end, or a completion."""

TimerKey: TypeAlias = tuple[str, str]
_EXPIRY: Final[TimerKey] = ("expiry", "")

OnIdentity: TypeAlias = Callable[[ErrorCode, ProducerId, ProducerEpoch, Effects], None]
"""Called with the outcome of a request and the producer's next id and epoch."""


class TransactionPorts(Protocol):
    """What the state needs of the broker."""

    def take_producer_id(self) -> ProducerId | None:
        """Returns an unused producer id; None if none is available now."""

    def send_markers(self, transaction: Transaction) -> None:
        """Sends markers to the transaction's partitions, then calls `Transactions.on_all_marked`."""


class Transactions:
    """The transactions of one partition of the topic."""

    def __init__(self, settings: TransactionSettings, ports: TransactionPorts) -> None:
        self.settings = settings
        self.transactions: CountedIds[Transaction] = CountedIds()
        self.timers: Timers[TimerKey] = Timers()
        self._ports = ports
        self._uncommitted = UncommittedTransactions()
        self._sending_markers: set[str] = set()
        """The ids whose markers are being sent. A second sending could end the next transaction."""

    # ------------------------------------------------------------------ records
    @property
    def count(self) -> int:
        """The number of transactional ids."""
        return len(self.transactions)

    def apply(self, change: TransactionRecord | InTransaction | EndMarker, offset: Offset) -> None:
        """Applies a record of a log that is being loaded.

        Errors: ProtocolError for an unknown state, and for a record in a transaction, which is never written here.
        """
        self._uncommitted.note(offset)
        if isinstance(change, EndMarker):
            return
        if isinstance(change, InTransaction):
            message = "a record about a transaction that is in one itself"
            raise ProtocolError(message)
        if change.value is None:
            self.transactions.discard(change.transactional_id)
            return
        try:
            self.transactions[change.transactional_id] = from_value(change.transactional_id, change.value)
        except ValueError as error:
            raise ProtocolError(str(error)) from error

    def note(self, change: TransactionChange, offset: Offset) -> None:
        """Applies a record that was just appended."""
        self._uncommitted.note(offset)
        if change.state is None:
            self.transactions.discard(change.transactional_id)
        else:
            self.transactions[change.transactional_id] = change.state

    def on_loaded(self, effects: Effects) -> None:
        """Continues with transactions that are ending or open, once what was loaded is committed."""
        for transaction in list(self.transactions.values()):
            if transaction.state in ENDING:
                self._keep(transaction, effects, self._when_ended(transaction.transactional_id, None))
            elif transaction.state is TransactionState.ONGOING:
                self._watch(transaction, effects)
        self._uncommitted.on_loaded(effects)
        self.timers.schedule(_EXPIRY, effects.now_ms + self.settings.expiry_check_interval_ms)

    def on_unloaded(self, effects: Effects) -> None:
        """Drops all transactions: another broker coordinates them."""
        self.transactions.clear()

    def _keep(self, state: Transaction, effects: Effects, then: OnError) -> None:
        """Requests the record of a transactional id; `then` gets whether it is committed."""
        before = self.transactions.get(state.transactional_id)
        assert before is None or (before.state, state.state) in FOLLOWS, (before, state)
        state.updated_ms = effects.wall_ms
        self._uncommitted.append(state.transactional_id, state, state.as_record(), effects, then)

    # ------------------------------------------------------------------ producers
    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Identity | None,
        effects: Effects,
        done: OnIdentity,
    ) -> None:
        """Gives a producer its id and epoch, and ends other producers' transactions.

        `expected` is the producer's own identity (KIP-360). Errors: INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT,
        CONCURRENT_TRANSACTIONS, PRODUCER_FENCED, COORDINATOR_LOAD_IN_PROGRESS if no producer id is available, and those
        of `append_error`.
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
            done(outcome, *NO_IDENTITY, effects)
            return
        state = outcome
        if state.state is TransactionState.ONGOING:
            concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
            self._fence(state, effects, lambda error, later: done(error or concurrent, *NO_IDENTITY, later))
            return

        def kept(error: ErrorCode, later: Effects) -> None:
            identity = (state.producer_id, state.producer_epoch) if error == NONE else NO_IDENTITY
            done(error, *identity, later)

        self._keep(state, effects, kept)

    # ------------------------------------------------------------------ partitions
    def _is_changing(self, transactional_id: str) -> bool:
        """Returns whether a change is incomplete. Source: `TransactionMetadata.pendingTransitionInProgress`."""
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
        """Checks that a partition belongs to the open transaction (KIP-890).

        Errors: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
        TRANSACTION_ABORTABLE.
        """
        found = self._check(transactional_id, producer_id, producer_epoch)
        if isinstance(found, ErrorCode):
            return found
        if found.state in ENDING or self._uncommitted.is_settling:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        is_part = found.state is TransactionState.ONGOING and partition in found.partitions
        return NONE if is_part else ErrorCode.TRANSACTION_ABORTABLE

    def add_partitions(
        self,
        transactional_id: str,
        identity: Identity,
        partitions: Iterable[TopicPartition],
        client_version: int,
        effects: Effects,
        done: OnError,
    ) -> None:
        """Adds partitions to the open transaction, or begins one.

        Errors: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, and those of
        `append_error`.
        """
        state: Transaction | ErrorCode = ErrorCode.CONCURRENT_TRANSACTIONS
        # An incomplete end is checked first: the producer may already have its next epoch or id.
        if not self._is_changing(transactional_id):
            state = self._check(transactional_id, *identity)
        if isinstance(state, Transaction):
            state = next_partitions(state, frozenset(partitions), client_version, effects.wall_ms)
        if isinstance(state, ErrorCode):
            done(state, effects)
            return
        begins = self.transactions[transactional_id].state is not TransactionState.ONGOING

        def kept(error: ErrorCode, later: Effects) -> None:
            if begins and self.transactions.get(transactional_id) is state:  # Also after a timeout: the log has it.
                self._watch(state, later)
            done(error, later)

        self._keep(state, effects, kept)

    # ------------------------------------------------------------------ ends
    def end(
        self,
        transactional_id: str,
        identity: Identity,
        *,
        is_commit: bool,
        client_version: int,
        effects: Effects,
        done: OnIdentity,
    ) -> None:
        """Ends a transaction for its producer. Answers when the end is committed, before the markers are written.

        Errors: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
        INVALID_TXN_STATE, COORDINATOR_LOAD_IN_PROGRESS if no producer id is available, and those of `append_error`.
        """
        known = self.transactions.get(transactional_id)
        state: Transaction | ErrorCode = ErrorCode.INVALID_REQUEST
        if transactional_id:
            asked, is_changing = EndRequest(*identity, is_commit, client_version), self._is_changing(transactional_id)
            state = next_end(known, asked, self._ports.take_producer_id, is_changing=is_changing)
        if isinstance(state, ErrorCode):
            done(state, *identity_after(known, state), effects)
            return

        def ended(error: ErrorCode, later: Effects) -> None:
            done(error, *(identity_of(state) if error == NONE else NO_IDENTITY), later)

        self._keep(state, effects, self._when_ended(transactional_id, ended))

    def _fence(self, known: Transaction, effects: Effects, then: OnError) -> None:
        """Aborts an open transaction with a new epoch, which its producer may ask for until another producer comes.

        Errors: COORDINATOR_LOAD_IN_PROGRESS if another id is needed and none is available. Source: KIP-588;
        `prepareAbortOrCommit`.
        """
        state = ended(known, self._ports.take_producer_id, is_commit=False, client_version=EPOCH_BUMPS_SINCE)
        if isinstance(state, ErrorCode):
            then(state, effects)
        else:
            self._keep(state, effects, self._when_ended(known.transactional_id, then))

    def _when_ended(self, name: str, done: OnError | None) -> OnError:
        """Returns what follows a committed end: sends the markers, or completes it if there are no partitions."""

        def kept(error: ErrorCode, later: Effects) -> None:
            transaction = self.transactions.get(name)
            if done is not None:
                done(error, later)
            if transaction is None:
                return
            if transaction.state not in ENDING or error != NONE:
                # The record may be valid all the same, or has to be written again.
                self.timers.schedule(("retry", name), later.now_ms + RETRY_MS)
            else:
                self.timers.cancel(("timeout", name))
                if not transaction.partitions:
                    self._complete(transaction, later)
                elif name not in self._sending_markers:
                    self._sending_markers.add(name)
                    self._ports.send_markers(transaction)

        return kept

    def on_all_marked(self, transactional_id: str, identity: Identity, effects: Effects) -> None:
        """Records that all partitions have the marker of an end.

        Does nothing if the transaction isn't ending with this id and epoch, or has an uncommitted record.
        """
        known = self.transactions.get(transactional_id)
        if known is None or known.state not in ENDING or (known.producer_id, known.producer_epoch) != identity:
            return
        self._sending_markers.discard(transactional_id)
        if not self._uncommitted.has_record_of(transactional_id):
            self._complete(known, effects)

    def _complete(self, transaction: Transaction, effects: Effects) -> None:
        def kept(error: ErrorCode, later: Effects) -> None:
            if error != NONE:
                self.timers.schedule(("retry", transaction.transactional_id), later.now_ms + RETRY_MS)

        self._keep(completed(transaction), effects, kept)

    # ------------------------------------------------------------------ time
    def _watch(self, transaction: Transaction, effects: Effects) -> None:
        """Ends an open transaction when its time is up, at most its timeout from now: the wall clock may be wrong."""
        left_ms = min(transaction.started_ms + transaction.timeout_ms - effects.wall_ms, transaction.timeout_ms)
        self.timers.schedule(("timeout", transaction.transactional_id), effects.now_ms + max(left_ms, 0))

    def on_timer(self, key: TimerKey, effects: Effects) -> None:
        """Handles a deadline."""
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
            self._watch(transaction, effects)
        elif transaction.state in ENDING and kind == "retry" and name not in self._sending_markers:
            self._keep(transaction, effects, self._when_ended(name, None))

    def _on_too_old(self, transaction: Transaction, effects: Effects) -> None:
        def then(error: ErrorCode, later: Effects) -> None:
            if error != NONE:
                self.timers.schedule(("timeout", transaction.transactional_id), later.now_ms + RETRY_MS)

        self._fence(transaction, effects, then)

    def _expire(self, effects: Effects) -> None:
        oldest = effects.wall_ms - self.settings.id_expiration_ms
        for name, transaction in list(self.transactions.items()):
            if transaction.state in IDLE and transaction.updated_ms <= oldest and not self._uncommitted.includes(name):
                # An id that can't be removed now is removed by a later check.
                self._uncommitted.append(name, None, encode_transaction(name, None), effects, lambda *_: None)
