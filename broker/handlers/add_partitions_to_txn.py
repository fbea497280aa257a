"""AddPartitionsToTxn: v0-v5.

Behaviour: adds partitions to a producer's open transaction, or begins one. The response is sent when this is committed.
From v4 on only brokers send this request: for many transactions at once, and perhaps only to verify that partitions
belong to them (KIP-890).

Version notes: up to v3 there is one transaction, and if one partition doesn't exist, none is added. v4 has many
transactions. v5 may return TRANSACTION_ABORTABLE.

Errors: up to v3 TOPIC_AUTHORIZATION_FAILED for topics of coordinators, UNKNOWN_TOPIC_OR_PARTITION, and
OPERATION_NOT_ATTEMPTED for the other partitions of such a request; INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING,
PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before v2), CONCURRENT_TRANSACTIONS, NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 98, 588, 890.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from lowtide.broker.coordinator.transactions.transaction import EPOCH_BUMPS_SINCE
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.coordinator.transactions.transaction_verifier import producer_error
from lowtide.broker.guards import transactions as guards
from lowtide.broker.joined_parts import JoinedParts
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer, Pending
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import TopicImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from lowtide.protocol.types import TopicPartition
from lowtide.replication.topic_names import INTERNAL_TOPICS

_MANY_SINCE = 4
_PRODUCER_FENCED_SINCE = 2

Errors = dict[TopicPartition, ErrorCode]
R = TypeVar("R")


def cut(version: int) -> Cut | None:
    """Returns how a large request is cut: only those of brokers have several transactions."""
    if version < _MANY_SINCE:
        return None
    return Cut(levels=(("transactions", "results_by_transaction"),), changes=True)


def handler(transactions: TransactionCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def work(transaction: AddPartitionsToTxnTransaction, version: int, answered: Callable[[Errors], R]) -> Answer[R]:
        """Adds or verifies the partitions of one transaction. `answered` makes the answer from their errors."""
        name, verifies = transaction.transactional_id, transaction.verify_only
        keys, missing = _partitions(transaction.topics, {} if verifies else transactions.broker.metadata.image.topics)
        if version < _MANY_SINCE and any(topic.name in INTERNAL_TOPICS for topic in transaction.topics):
            return answered({key: _beside_internal(key, missing) for key in keys})
        if missing and not verifies:
            codes = (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return answered({key: codes[key in missing] for key in keys})
        shard = transactions.find(name)
        if isinstance(shard, ErrorCode):
            return answered(dict.fromkeys(keys, shard))
        identity = (transaction.producer_id, transaction.producer_epoch)
        if verifies:
            return answered({key: shard.state.verify(name, *identity, key) for key in keys})
        client_version = EPOCH_BUMPS_SINCE if version >= _MANY_SINCE else 0
        return transactions.add_partitions(
            shard,
            name,
            identity,
            keys,
            client_version,
            lambda error: answered(
                dict.fromkeys(keys, producer_error(error, knows_fenced=version >= _PRODUCER_FENCED_SINCE))
            ),
        )

    def handle(request: AddPartitionsToTxnRequest, context: RequestContext) -> Answer[AddPartitionsToTxnResponse]:
        version, wanted = context.api_version, request.transactions
        if version < _MANY_SINCE:
            return work(_as_transaction(request), version, _response_of_one)
        answers: dict[int, Errors] = {}
        joined = JoinedParts(lambda: _response(wanted, answers))

        def note(index: int, errors: Errors | None) -> None:
            answers[index] = errors or {}
            joined.arrived()

        for index, transaction in enumerate(wanted):
            errors = work(transaction, version, _as_they_are)
            if not isinstance(errors, Pending):
                answers[index] = errors
            elif errors.done:
                answers[index] = errors.response or {}
            else:
                joined.expect(1)
                errors.listen(partial(note, index))
        return joined.answer()

    return HandlerSpec(key=ApiKey.ADD_PARTITIONS_TO_TXN, guard=guards.add_partitions_to_txn, handle=handle, cut=cut)


def _partitions(
    topics: Iterable[AddPartitionsToTxnTopic], known: Mapping[str, TopicImage]
) -> tuple[list[TopicPartition], set[TopicPartition]]:
    """Returns the partitions of a request, and those that do not exist."""
    keys: list[TopicPartition] = []
    missing: set[TopicPartition] = set()
    for topic in topics:
        name, found = topic.name, known.get(topic.name)
        count = len(found.partitions) if found is not None else 0
        for number in topic.partitions:
            key = TopicPartition(name, number)
            keys.append(key)
            if not 0 <= number < count:
                missing.add(key)
    return keys, missing


def _beside_internal(key: TopicPartition, missing: set[TopicPartition]) -> ErrorCode:
    """Returns the error of a partition in a request that also names internal topics: no client may write to those."""
    if key.topic in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if key in missing else ErrorCode.OPERATION_NOT_ATTEMPTED


def _as_transaction(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )


def _topics(errors: Errors) -> list[AddPartitionsToTxnTopicResult]:
    topics: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for key, error in errors.items():
        row = AddPartitionsToTxnPartitionResult(partition_index=key.partition, partition_error_code=error)
        topics.setdefault(key.topic, []).append(row)
    return [AddPartitionsToTxnTopicResult(name=name, results_by_partition=rows) for name, rows in topics.items()]


def _as_they_are(errors: Errors) -> Errors:
    return errors


def _response_of_one(errors: Errors) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_topics(errors))


def _response(wanted: list[AddPartitionsToTxnTransaction], answers: Mapping[int, Errors]) -> AddPartitionsToTxnResponse:
    results = [
        AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=_topics(answers[index]))
        for index, transaction in enumerate(wanted)
    ]
    return AddPartitionsToTxnResponse(results_by_transaction=results)
