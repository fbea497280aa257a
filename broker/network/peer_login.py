"""How a broker shows others who it is: a certificate, a login by SASL, both, or nothing."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import msgspec

from lowtide.protocol.client.sasl import ClientSaslSettings


class PeerLogin(msgspec.Struct, frozen=True):
    """What is done on each new connection to another broker before it is used."""

    tls: Callable[[], ssl.SSLContext] | None = None
    """The context in force."""
    sasl: ClientSaslSettings | None = None
    token: Callable[[], Awaitable[str]] | None = None
    """What an issuer has signed and that holds now, for OAUTHBEARER. Errors: OSError."""
    nonce: Callable[[], str] = str
    """Never gives the same twice."""

    async def who(self) -> ClientSaslSettings | None:
        """Who we say we are, on one connection. Errors: OSError, where there is no token."""
        return self.sasl if self.sasl is None or self.token is None else replace(self.sasl, token=await self.token())


NO_LOGIN: Final = PeerLogin()
