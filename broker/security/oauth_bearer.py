"""SASL/OAUTHBEARER on the broker's side (RFC 7628): one token of the client, which contains a JSON Web Token.

    n,a=authorization id,  ^A  auth=Bearer <token>  ^A  name=value  ^A  ^A

An invalid token is answered with a challenge in JSON. The client answers that with any token, and is refused.
Unreadable input is refused at once. Extensions (`name=value`) must be well-formed and have no effect, as with Kafka's
own handler.

Guards: a client gets one try (Kafka accepts another token after the challenge). Only the log says why a token is
invalid. Sources: Kafka's `OAuthBearerSaslServer`, `OAuthBearerClientInitialResponse`, KIP-255, KIP-342 (extensions).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from lowtide.broker.security.exchange import Challenge, LoginFailure, LoginSuccess, Outcome, same_user, unescaped
from lowtide.broker.security.jwt_claims import TokenHolder

MECHANISM: Final = "OAUTHBEARER"

TOKEN_BYTES_MAX: Final = 64 * 1024
"""The size limit of the client's token. A JSON Web Token has 1 or 2 KB, or 10 to 20 KB if its user is in many
groups."""

CHALLENGE: Final = b'{"status":"invalid_token"}'
"""Kafka's challenge, which names neither a scope nor a token service."""

_VALUE: Final = rb"[\x21-\x7e \t\r\n]+"
_FIRST: Final = re.compile(
    rb"n,(?:a=((?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,\x01((?:[A-Za-z]+=%b\x01)*)\x01" % _VALUE
)
_BEARER: Final = re.compile(rb"bearer +([-_.A-Za-z0-9]+)", re.IGNORECASE)
_AUTH: Final = b"auth"

TokenCheck: TypeAlias = Callable[[str], "TokenHolder | LoginFailure"]
"""Returns the user of a JSON Web Token and its end, or the refusal."""


class OAuthBearerExchange:
    """A login by OAUTHBEARER. `wall_ms` returns the time since 1970."""

    def __init__(self, check: TokenCheck, wall_ms: Callable[[], int]) -> None:
        self._check = check
        self._wall_ms = wall_ms
        self._refused: LoginFailure | None = None

    def step(self, token: bytes) -> Outcome:
        """Checks the JSON Web Token. After a challenge, any token ends the exchange."""
        if self._refused is not None:
            return self._refused
        first = _read(token)
        if isinstance(first, LoginFailure):
            return first
        holder = self._check(first.bearer)
        if not isinstance(holder, TokenHolder):
            self._refused = holder
            return Challenge(CHALLENGE)
        if first.authorization_id is None or not same_user(first.authorization_id, holder.name):
            return LoginFailure("it wants to act for another user", holder.name)
        return LoginSuccess(holder.name, lifetime_ms=max(holder.expires_ms - self._wall_ms(), 1))


class _First(NamedTuple):
    """The content of the client's token."""

    bearer: str
    authorization_id: str | None
    """None if it is unreadable."""


def _read(token: bytes) -> _First | LoginFailure:
    match = _FIRST.fullmatch(token) if len(token) <= TOKEN_BYTES_MAX else None
    if match is None:
        return LoginFailure("the token is not one of OAUTHBEARER")
    pairs = [pair.partition(b"=") for pair in match[2].split(b"\x01")[:-1]]
    named = {name: value for name, _, value in pairs}
    if len(named) < len(pairs):
        return LoginFailure("the token has an extension twice")
    bearer = _BEARER.fullmatch(named.get(_AUTH, b""))
    if bearer is None:
        return LoginFailure("the token has no bearer token")
    return _First(bearer[1].decode(), unescaped(match[1] or b""))
