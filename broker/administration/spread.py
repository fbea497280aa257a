"""Asks all registered brokers whether their images show a revision, until a change is in force everywhere.

Guards: a change is answered when this broker and all others act on it. A broker that can't be asked loses its
registration, or is named in the log after `SPREAD_MS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from lowtide.broker.context import BrokerContext
from lowtide.broker.network.peer_client import PeerClients, PeerError
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.store import Revision
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.await_metadata import AwaitMetadataRequest, AwaitMetadataResponse
from lowtide.protocol.types import BrokerId

PURPOSE: Final = "spread"

SPREAD_MS: Final = 5_000
"""The longest wait of a change for other brokers, about as long as a lease."""

_RETRY_S: Final = 0.1


class Spread:
    """Asks the other brokers of the cluster."""

    def __init__(self, broker: BrokerContext, peers: PeerClients | None) -> None:
        """`peers`: None if there are no other brokers."""
        self._broker = broker
        self._peers = peers

    async def reach_all(self, revision: Revision, what: str) -> None:
        """Waits a limited time until all brokers act on a revision. `what` names the change in the log."""
        others = self._others(self._broker.metadata.image)
        reached = await self._which_reach(others, revision, SPREAD_MS)
        for broker_id in others:
            if broker_id not in reached:
                self._broker.log.warning(
                    "broker may still act on older metadata: it did not confirm a change", of=what, broker_id=broker_id
                )

    async def which_reach(self, image: MetadataImage, wait_ms: int) -> set[BrokerId]:
        """Returns the other brokers that confirm in time that they act on an image's revision."""
        return await self._which_reach(self._others(image), image.revision, wait_ms)

    def _others(self, image: MetadataImage) -> list[BrokerId]:
        own_id = self._broker.metadata.broker_id
        return [] if self._peers is None else [broker_id for broker_id in image.brokers if broker_id != own_id]

    async def _which_reach(self, others: Sequence[BrokerId], revision: Revision, wait_ms: int) -> set[BrokerId]:
        if self._peers is None:
            return set()
        until = asyncio.get_running_loop().time() + wait_ms / 1000
        reached = await asyncio.gather(
            *(self._reaches(self._peers, broker_id, revision, until) for broker_id in others)
        )
        return {broker_id for broker_id, is_there in zip(others, reached, strict=True) if is_there}

    async def _reaches(self, peers: PeerClients, broker_id: BrokerId, revision: Revision, until: float) -> bool:
        """Returns whether a broker acts on a revision in time, or is no longer registered as it was."""
        loop, metadata = asyncio.get_running_loop(), self._broker.metadata
        epoch = metadata.image.broker_epoch(broker_id)
        while (left_ms := round((until - loop.time()) * 1000)) > 0:
            broker = metadata.image.brokers.get(broker_id)
            if broker is None or broker.epoch != epoch:
                return True
            client = peers.client_of(broker, PURPOSE)
            request = AwaitMetadataRequest(revision=revision, timeout_ms=left_ms)
            try:
                async with asyncio.timeout_at(until):
                    answer: AwaitMetadataResponse = await client.request(ApiKey.AWAIT_METADATA, 0, request, left_ms)
                if answer.error_code == ErrorCode.NONE:
                    return True
            except (PeerError, TimeoutError):
                pass
            await asyncio.sleep(_RETRY_S)
        return False
