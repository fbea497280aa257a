"""AddOffsetsToTxn: v0-v4.

Behaviour: adds the partition of a group's offsets to a producer's open transaction, or begins one. The response is sent
when this is committed. The group need not exist.

Version notes: v4 may return TRANSACTION_ABORTABLE.

Errors: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before v2),
CONCURRENT_TRANSACTIONS, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 98, 588, 890.
"""

from __future__ import annotations

from functools import partial

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.coordinator.transactions.transaction_verifier import producer_error
from lowtide.broker.guards import transactions as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

_PRODUCER_FENCED_SINCE = 2


def handler(groups: GroupCoordinator, transactions: TransactionCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def handle(request: AddOffsetsToTxnRequest, context: RequestContext) -> Answer[AddOffsetsToTxnResponse]:
        shard = transactions.find(request.transactional_id)
        if isinstance(shard, ErrorCode):
            return AddOffsetsToTxnResponse(error_code=shard)
        identity, version = (request.producer_id, request.producer_epoch), context.api_version
        partitions = (groups.partition_of(request.group_id),)
        # Clients with an epoch for each transaction do not send this request: their version of transactions is 0.
        return transactions.add_partitions(
            shard, request.transactional_id, identity, partitions, 0, partial(_response, version)
        )

    return HandlerSpec(key=ApiKey.ADD_OFFSETS_TO_TXN, guard=guards.add_offsets_to_txn, handle=handle)


def _response(version: int, error: ErrorCode) -> AddOffsetsToTxnResponse:
    code = producer_error(error, knows_fenced=version >= _PRODUCER_FENCED_SINCE)
    return AddOffsetsToTxnResponse(error_code=code)
