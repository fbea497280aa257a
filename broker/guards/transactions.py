"""Guards of requests about transactions. Source: Kafka's `KafkaApis`."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import Operation, group, topic, transactional_id
from lowtide.broker.guards.guard import Asker, Verdict, with_rows
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from lowtide.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from lowtide.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from lowtide.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from lowtide.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from lowtide.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from lowtide.replication.topic_names import INTERNAL_TOPICS

DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_BROKERS_SINCE = 4
_COMMIT_TOPIC_IDS_SINCE = 6


def _may(asker: Asker, operation: Operation, name: str, audit: Audit = Audit.BOTH) -> bool:
    return asker.may(operation, transactional_id(name), audit)


def add_partitions_to_txn(request: AddPartitionsToTxnRequest, asker: Asker) -> Verdict:
    """Requires WRITE on the transactional id and on each topic; from v4 on, which only brokers use, CLUSTER_ACTION."""
    if asker.context.api_version >= _BROKERS_SINCE:
        if asker.may_cluster(Operation.CLUSTER_ACTION):
            return Verdict(request)
        return Verdict(answer=AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    topics = request.v3_and_below_topics
    denied: set[str] = set()
    may_write = _may(asker, Operation.WRITE, request.v3_and_below_transactional_id)
    if may_write:
        denied = {
            each.name
            for each in topics
            if each.name in INTERNAL_TOPICS or not asker.may(Operation.WRITE, topic(each.name))
        }
        if not denied:
            return Verdict(request)

    def error_of(name: str, number: int) -> ErrorCode:
        if not may_write:
            return DENIED
        if name in denied:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        known = asker.image.topics.get(name)
        is_there = known is not None and 0 <= number < len(known.partitions)
        return ErrorCode.OPERATION_NOT_ATTEMPTED if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    rows = [
        AddPartitionsToTxnTopicResult(
            name=each.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=number, partition_error_code=error_of(each.name, number)
                )
                for number in each.partitions
            ],
        )
        for each in topics
    ]
    return Verdict(answer=AddPartitionsToTxnResponse(results_by_topic_v3_and_below=rows))


def add_offsets_to_txn(request: AddOffsetsToTxnRequest, asker: Asker) -> Verdict:
    """Requires WRITE on the transactional id and READ on the group."""
    if not _may(asker, Operation.WRITE, request.transactional_id):
        return Verdict(answer=AddOffsetsToTxnResponse(error_code=DENIED))
    if asker.may(Operation.READ, group(request.group_id)):
        return Verdict(request)
    return Verdict(answer=AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))


def _commit_rows(topics: Iterable[TxnOffsetCommitRequestTopic], error: ErrorCode) -> list[TxnOffsetCommitResponseTopic]:
    return [
        TxnOffsetCommitResponseTopic(
            name=each.name,
            topic_id=each.topic_id,
            partitions=[
                TxnOffsetCommitResponsePartition(partition_index=row.partition_index, error_code=error)
                for row in each.partitions
            ],
        )
        for each in topics
    ]


def txn_offset_commit(request: TxnOffsetCommitRequest, asker: Asker) -> Verdict:
    """Requires WRITE on the transactional id, and READ on the group and on each topic."""
    if not _may(asker, Operation.WRITE, request.transactional_id):
        return Verdict(answer=TxnOffsetCommitResponse(topics=_commit_rows(request.topics, DENIED)))
    if not asker.may(Operation.READ, group(request.group_id)):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return Verdict(answer=TxnOffsetCommitResponse(topics=_commit_rows(request.topics, error)))
    by_id = asker.context.api_version >= _COMMIT_TOPIC_IDS_SINCE
    allowed, denied = asker.split(
        Operation.READ, request.topics, lambda each: asker.name_of(each.name, each.topic_id, by_id=by_id)
    )
    rows = _commit_rows(denied, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return with_rows(replace(request, topics=allowed), "topics", rows)


def end_txn(request: EndTxnRequest, asker: Asker) -> Verdict:
    """Requires WRITE on the transactional id."""
    may = _may(asker, Operation.WRITE, request.transactional_id)
    return Verdict(request) if may else Verdict(answer=EndTxnResponse(error_code=DENIED))


def describe_transactions(request: DescribeTransactionsRequest, asker: Asker) -> Verdict:
    """Requires DESCRIBE on each transactional id, and leaves out topics that the client may not describe."""
    allowed, denied = asker.split_ids(Operation.DESCRIBE, transactional_id, request.transactional_ids)

    def merge(answer: DescribeTransactionsResponse) -> DescribeTransactionsResponse:
        rows = [TransactionState(error_code=DENIED, transactional_id=name) for name in denied]
        return replace(answer, transaction_states=[*map(shown, answer.transaction_states), *rows])

    def shown(row: TransactionState) -> TransactionState:
        return replace(
            row, topics=[each for each in row.topics if asker.may(Operation.DESCRIBE, topic(each.topic), Audit.ALLOWED)]
        )

    return Verdict(replace(request, transactional_ids=allowed), merge)


def list_transactions(request: ListTransactionsRequest, asker: Asker) -> Verdict:
    """Leaves out transactional ids that the client may not describe."""

    def merge(answer: ListTransactionsResponse) -> ListTransactionsResponse:
        rows = [
            row
            for row in answer.transaction_states
            if _may(asker, Operation.DESCRIBE, row.transactional_id, Audit.ALLOWED)
        ]
        return replace(answer, transaction_states=rows)

    return Verdict(request, merge)
