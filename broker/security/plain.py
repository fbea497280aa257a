"""SASL/PLAIN on the broker's side (RFC 4616): one token with the authorization id, the user and the password.

    authorization id  NUL  user  NUL  password

Guards: the time of a comparison depends on no secret. Unknown users cost as much as known ones. Source: Kafka's
`PlainSaslServer`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from lowtide.broker.security.exchange import LoginFailure, LoginSuccess, Outcome, same_user

MECHANISM: Final = "PLAIN"
_TOKENS: Final = 3


class PlainUsers:
    """The users that may log in. Keeps digests of their passwords, and shows none."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._digests = {user: _digest(password) for user, password in passwords.items()}

    def __repr__(self) -> str:
        return f"PlainUsers({len(self._digests)})"

    def has(self, user: str, password: str) -> bool:
        """Returns whether the user exists and has this password."""
        known = self._digests.get(user)
        is_equal = hmac.compare_digest(_digest(password), _NO_ONE if known is None else known)
        return is_equal and known is not None


class PlainExchange:
    """A login by PLAIN."""

    def __init__(self, users: PlainUsers) -> None:
        self._users = users

    def step(self, token: bytes) -> Outcome:
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            return LoginFailure("the token is not UTF-8")
        if len(parts) != _TOKENS:
            return LoginFailure(f"the token has {len(parts)} parts instead of {_TOKENS}")
        authorization_id, user, password = parts
        if not user or not password:
            return LoginFailure("the user or the password is empty", user)
        if not self._users.has(user, password):
            return LoginFailure("the user is unknown, or the password is wrong", user)
        if not same_user(authorization_id, user):
            return LoginFailure("it wants to act for another user", user)
        return LoginSuccess(user)


def _digest(password: str) -> bytes:
    """Hashes a password, so that a comparison doesn't reveal its length."""
    return hashlib.sha256(password.encode()).digest()


_NO_ONE: Final = bytes(hashlib.sha256().digest_size)
