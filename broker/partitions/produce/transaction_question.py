"""The question to a transaction's coordinator before one of its batches is appended.

The answer (`coordinator/transactions/transaction_verifier`) ensures that the end of the transaction reaches every
partition with its records. Source: KIP-890; Kafka's `AddPartitionsToTxnManager`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import ProducerEpoch, ProducerId, TopicPartition

if TYPE_CHECKING:
    from lowtide.storage.log.producers.producer_state import ProducerStateManager

_RETRIABLE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

Answered: TypeAlias = Callable[[ErrorCode], None]


class AskedTransaction(msgspec.Struct, frozen=True):
    """The transaction of questions that are sent together. With `adds` the coordinator adds missing partitions."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    adds: bool


class Question(msgspec.Struct, frozen=True):
    """A question about one partition of one transaction."""

    transaction: AskedTransaction
    partition: TopicPartition


class Verifier(Protocol):
    """Asks the coordinator of a transaction."""

    @property
    def is_wanted(self) -> bool:
        """Whether the configuration requires verification."""
        ...

    def answer_now(self, question: Question) -> ErrorCode | None:
        """Returns the answer if it is known at once."""
        ...

    def ask(self, question: Question, renew: Callable[[], None], answered: Answered) -> None:
        """Calls `answered` later. `renew` is called before every further attempt."""
        ...


def needs_no_question(
    state: ProducerStateManager, verifier: Verifier, producer: tuple[ProducerId, ProducerEpoch], *, adds: bool
) -> bool:
    """Returns whether a batch needs no verification: its transaction is open in the log, or verification is off."""
    return state.is_in_transaction(*producer) or not (adds or verifier.is_wanted)


def error_for_producer(error: ErrorCode, *, knows_abortable: bool, adds: bool) -> ErrorCode:
    """Returns the producer's error for an answer. Retriable ones become an error that old clients know.

    Source: `AddPartitionsToTxnManager`, `ReplicaManager.maybeSendPartitionsToTransactionCoordinator`.
    """
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    if error == ErrorCode.CONCURRENT_TRANSACTIONS and adds:
        return error
    return ErrorCode.NOT_ENOUGH_REPLICAS if error in _RETRIABLE else error
