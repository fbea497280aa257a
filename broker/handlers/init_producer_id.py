"""InitProducerId: v0-v5.

Behaviour: hands out a producer id with epoch 0 to an idempotent producer; id and epoch that such a producer sends are ignored, as in
Kafka. Ids come from blocks of a thousand that the metadata store gives out, and are never given twice.

Errors: INVALID_REQUEST for an empty transactional id, or for an id without an epoch and the other way round; UNSUPPORTED_VERSION with a
transactional id, until transactions exist; COORDINATOR_NOT_AVAILABLE when the metadata store doesn't answer.

KIPs: 98, 360.
"""

from __future__ import annotations

from lowtide.broker.connection import RequestContext
from lowtide.broker.context import BrokerContext
from lowtide.broker.dispatcher import HandlerSpec
from lowtide.metadata.errors import SessionError
from lowtide.metadata.store import MetadataStoreError
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from lowtide.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerId


class ProducerIds:
    """The block of producer ids that this broker is handing out."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._left: range = range(0)

    async def take(self) -> ProducerId:
        """An id that nobody had before. Errors: those of the metadata store."""
        while not self._left:
            self._left = await self._broker.metadata.allocate_producer_ids()
        producer_id = self._left[0]
        self._left = self._left[1:]
        return producer_id


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's state."""
    ids = ProducerIds(broker)

    async def handle(request: InitProducerIdRequest, _context: RequestContext) -> InitProducerIdResponse:
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH) or request.transactional_id == "":
            return _failed(ErrorCode.INVALID_REQUEST)
        if request.transactional_id is not None:
            return _failed(ErrorCode.UNSUPPORTED_VERSION)
        try:
            producer_id = await ids.take()
        except (MetadataStoreError, SessionError) as error:
            broker.log.warning("no producer ids", error=str(error))
            return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return InitProducerIdResponse(error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0)

    return HandlerSpec(key=ApiKey.INIT_PRODUCER_ID, handle_later=handle)


def _failed(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)
