"""What a handler may know of a request besides its body."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import msgspec

from lowtide.broker.authorizer import ANONYMOUS


class Client(Protocol):
    """The connection by which a request came."""

    listener_name: str
    peer: str
    """Address and port."""

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
    principal: ClassVar[str] = ANONYMOUS

    def close_connection(self, reason: str) -> None:
        """End the connection: an error that has no place in an answer (acks=0)."""
        self.connection.close(reason)
