"""InitProducerId: v0-v5.

Behaviour: gives an idempotent producer an id with epoch 0; the id and epoch that it sends are ignored, as in Kafka. Ids
come from blocks of a thousand of the metadata store, and are never given twice. With a transactional id the response
has that id's producer with its next epoch, which fences earlier producers; an open transaction is aborted first.

Version notes: from v3 on a producer sends its id and epoch, and is refused if it has been fenced (KIP-360).

Errors: INVALID_REQUEST for an empty transactional id, and for an id without an epoch or the reverse;
COORDINATOR_NOT_AVAILABLE if the metadata store doesn't respond; with a transactional id INVALID_TRANSACTION_TIMEOUT,
CONCURRENT_TRANSACTIONS, PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before v4), NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS, POLICY_VIOLATION for a new id above `lowtide.transactional.ids.max`.

KIPs: 98, 360, 588.
"""

from __future__ import annotations

from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.coordinator.transactions.transaction_verifier import producer_error
from lowtide.broker.guards import cluster as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer, Pending
from lowtide.broker.promises import answer_of
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.errors import SessionError
from lowtide.metadata.store import MetadataStoreError
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from lowtide.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId

_PRODUCER_FENCED_SINCE = 4


def handler(broker: BrokerContext, transactions: TransactionCoordinator) -> HandlerSpec:
    """Returns the handler."""

    async def handle(request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
        if (request.producer_id == NO_PRODUCER_ID) != (
            request.producer_epoch == NO_PRODUCER_EPOCH
        ) or request.transactional_id == "":
            return _failed(ErrorCode.INVALID_REQUEST)
        try:
            if request.transactional_id is None:
                return InitProducerIdResponse(
                    error_code=ErrorCode.NONE, producer_id=await transactions.ids.take(), producer_epoch=0
                )
            await transactions.ids.reserve()
        except (MetadataStoreError, SessionError) as error:
            broker.log.warning("producer id allocation failed", error=str(error))
            return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        begun = _begin(request.transactional_id, request, context.api_version)
        if not isinstance(begun, Pending):
            return begun
        answer = await answer_of(begun)
        assert answer is not None
        return answer

    def _begin(transactional_id: str, request: InitProducerIdRequest, version: int) -> Answer[InitProducerIdResponse]:
        shard = transactions.find(transactional_id)
        if isinstance(shard, ErrorCode):
            return _failed(shard)
        if not transactions.may_begin(shard, transactional_id):
            return _failed(ErrorCode.POLICY_VIOLATION)
        expected = None if request.producer_id == NO_PRODUCER_ID else (request.producer_id, request.producer_epoch)

        def decide(reply: Pending[InitProducerIdResponse], effects: Effects) -> None:
            def done(error: ErrorCode, producer_id: ProducerId, producer_epoch: ProducerEpoch, later: Effects) -> None:
                code = producer_error(error, knows_fenced=version >= _PRODUCER_FENCED_SINCE)
                response = InitProducerIdResponse(
                    error_code=code, producer_id=producer_id, producer_epoch=producer_epoch
                )
                later.answer(reply, response)

            shard.state.init_producer_id(transactional_id, request.transaction_timeout_ms, expected, effects, done)

        return transactions.decide(shard, decide)

    return HandlerSpec(key=ApiKey.INIT_PRODUCER_ID, guard=guards.init_producer_id, handle_later=handle)


def _failed(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)
