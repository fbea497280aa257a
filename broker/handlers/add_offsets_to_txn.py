"""AddOffsetsToTxn: v0-v4.

Behaviour: adds the partition that a group's offsets are kept in to a producer's open transaction, or begins one;
answered when that is committed. Whether there is such a group is no question here.

Version notes: v4 may say TRANSACTION_ABORTABLE.

Errors: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before v2),
CONCURRENT_TRANSACTIONS, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 98, 588, 890.
"""

from __future__ import annotations

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.network.routes import HandlerSpec
from lowtide.broker.pending import Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

_PRODUCER_FENCED_SINCE = 2


def handler(groups: GroupCoordinator, transactions: TransactionCoordinator) -> HandlerSpec:
    """The handler over the transactions of a broker."""

    def handle(
        request: AddOffsetsToTxnRequest, context: RequestContext
    ) -> AddOffsetsToTxnResponse | Pending[AddOffsetsToTxnResponse]:
        shard = transactions.find(request.transactional_id)
        if isinstance(shard, ErrorCode):
            return AddOffsetsToTxnResponse(error_code=shard)
        name, identity, version = (
            request.transactional_id,
            (request.producer_id, request.producer_epoch),
            context.api_version,
        )
        # Who asks for this has no epoch for each transaction: clients that have one don't ask.
        partitions, client_version = frozenset((groups.partition_of(request.group_id),)), 0
        error = transactions.at_once.add(shard, name, identity, partitions, client_version)
        if error is not None:
            return _response(version, error)

        def decide(reply: Pending[AddOffsetsToTxnResponse], effects: Effects) -> None:
            def done(error: ErrorCode, later: Effects) -> None:
                later.answer(reply, _response(version, error))

            shard.state.add_partitions(name, identity, partitions, client_version, effects, done)

        return transactions.decide(shard, decide)

    return HandlerSpec(key=ApiKey.ADD_OFFSETS_TO_TXN, handle=handle)


def _response(version: int, error: ErrorCode) -> AddOffsetsToTxnResponse:
    if error == ErrorCode.PRODUCER_FENCED and version < _PRODUCER_FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=error)
