"""What a handler may know of a request besides its body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from lowtide.broker.authorizer import ANONYMOUS

if TYPE_CHECKING:
    from lowtide.broker.network.connection import Connection


class RequestContext(msgspec.Struct):
    """What a handler may know of a request besides its body."""

    api_version: int
    client_id: str | None
    connection: Connection
    shared: dict[str, Any] | None = None
    """What the parts of a request that was cut share (`request_parts`); None for one that wasn't."""
    principal: ClassVar[str] = ANONYMOUS

    def close_connection(self, reason: str) -> None:
        """End the connection: an error that can't be told to a client that wants no answer."""
        self.connection.close(reason)
