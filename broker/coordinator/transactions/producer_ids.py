"""Producer ids for this broker to hand out, from blocks of the metadata store: none is ever given twice."""

from __future__ import annotations

from lowtide.broker.context import BrokerContext
from lowtide.metadata.errors import SessionError
from lowtide.metadata.store import MetadataStoreError
from lowtide.protocol.types import ProducerId


class ProducerIds:
    """The block of producer ids that this broker is handing out."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._left: range = range(0)
        self._is_fetching = False

    async def take(self) -> ProducerId:
        """An unused id. Errors: those of the metadata store."""
        await self.reserve()
        producer_id = self.take_now()
        assert producer_id is not None
        return producer_id

    async def reserve(self) -> None:
        """Have one at hand. Errors: those of the metadata store."""
        while not self._left:
            self._left = await self._broker.metadata.allocate_producer_ids()

    def take_now(self) -> ProducerId | None:
        """An unused id, if one is at hand; else some will be soon."""
        if not self._left:
            if not self._is_fetching:
                self._is_fetching = True
                self._broker.tasks.spawn(self._fetch(), name="fetch producer ids")
            return None
        producer_id = self._left[0]
        self._left = self._left[1:]
        return producer_id

    async def _fetch(self) -> None:
        try:
            await self.reserve()
        except (MetadataStoreError, SessionError) as error:
            self._broker.log.warning("no producer ids", error=str(error))
        finally:
            self._is_fetching = False
