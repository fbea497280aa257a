"""Defines how a SASL mechanism takes part in the login of a connection: tokens in, tokens or an outcome out.

The reason of a refusal is for the broker's log. The client gets the same text for all refusals, so that it learns
neither which users exist nor how close it was.
"""

from __future__ import annotations

import re
from typing import Any, Protocol, TypeAlias

import msgspec


class Challenge(msgspec.Struct, frozen=True, gc=False):
    """Continues the exchange with this token to the client."""

    token: bytes


class LoginSuccess(msgspec.Struct, frozen=True, gc=False):
    """The client is this user. `token` is the last one to send and may be empty."""

    user: str
    token: bytes = b""
    lifetime_ms: int = 0
    """For how long the login is valid; 0 is unlimited."""
    by_token: bool = False
    """Whether the client used a delegation token."""


class LoginFailure(msgspec.Struct, frozen=True, gc=False):
    """A refused login. `reason` is for the log and contains no secret. `user` is the claimed user, empty if unknown."""

    reason: str
    user: str = ""


Outcome: TypeAlias = Challenge | LoginSuccess | LoginFailure


class SaslExchange(Protocol):
    """A login by one mechanism. It isn't used after an outcome other than a challenge."""

    def step(self, token: bytes) -> Outcome:
        """Processes the client's next token."""


def same_user(authorization_id: str, user: str) -> bool:
    """Returns whether a client acts for itself. Acting for another user is refused. Source: CVE-2017-12610."""
    return not authorization_id or authorization_id == user


def unescaped(name: bytes) -> str | None:
    """Replaces the escapes `=2C` (comma) and `=3D` (equals sign) in a name. Returns None if it is invalid.

    Source: RFC 5801.
    """
    pieces: Any = re.split(rb"(=2C|=3D)", name)
    if any(b"=" in piece for piece in pieces[::2]):
        return None
    try:
        return b"".join({b"=2C": b",", b"=3D": b"="}.get(piece, piece) for piece in pieces).decode()
    except UnicodeDecodeError:
        return None
