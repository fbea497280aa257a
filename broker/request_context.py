"""What a handler may know of a request besides its body."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from lowtide.broker.security.principal import KafkaPrincipal, ShownBy


class Client(Protocol):
    """The connection by which a request came."""

    listener_name: str
    peer: str
    """Address and port."""
    client_address: str
    """The address alone, as rules name it."""
    local_address: tuple[str, int] | None
    """The address of this machine, and the port, at which the connection arrived; None where that isn't known."""
    principal: KafkaPrincipal
    """Who the client is; it may become another one with a new login on the same connection."""
    shown_by: ShownBy
    """How it has shown that."""

    software: tuple[str, str]
    """The name and version of the client's software, as it has said (KIP-511); empty until then."""
    write_grants: Any
    """What the connection was found to be allowed to write to; None while that isn't known (`guards/producing`)."""

    of_a_follower: bool
    """Whether its last Fetch was one of a broker, of what that replicates."""

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        ...

    def mute(self, for_ms: int) -> None:
        """Execute no further request for so long: the client is above its quota. What is answered is sent."""
        ...

    def close(self, reason: str) -> None:
        """End the connection without another answer; the reason is logged."""
        ...


class RequestContext(msgspec.Struct):
    """What a handler may know of a request besides its body."""

    api_version: int
    client_id: str | None
    connection: Client
    shared: dict[str, Any] | None = None
    """What the parts of a request that was cut share (`request_parts`); None for one that wasn't."""
    correlation_id: int = 0
    forwarded: bool = False
    """Another broker received it, and has asked whether its client may do that."""
    of_a_broker: bool = False
    """A broker asks for what it needs itself, for no client: no quota counts."""

    @property
    def principal(self) -> KafkaPrincipal:
        """Who sent the request."""
        return self.connection.principal

    @property
    def client_address(self) -> str:
        """From which address."""
        return self.connection.client_address

    def close_connection(self, reason: str) -> None:
        """End the connection: an error that has no place in an answer (acks=0)."""
        self.connection.close(reason)
