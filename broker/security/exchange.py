"""What a SASL mechanism is for the login of a connection: tokens in, tokens or an outcome out.

A refusal has a reason for the broker's own log; the client gets one text for all of them, so that it learns neither
which users there are nor how near it was.
"""

from __future__ import annotations

import re
from typing import Any, Protocol, TypeAlias

import msgspec


class Challenge(msgspec.Struct, frozen=True, gc=False):
    """The exchange goes on: send this token."""

    token: bytes


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The client is this user. `token` is the last one to send, and may be empty."""

    user: str
    token: bytes = b""
    lifetime_ms: int = 0
    """For how long what the client has shown still holds; 0 is for ever."""
    by_token: bool = False
    """Whether it has shown a delegation token."""


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The client is not let in.

    `reason` is for the log and holds no secret; `user` is who it claimed to be, empty if that isn't known.
    """

    reason: str
    user: str = ""


Outcome: TypeAlias = Challenge | Accepted | Refused


class Exchange(Protocol):
    """One login by one mechanism. After an outcome other than a challenge it is not used again."""

    def step(self, token: bytes) -> Outcome:
        """What follows from the client's next token."""


def same_user(authorization_id: str, user: str) -> bool:
    """Whether a client acts for itself: to act for another user is not possible. Source: CVE-2017-12610."""
    return not authorization_id or authorization_id == user


def unescaped(name: bytes) -> str | None:
    """A name without its escapes, `=2C` for a comma and `=3D` for an equals sign; None if it can't be.

    Source: RFC 5801.
    """
    pieces: Any = re.split(rb"(=2C|=3D)", name)
    if any(b"=" in piece for piece in pieces[::2]):
        return None
    try:
        return b"".join({b"=2C": b",", b"=3D": b"="}.get(piece, piece) for piece in pieces).decode()
    except UnicodeDecodeError:
        return None
