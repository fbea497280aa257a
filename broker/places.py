"""Bounded places for requests that wait or are worked on, of which no client takes all. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from lowtide.broker.security.principal import ANONYMOUS
from lowtide.runtime.addresses import network_of

if TYPE_CHECKING:
    from lowtide.broker.security.principal import KafkaPrincipal


class AskingClient(Protocol):
    """What tells clients apart."""

    @property
    def client_address(self) -> str: ...
    @property
    def principal(self) -> KafkaPrincipal | None: ...


def client_of(asker: AskingClient) -> str:
    """Returns whose share a request uses: a principal's, or without a login that of the address."""
    return network_of(asker.client_address) if asker.principal in (None, ANONYMOUS) else str(asker.principal)


class WaitingPlaces:
    """A bounded number of places for requests, of which each client may take `share`."""

    def __init__(self, total: int, share: int) -> None:
        self._total = total
        self._share = share
        self._taken: Counter[str] = Counter()

    def __len__(self) -> int:
        """Returns how many places are taken."""
        return self._taken.total()

    @contextmanager
    def taken_by(self, asker: AskingClient, places: int = 1) -> Iterator[bool]:
        """Takes places until the block ends.

        Gives False, and takes none, where all are taken or the client has its share.
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
