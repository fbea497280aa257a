"""SASL/PLAIN, the broker's side (RFC 4616): one token with the authorization id, the user and the password.

    authorization id  NUL  user  NUL  password

Guards: the time of a comparison depends on nothing that the broker keeps. Unknown users cost what known ones do.
Source: Kafka's `PlainSaslServer`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from lowtide.broker.security.exchange import Accepted, Outcome, Refused, same_user

MECHANISM: Final = "PLAIN"
_TOKENS: Final = 3


class PlainUsers:
    """Who may log in, by names and passwords. Keeps digests of the passwords, and shows none."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._digests = {user: _digest(password) for user, password in passwords.items()}

    def __repr__(self) -> str:
        """How many there are."""
        return f"PlainUsers({len(self._digests)})"

    def has(self, user: str, password: str) -> bool:
        """Whether this is the password of a user that there is."""
        known = self._digests.get(user)
        is_equal = hmac.compare_digest(_digest(password), _NO_ONE if known is None else known)
        return is_equal and known is not None


class PlainExchange:
    """One login by PLAIN."""

    def __init__(self, users: PlainUsers) -> None:
        self._users = users

    def step(self, token: bytes) -> Outcome:
        """Check the only token that there is."""
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            return Refused("the token is not UTF-8")
        if len(parts) != _TOKENS:
            return Refused(f"the token has {len(parts)} parts instead of {_TOKENS}")
        authorization_id, user, password = parts
        if not user or not password:
            return Refused("the user or the password is empty", user)
        if not self._users.has(user, password):
            return Refused("the user is unknown, or the password is wrong", user)
        if not same_user(authorization_id, user):
            return Refused("it wants to act for another user", user)
        return Accepted(user)


def _digest(password: str) -> bytes:
    """A password in a form whose comparison doesn't show its length."""
    return hashlib.sha256(password.encode()).digest()


_NO_ONE: Final = bytes(hashlib.sha256().digest_size)
