"""TxnOffsetCommit: v0-v6.

Behaviour: stores how far a group has read as part of a producer's transaction: the offsets become valid when it
commits, and never if it aborts. The transaction must include the partition of the group's offsets; its coordinator is
asked. A member commits with its generation (KIP-447); a commit without a member id is always accepted. The response is
sent when the offsets are committed in the log.

Version notes: v2 has leader epochs and may return COORDINATOR_LOAD_IN_PROGRESS. v3 has members and generations. v4 may
return TRANSACTION_ABORTABLE. v5 adds the partition to the transaction by itself (KIP-890). v6 has topic ids.

Errors: of single partitions UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, OFFSET_METADATA_TOO_LARGE; of all
INVALID_GROUP_ID, those of `committer_error`, INVALID_TXN_STATE if the transaction ended meanwhile,
INVALID_COMMIT_OFFSET_SIZE if it would have more offsets than `PENDING_OFFSETS_MAX` (Kafka has no limit),
INVALID_PRODUCER_EPOCH, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 98, 320, 447, 848, 890.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.coordinator.groups.commit_topics import CommitTopics
from lowtide.broker.coordinator.groups.committers import committers
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.coordinator.transactions.transaction_verifier import TransactionVerifier, committer_error
from lowtide.broker.guards import transactions as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.produce.transaction_question import AskedTransaction, Question
from lowtide.broker.pending import Answer, Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import NONE, ErrorCode
from lowtide.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from lowtide.protocol.types import NO_SEQUENCE
from lowtide.storage.log.producers.verifications import Verification

_LOADING_SINCE = 2
_ABORTABLE_SINCE = 4
_ADDS_SINCE = 5
_TOPIC_IDS_SINCE = 6
_TYPES = (TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition)

CUT: Final = Cut(levels=(("topics", "topics"), ("partitions", "partitions")), changes=True, sequential=True)


class _Commit:
    """One request until it is answered."""

    __slots__ = ("_by", "_groups", "_request", "_topics", "_version")

    def __init__(self, groups: GroupCoordinator, request: TxnOffsetCommitRequest, context: RequestContext) -> None:
        self._groups = groups
        self._request = request
        self._version = version = context.api_version
        self._topics: CommitTopics[TxnOffsetCommitRequestTopic, TxnOffsetCommitResponseTopic] = CommitTopics(
            groups.broker.metadata.image, request.topics, _TYPES, by_id=version >= _TOPIC_IDS_SINCE
        )
        self._by = committers(groups.broker, context, self._topics.known)

    def start(  # noqa: PLR0911 - one return for each answer
        self, verifier: TransactionVerifier
    ) -> Answer[TxnOffsetCommitResponse]:
        """Commits the offsets as soon as the transaction's coordinator allows it."""
        request = self._request
        if not self._topics.known:
            return TxnOffsetCommitResponse(topics=self._topics.refused)
        if not request.group_id:
            return self._failed(ErrorCode.INVALID_GROUP_ID)
        shard = self._groups.find(request.group_id)
        if isinstance(shard, ErrorCode):
            return self._failed(shard)
        adds = self._version >= _ADDS_SINCE
        producer_id, producer_epoch = request.producer_id, request.producer_epoch
        if shard.partition.log.producer_state.is_in_transaction(producer_id, producer_epoch) or not (
            adds or verifier.is_wanted
        ):
            return self._keep(shard)
        if shard.partition.log.producer_state.is_fenced(producer_id, producer_epoch):
            return self._failed(ErrorCode.INVALID_PRODUCER_EPOCH)
        transaction = AskedTransaction(request.transactional_id, producer_id, producer_epoch, adds)
        question = Question(transaction, shard.partition.topic_partition)
        answer = verifier.answer_now(question)
        if answer is not None:
            return self._keep(shard) if answer == NONE else self._failed(self._code(answer))
        return self._ask(question, shard, verifier)

    def _ask(
        self, question: Question, asked: Shard[Groups], verifier: TransactionVerifier
    ) -> Answer[TxnOffsetCommitResponse]:
        pending: Pending[TxnOffsetCommitResponse] = Pending()
        transaction, state = question.transaction, asked.partition.log.producer_state
        producer_id, producer_epoch = transaction.producer_id, transaction.producer_epoch
        now_ms = self._groups.broker.clock.wall_ms()

        def begin() -> Verification:
            return state.verifications.begin(
                producer_id, producer_epoch, NO_SEQUENCE, adds_itself=transaction.adds, now_ms=now_ms
            )

        guard = begin()

        def renew() -> None:
            nonlocal guard
            guard = begin()

        def on_answer(error: ErrorCode) -> None:
            if error != NONE:
                pending.complete(self._failed(self._code(error)))
                return
            shard = self._groups.find(self._request.group_id)
            # A marker that came while the coordinator was asked has taken the guard away: the transaction that it knew
            # is over.
            holds = state.verifications.find(producer_id) is guard or state.is_in_transaction(
                producer_id, producer_epoch
            )
            if isinstance(shard, ErrorCode) or shard is not asked:
                pending.complete(self._failed(shard if isinstance(shard, ErrorCode) else ErrorCode.NOT_COORDINATOR))
            elif state.is_fenced(producer_id, producer_epoch):
                pending.complete(self._failed(ErrorCode.INVALID_PRODUCER_EPOCH))
            elif not holds:
                pending.complete(self._failed(ErrorCode.INVALID_TXN_STATE))
            else:
                self._keep(shard).listen(
                    lambda response: pending.fail() if response is None else pending.complete(response)
                )

        def answered(error: ErrorCode) -> None:
            try:
                on_answer(error)
            except BaseException:
                pending.fail()
                raise

        verifier.ask(question, renew, answered)
        return pending

    def _keep(self, shard: Shard[Groups]) -> Pending[TxnOffsetCommitResponse]:
        def decide(pending: Pending[TxnOffsetCommitResponse], effects: Effects) -> None:
            error = shard.state.check_transactional_commit(self._request, effects.now_ms)
            if error != NONE:
                effects.answer(pending, self._failed(error))
                return
            rows = shard.state.committed.commit_in_transaction(self._request, self._topics.known, effects, self._by)
            effects.answer_when_committed(
                pending, TxnOffsetCommitResponse(topics=self._topics.merged(rows)), self._failed
            )

        return self._groups.decide(shard, decide)

    def _code(self, error: ErrorCode) -> ErrorCode:
        return committer_error(error, knows_abortable=self._version >= _ABORTABLE_SINCE)

    def _failed(self, error: ErrorCode) -> TxnOffsetCommitResponse:
        # Clients of old break at the other code (KAFKA-7296).
        if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and self._version < _LOADING_SINCE:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return TxnOffsetCommitResponse(topics=self._topics.failed(error))


def handler(groups: GroupCoordinator, transactions: TransactionCoordinator) -> HandlerSpec:
    """Returns the handler."""
    verifier = TransactionVerifier(transactions, transactions.peers, transactions.loop)

    def handle(request: TxnOffsetCommitRequest, context: RequestContext) -> Answer[TxnOffsetCommitResponse]:
        return _Commit(groups, request, context).start(verifier)

    return HandlerSpec(key=ApiKey.TXN_OFFSET_COMMIT, guard=guards.txn_offset_commit, handle=handle, cut=CUT)
