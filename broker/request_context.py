"""What a handler knows of a request besides its body."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from lowtide.broker.security.principal import KafkaPrincipal, ShownBy


class Client(Protocol):
    """The connection of a request."""

    listener_name: str
    peer: str
    """Address and port."""
    client_address: str
    """The address alone, as in ACLs."""
    local_address: tuple[str, int] | None
    """The local address and port of the connection; None if unknown."""
    principal: KafkaPrincipal
    """The client's principal, which can change with a new login."""
    shown_by: ShownBy
    """How the principal was authenticated."""

    software: tuple[str, str]
    """The client's software name and version (KIP-511); empty until sent."""
    write_grants: Any
    """The topics that the connection may write to; None if not checked yet (`guards/producing`)."""

    of_a_follower: bool
    """Whether its last Fetch was that of a follower."""

    @property
    def closed(self) -> bool: ...

    def mute(self, for_ms: int) -> None:
        """Stops executing requests for this time, because a quota is exceeded. Responses are sent."""
        ...

    def close(self, reason: str) -> None:
        """Closes the connection without a response; the reason is logged."""
        ...


class RequestContext(msgspec.Struct):
    """What a handler may know of a request besides its body."""

    api_version: int
    client_id: str | None
    connection: Client
    shared: dict[str, Any] | None = None
    """The shared state of a request in parts (`request_parts`); None for other requests."""
    correlation_id: int = 0
    forwarded: bool = False
    """Whether another broker received and authorized it."""
    of_a_broker: bool = False
    """Whether a broker sent it for itself; quotas do not apply."""

    @property
    def principal(self) -> KafkaPrincipal:
        return self.connection.principal

    @property
    def client_address(self) -> str:
        return self.connection.client_address

    def close_connection(self, reason: str) -> None:
        """Closes the connection for an error without a response (acks=0)."""
        self.connection.close(reason)
