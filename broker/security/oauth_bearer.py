"""SASL/OAUTHBEARER, the broker's side (RFC 7628): one token of the client with a JSON Web Token in it.

    n,a=authorization id,  ^A  auth=Bearer <token>  ^A  name=value  ^A  ^A

A token that doesn't hold is answered by a challenge in JSON; the client answers it with any token, and is refused. What
can't be read is refused at once. Extensions (`name=value`) have to be well-formed and change nothing, as with Kafka's
own handler.

Guards: a client gets one try (Kafka looks at another token after the challenge). The reason why a token doesn't hold is
for the log alone. Sources: Kafka's `OAuthBearerSaslServer`, `OAuthBearerClientInitialResponse`, KIP-255, KIP-342
(extensions).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from lowtide.broker.security.exchange import Accepted, Challenge, Outcome, Refused, same_user, unescaped
from lowtide.broker.security.jwt_claims import TokenHolder

MECHANISM: Final = "OAUTHBEARER"

TOKEN_BYTES_MAX: Final = 64 * 1024
"""Design limit of the client's token: a JSON Web Token has one or two kilobytes, with many groups of its user ten or twenty."""

CHALLENGE: Final = b'{"status":"invalid_token"}'
"""Kafka's, which names neither a scope nor where to ask for a token."""

_VALUE: Final = rb"[\x21-\x7e \t\r\n]+"
_FIRST: Final = re.compile(
    rb"n,(?:a=((?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,\x01((?:[A-Za-z]+=%b\x01)*)\x01" % _VALUE
)
_BEARER: Final = re.compile(rb"bearer +([-_.A-Za-z0-9]+)", re.IGNORECASE)
_AUTH: Final = b"auth"

TokenCheck: TypeAlias = Callable[[str], "TokenHolder | Refused"]
"""Says of a JSON Web Token whom it stands for, and until when."""


class OAuthBearerExchange:
    """One login by OAUTHBEARER. `wall_ms` is the time now, since 1970."""

    def __init__(self, check: TokenCheck, wall_ms: Callable[[], int]) -> None:
        self._check = check
        self._wall_ms = wall_ms
        self._refused: Refused | None = None

    def step(self, token: bytes) -> Outcome:
        """Check the token with the JSON Web Token; what follows a challenge ends the exchange, whatever it is."""
        if self._refused is not None:
            return self._refused
        first = _read(token)
        if isinstance(first, Refused):
            return first
        holder = self._check(first.bearer)
        if not isinstance(holder, TokenHolder):
            self._refused = holder
            return Challenge(CHALLENGE)
        if first.authorization_id is None or not same_user(first.authorization_id, holder.name):
            return Refused("it wants to act for another user", holder.name)
        return Accepted(holder.name, lifetime_ms=max(holder.expires_ms - self._wall_ms(), 1))


class _First(NamedTuple):
    """What the client's token says."""

    bearer: str
    authorization_id: str | None
    """None if it can't be read."""


def _read(token: bytes) -> _First | Refused:
    match = _FIRST.fullmatch(token) if len(token) <= TOKEN_BYTES_MAX else None
    if match is None:
        return Refused("the token is not one of OAUTHBEARER")
    pairs = [pair.partition(b"=") for pair in match[2].split(b"\x01")[:-1]]
    named = {name: value for name, _, value in pairs}
    if len(named) < len(pairs):
        return Refused("the token has an extension twice")
    bearer = _BEARER.fullmatch(named.get(_AUTH, b""))
    if bearer is None:
        return Refused("the token has no bearer token")
    return _First(bearer[1].decode(), unescaped(match[1] or b""))
