"""EndTxn: v0-v5.

Behaviour: commits or aborts a producer's transaction. The response is sent when the decision is committed, before all
partitions have their markers. The same end may be requested again.

Version notes: from v5 on each transaction has its own epoch, and the response has that of the next one; an abort
without a transaction succeeds then (KIP-890).

Errors: INVALID_TXN_STATE, INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before
v2), CONCURRENT_TRANSACTIONS, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 98, 360, 588, 890.
"""

from __future__ import annotations

from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.transactions.transaction import EPOCH_BUMPS_SINCE
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.coordinator.transactions.transaction_verifier import producer_error
from lowtide.broker.guards import transactions as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer, Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from lowtide.protocol.types import ProducerEpoch, ProducerId

_BUMPS_SINCE = 5
_PRODUCER_FENCED_SINCE = 2


def handler(transactions: TransactionCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def handle(request: EndTxnRequest, context: RequestContext) -> Answer[EndTxnResponse]:
        version = context.api_version
        shard = transactions.find(request.transactional_id)
        if isinstance(shard, ErrorCode):
            return EndTxnResponse(error_code=shard)
        identity = (request.producer_id, request.producer_epoch)
        client_version = EPOCH_BUMPS_SINCE if version >= _BUMPS_SINCE else 0

        def decide(reply: Pending[EndTxnResponse], effects: Effects) -> None:
            def done(error: ErrorCode, producer_id: ProducerId, producer_epoch: ProducerEpoch, later: Effects) -> None:
                later.answer(reply, _response(version, error, producer_id, producer_epoch))

            shard.state.end(
                request.transactional_id,
                identity,
                is_commit=request.committed,
                client_version=client_version,
                effects=effects,
                done=done,
            )

        return transactions.decide(shard, decide)

    return HandlerSpec(key=ApiKey.END_TXN, guard=guards.end_txn, handle=handle)


def _response(version: int, error: ErrorCode, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> EndTxnResponse:
    code = producer_error(error, knows_fenced=version >= _PRODUCER_FENCED_SINCE)
    return EndTxnResponse(error_code=code, producer_id=producer_id, producer_epoch=producer_epoch)
