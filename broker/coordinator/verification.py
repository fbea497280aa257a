"""Asks the coordinator of a transaction whether it knows a partition that is about to be written to, or has it added (KIP-890).

So no record gets into a partition that the end of its transaction wouldn't reach. The coordinator may be this broker, which then answers
at once, or another one.

Source: KIP-890, Kafka's `AddPartitionsToTxnManager`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from lowtide.broker.coordinator.effects import Effects, append_error
from lowtide.broker.coordinator.transaction import EPOCH_BUMPS_SINCE
from lowtide.broker.coordinator.transaction_service import VERIFICATION_PURPOSE, TransactionCoordinator
from lowtide.broker.peer_client import PeerClients, PeerError
from lowtide.broker.pending import Pending
from lowtide.metadata.broker_image import BrokerImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from lowtide.protocol.types import ProducerEpoch, ProducerId, TopicPartition

TIMEOUT_MS: Final = 30_000
_VERSION: Final = 5

RETRIES: Final = 10
RETRY_S: Final = 0.02
"""So often, and after so long, it is asked again whether a transaction may begin while the one before it is ending: Kafka's
`add.partitions.to.txn.retry.backoff.ms`."""

_COMES_AGAIN: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Question(msgspec.Struct, frozen=True):
    """About one partition of one transaction. `adds`: it is to be added, where else it must have been."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partition: TopicPartition
    adds: bool


Answered = Callable[[ErrorCode], None]


class TransactionVerifier:
    """See the module."""

    def __init__(self, transactions: TransactionCoordinator, peers: PeerClients, loop: asyncio.AbstractEventLoop) -> None:
        self._transactions = transactions
        self._peers = peers
        self._loop = loop

    @property
    def is_wanted(self) -> bool:
        """Whether the configuration asks for it."""
        return self._transactions.settings.verifies

    def answer_now(self, question: Question) -> ErrorCode | None:
        """The answer, if it can be given at once: this broker is the coordinator, and nothing has to be kept."""
        coordinator = self._transactions.topic.coordinator_of(question.transactional_id)
        if question.adds or isinstance(coordinator, ErrorCode) or coordinator.broker_id != self._transactions.broker.metadata.broker_id:
            return None
        shard = self._transactions.find(question.transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
        return shard.groups.verify(question.transactional_id, question.producer_id, question.producer_epoch, question.partition)

    def ask(self, question: Question, answered: Answered, *, retries: int = RETRIES) -> None:
        """Have the answer, within this call or later.

        Errors: those of `Transactions.verify` or `Transactions.add_partitions`, COORDINATOR_NOT_AVAILABLE, NETWORK_EXCEPTION.
        """
        if retries and question.adds:
            answered = partial(self._on_added, question, answered, retries)
        coordinator = self._transactions.topic.coordinator_of(question.transactional_id)
        if isinstance(coordinator, ErrorCode):
            answered(coordinator)
        elif coordinator.broker_id != self._transactions.broker.metadata.broker_id:
            name = f"ask broker {coordinator.broker_id} about a transaction"
            self._transactions.broker.tasks.spawn(self._ask(coordinator, question, answered), name=name)
        elif question.adds:
            self._add(question, answered)
        else:
            error = self.answer_now(question)
            answered(ErrorCode.NOT_COORDINATOR if error is None else error)

    def _on_added(self, question: Question, answered: Answered, retries: int, error: ErrorCode) -> None:
        if error == ErrorCode.CONCURRENT_TRANSACTIONS:
            self._loop.call_later(RETRY_S, partial(self.ask, question, answered, retries=retries - 1))
        else:
            answered(error)

    def _add(self, question: Question, answered: Answered) -> None:
        shard = self._transactions.find(question.transactional_id)
        if isinstance(shard, ErrorCode):
            answered(shard)
            return
        identity = (question.producer_id, question.producer_epoch)

        def decide(reply: Pending[ErrorCode], effects: Effects) -> None:
            def done(error: ErrorCode, later: Effects) -> None:
                later.answer(reply, error)

            shard.groups.add_partitions(question.transactional_id, identity, [question.partition], EPOCH_BUMPS_SINCE, effects, done)

        def on_answer(error: ErrorCode | None) -> None:
            answered(ErrorCode.COORDINATOR_NOT_AVAILABLE if error is None else error)

        self._transactions.decide(shard, decide).listen(on_answer)

    async def _ask(self, coordinator: BrokerImage, question: Question, answered: Answered) -> None:
        topic, partition = question.partition
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=question.transactional_id,
            producer_id=question.producer_id,
            producer_epoch=question.producer_epoch,
            verify_only=not question.adds,
            topics=[AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
        )
        client = self._peers.client(coordinator.broker_id, coordinator.inter_broker, VERIFICATION_PURPOSE)
        try:
            request = AddPartitionsToTxnRequest(transactions=[transaction])
            answer: AddPartitionsToTxnResponse = await client.request(ApiKey.ADD_PARTITIONS_TO_TXN, _VERSION, request, TIMEOUT_MS)
        except PeerError as error:
            self._transactions.broker.log.warning("a transaction's coordinator could not be asked", reason=str(error))
            answered(ErrorCode.NETWORK_EXCEPTION)
            return
        rows = [row for result in answer.results_by_transaction for found in result.topic_results for row in found.results_by_partition]
        answered(ErrorCode(rows[0].partition_error_code if rows else answer.error_code or ErrorCode.NETWORK_EXCEPTION))


def told_to_committer(error: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """What one who commits offsets in a transaction is told of an answer.

    Source: `CoordinatorPartitionWriter.maybeStartTransactionVerification`, `CoordinatorOperationExceptionHelper`.
    """
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error == ErrorCode.NETWORK_EXCEPTION else append_error(error)


def told_to_producer(error: ErrorCode, *, knows_abortable: bool, adds: bool) -> ErrorCode:
    """What a producer is told of an answer: what it may do again is called so by an error that it knows of old.

    Source: `AddPartitionsToTxnManager`, `ReplicaManager.maybeSendPartitionsToTransactionCoordinator`.
    """
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    if error == ErrorCode.CONCURRENT_TRANSACTIONS and adds:
        return error
    return ErrorCode.NOT_ENOUGH_REPLICAS if error in _COMES_AGAIN else error
