"""AddOffsetsToTxn: v0-v4.

Behaviour: adds the partition that a group's offsets are kept in to a producer's open transaction, or begins one; answered when that is
committed. Whether there is such a group is no question here.

Version notes: v4 may say TRANSACTION_ABORTABLE.

Errors: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before v2), CONCURRENT_TRANSACTIONS,
NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

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

    def handle(request: AddOffsetsToTxnRequest, context: RequestContext) -> AddOffsetsToTxnResponse | Pending[AddOffsetsToTxnResponse]:
        shard = transactions.find(request.transactional_id)
        if isinstance(shard, ErrorCode):
            return AddOffsetsToTxnResponse(error_code=shard)
        identity, partition = (request.producer_id, request.producer_epoch), groups.partition_of(request.group_id)

        def decide(reply: Pending[AddOffsetsToTxnResponse], effects: Effects) -> None:
            def done(error: ErrorCode, later: Effects) -> None:
                if error == ErrorCode.PRODUCER_FENCED and context.api_version < _PRODUCER_FENCED_SINCE:
                    error = ErrorCode.INVALID_PRODUCER_EPOCH
                later.answer(reply, AddOffsetsToTxnResponse(error_code=error))

            # Who asks for this has no epoch for each transaction: clients that have one don't ask.
            shard.state.add_partitions(request.transactional_id, identity, [partition], 0, effects, done)

        return transactions.decide(shard, decide)

    return HandlerSpec(key=ApiKey.ADD_OFFSETS_TO_TXN, handle=handle)
