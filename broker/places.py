"""A bounded number of waiting requests, of which each client gets a share. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from lowtide.broker.security.principal import ANONYMOUS
from lowtide.runtime.addresses import network_of

if TYPE_CHECKING:
    from lowtide.broker.security.principal import KafkaPrincipal


class RequestOwner(Protocol):
    """The identity of a client."""

    @property
    def client_address(self) -> str: ...
    @property
    def principal(self) -> KafkaPrincipal | None: ...


def client_of(asker: RequestOwner) -> str:
    """Returns the owner of a share: the principal, or the address without a login."""
    return network_of(asker.client_address) if asker.principal in (None, ANONYMOUS) else str(asker.principal)


class WaitingPlaces:
    """A bounded number of places, of which each client can take `share`."""

    def __init__(self, total: int, share: int) -> None:
        self._total = total
        self._share = share
        self._taken: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._taken.total()

    @contextmanager
    def taken_by(self, asker: RequestOwner, places: int = 1) -> Iterator[bool]:
        """Takes places for the block.

        Yields False without taking any if all are taken, or the client's share is.
        """
        client = client_of(asker)
        if self._taken[client] + places > self._share or self._taken.total() + places > self._total:
            yield False
            return
        self._taken[client] += places
        try:
            yield True
        finally:
            self._taken[client] -= places
            if not self._taken[client]:
                del self._taken[client]
