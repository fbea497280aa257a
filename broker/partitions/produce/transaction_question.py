"""What is asked about a transaction before a batch of it is appended, and what its producer is answered.

The coordinator answers (`coordinator/transactions/transaction_verifier`): so no record gets into a partition that the
end of its transaction wouldn't reach. Source: KIP-890; Kafka's `AddPartitionsToTxnManager`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import ProducerEpoch, ProducerId, TopicPartition

if TYPE_CHECKING:
    from lowtide.storage.log.producers.producer_state import ProducerStateManager

_COMES_AGAIN: Final = frozenset(
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
    """What questions have in common that go out together.

    `adds`: partitions are to be added, where else they must have been.
    """

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    adds: bool


class Question(msgspec.Struct, frozen=True):
    """About one partition of one transaction."""

    transaction: AskedTransaction
    partition: TopicPartition


class Verifier(Protocol):
    """Asks the coordinator of a transaction."""

    @property
    def is_wanted(self) -> bool:
        """Whether the configuration asks for it."""
        ...

    def answer_now(self, question: Question) -> ErrorCode | None:
        """The answer, if it can be given at once."""
        ...

    def ask(self, question: Question, renew: Callable[[], None], answered: Answered) -> None:
        """Have the answer, later. `renew` is called before every further attempt."""
        ...


def needs_no_question(
    state: ProducerStateManager, verifier: Verifier, producer: tuple[ProducerId, ProducerEpoch], *, adds: bool
) -> bool:
    """Whether a batch may be appended as far as its transaction goes: it is open in that log, or nothing is to be asked."""
    return state.is_in_transaction(*producer) or not (adds or verifier.is_wanted)


def told_to_producer(error: ErrorCode, *, knows_abortable: bool, adds: bool) -> ErrorCode:
    """What a producer gets for an answer: what it may try again is named by an error that old clients know.

    Source: `AddPartitionsToTxnManager`, `ReplicaManager.maybeSendPartitionsToTransactionCoordinator`.
    """
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    if error == ErrorCode.CONCURRENT_TRANSACTIONS and adds:
        return error
    return ErrorCode.NOT_ENOUGH_REPLICAS if error in _COMES_AGAIN else error
