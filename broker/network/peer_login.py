"""How a broker authenticates to others: by a certificate, a SASL login, both, or neither."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import msgspec

from lowtide.protocol.client.sasl import ClientSaslSettings


class PeerLogin(msgspec.Struct, frozen=True):
    """How each new connection to another broker is authenticated before it is used."""

    tls: Callable[[], ssl.SSLContext] | None = None
    """Returns the current TLS context."""
    sasl: ClientSaslSettings | None = None
    token: Callable[[], Awaitable[str]] | None = None
    """Returns a valid token of the issuer, for OAUTHBEARER. Errors: OSError."""
    nonce: Callable[[], str] = str
    """Returns another value at each call."""

    async def who(self) -> ClientSaslSettings | None:
        """Returns the SASL settings for one connection; None without SASL. Errors: OSError if there is no token."""
        return self.sasl if self.sasl is None or self.token is None else replace(self.sasl, token=await self.token())


NO_LOGIN: Final = PeerLogin()
