"""Asks a transaction's coordinator whether it has a partition that is written to, or adds the partition.

So every record gets into a partition that the end of its transaction will reach (KIP-890). The coordinator may be this
broker, which answers at once, or another one. Questions about one transaction go out together, and later ones wait for
the answer, because the coordinator refuses a second change while the first is being written.

While the previous transaction is ending, adding a partition is retried for a while. The markers of that transaction may
come in between, so every attempt begins a new verification (`PendingQuestion.renew`).

Source: KIP-890; Kafka's `AddPartitionsToTxnManager`, `ReplicaManager.handleProduceAppend`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

import msgspec

from lowtide.broker.coordinator.runtime.effects import append_error
from lowtide.broker.coordinator.transactions.transaction import EPOCH_BUMPS_SINCE
from lowtide.broker.coordinator.transactions.transaction_coordinator import VERIFICATION_PURPOSE, TransactionCoordinator
from lowtide.broker.network.peer_client import PeerClients, PeerError
from lowtide.broker.partitions.produce.transaction_question import Answered, AskedTransaction, Question
from lowtide.metadata.broker_image import BrokerImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import NONE, ErrorCode
from lowtide.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from lowtide.protocol.types import TopicPartition

TIMEOUT_MS: Final = 30_000
_VERSION: Final = 5


_Answers: TypeAlias = Mapping[TopicPartition, ErrorCode]


class PendingQuestion(msgspec.Struct):
    """A question on its way."""

    question: Question
    renew: Callable[[], None]
    """Begins a new verification. A marker of the previous transaction has ended the last one."""
    answered: Answered
    until_ms: int
    """The end of retries, on the monotonic clock."""


class TransactionVerifier:
    """Asks coordinators whether a write belongs to an open transaction."""

    def __init__(
        self, transactions: TransactionCoordinator, peers: PeerClients, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transactions = transactions
        self._peers = peers
        self._loop = loop
        self._gathering: dict[AskedTransaction, list[PendingQuestion]] = {}
        """The questions for the next request, by transaction. A transaction with a request under way has an entry."""

    @property
    def is_wanted(self) -> bool:
        """Whether verification is configured."""
        return self._transactions.settings.verifies

    def answer_now(self, question: Question) -> ErrorCode | None:
        """Returns the answer if this broker is the coordinator and nothing has to be recorded; otherwise None."""
        asked = question.transaction
        # The metadata are asked, too: they may be newer than the partitions here, which follow them in slices, and a
        # coordinator that has a successor may not know that the transaction has ended.
        coordinator = self._transactions.topic.coordinator_of(asked.transactional_id)
        if (
            asked.adds
            or isinstance(coordinator, ErrorCode)
            or coordinator.broker_id != self._transactions.broker.metadata.broker_id
        ):
            return None
        shard = self._transactions.find(asked.transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
        return shard.state.verify(asked.transactional_id, asked.producer_id, asked.producer_epoch, question.partition)

    def ask(self, question: Question, renew: Callable[[], None], answered: Answered) -> None:
        """Asks for the answer, which comes later. `renew` is called before every further attempt.

        Errors: those of `Transactions.verify` or `Transactions.add_partitions`, COORDINATOR_NOT_AVAILABLE,
        NETWORK_EXCEPTION.
        """
        until_ms = self._now_ms + self._transactions.settings.add_retry_max_ms if question.transaction.adds else 0
        self._gather(PendingQuestion(question, renew, answered, until_ms))

    @property
    def _now_ms(self) -> int:
        return self._transactions.broker.clock.monotonic_ms()

    # ------------------------------------------------------------------ what goes out together
    def _gather(self, pending: PendingQuestion) -> None:
        transaction = pending.question.transaction
        gathered = self._gathering.get(transaction)
        if gathered is not None:
            gathered.append(pending)
            return
        self._gathering[transaction] = [pending]
        self._loop.call_soon(self._send, transaction)

    def _send(self, transaction: AskedTransaction) -> None:
        """Sends the collected questions. Without any, forgets the transaction."""
        gathered = self._gathering[transaction]
        if not gathered:
            del self._gathering[transaction]
            return
        self._gathering[transaction] = []
        partitions = sorted({pending.question.partition for pending in gathered})
        on_answers = partial(self._on_answers, transaction, gathered)
        coordinator = self._transactions.topic.coordinator_of(transaction.transactional_id)
        if isinstance(coordinator, ErrorCode):
            on_answers(dict.fromkeys(partitions, coordinator))
        elif coordinator.broker_id != self._transactions.broker.metadata.broker_id:
            name = f"ask broker {coordinator.broker_id} about a transaction"
            self._transactions.broker.tasks.spawn(
                self._ask(coordinator, transaction, partitions, on_answers), name=name
            )
        else:
            self._ask_here(transaction, partitions, on_answers)

    def _on_answers(self, transaction: AskedTransaction, gathered: list[PendingQuestion], answers: _Answers) -> None:
        self._loop.call_soon(self._send, transaction)
        for pending in gathered:
            error = answers.get(pending.question.partition, ErrorCode.NETWORK_EXCEPTION)
            if error == ErrorCode.CONCURRENT_TRANSACTIONS and self._now_ms < pending.until_ms:
                self._loop.call_later(self._transactions.settings.add_retry_ms / 1000, self._ask_again, pending)
            else:
                pending.answered(error)

    def _ask_again(self, pending: PendingQuestion) -> None:
        pending.renew()
        self._gather(pending)

    # ------------------------------------------------------------------ the coordinator
    def _ask_here(
        self, transaction: AskedTransaction, partitions: list[TopicPartition], on_answers: Callable[[_Answers], None]
    ) -> None:
        shard = self._transactions.find(transaction.transactional_id)
        if isinstance(shard, ErrorCode):
            on_answers(dict.fromkeys(partitions, shard))
            return
        name, identity = transaction.transactional_id, (transaction.producer_id, transaction.producer_epoch)
        if not transaction.adds:
            on_answers({key: shard.state.verify(name, *identity, key) for key in partitions})
            return

        def on_answer(error: ErrorCode | None) -> None:
            on_answers(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE if error is None else error))

        self._transactions.add_partitions(
            shard, name, identity, partitions, EPOCH_BUMPS_SINCE, lambda error: error
        ).listen(on_answer)

    async def _ask(
        self,
        coordinator: BrokerImage,
        transaction: AskedTransaction,
        partitions: list[TopicPartition],
        on_answers: Callable[[_Answers], None],
    ) -> None:
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        asked = AddPartitionsToTxnTransaction(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            verify_only=not transaction.adds,
            topics=[AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in topics.items()],
        )
        client = self._peers.client_of(coordinator, VERIFICATION_PURPOSE)
        try:
            request = AddPartitionsToTxnRequest(transactions=[asked])
            answer: AddPartitionsToTxnResponse = await client.request(
                ApiKey.ADD_PARTITIONS_TO_TXN, _VERSION, request, TIMEOUT_MS
            )
        except PeerError as error:
            self._transactions.broker.log.warning("a transaction's coordinator could not be asked", reason=str(error))
            on_answers({})
            return
        if answer.error_code != NONE:
            on_answers(dict.fromkeys(partitions, ErrorCode(answer.error_code)))
            return
        on_answers(
            {
                TopicPartition(topic.name, row.partition_index): ErrorCode(row.partition_error_code)
                for result in answer.results_by_transaction
                for topic in result.topic_results
                for row in topic.results_by_partition
            }
        )


def producer_error(error: ErrorCode, *, knows_fenced: bool) -> ErrorCode:
    """Returns the error for a producer, whose version of an API may not have PRODUCER_FENCED yet."""
    return ErrorCode.INVALID_PRODUCER_EPOCH if error == ErrorCode.PRODUCER_FENCED and not knows_fenced else error


def committer_error(error: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """Returns the error for a commit of offsets in a transaction.

    Source: `CoordinatorPartitionWriter.maybeStartTransactionVerification`, `CoordinatorOperationExceptionHelper`.
    """
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error == ErrorCode.NETWORK_EXCEPTION else append_error(error)
