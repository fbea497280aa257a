"""Computes the HMACs of delegation tokens (KIP-48), and decides who may do what with a token.

A token's HMAC is made from its id and a secret that all brokers have (`delegation.token.secret.key`). As base64 it is
the password of a SCRAM login. It isn't stored: brokers compute it, and the metadata have what checks it. Pure. Sources:
Kafka's `DelegationTokenManager`, `DelegationTokenControlManager`, `TokenInformation`.
"""

from __future__ import annotations

import base64
import hmac
from typing import TYPE_CHECKING, Final

from lowtide.protocol.scram import ITERATIONS_MIN, ScramMechanism, credential_of, salted_password

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lowtide.broker.security.principal import KafkaPrincipal
    from lowtide.metadata.records import TokenRecord
    from lowtide.protocol.scram import ScramCredential

SALT_BYTES: Final = 24
"""As many as in mock exchanges, so that a challenge doesn't reveal whether a token exists."""

TIME_MAX_MS: Final = 2**63 - 1
"""The latest possible time. Source: Kafka's `DelegationTokenControlManager.sum`."""


class TokenSecret:
    """Computes HMACs with a secret, which it never shows."""

    __slots__ = ("_key", "salts")

    def __init__(self, text: str) -> None:
        """`text` isn't empty."""
        assert text
        self._key = text.encode()
        self.salts = hmac.digest(self._key, b"salts of unknown tokens", "sha256")
        """The key of the salts of tokens that don't exist."""

    def hmac_of(self, token_id: str) -> bytes:
        """Returns the HMAC of a token, by its id."""
        return hmac.digest(self._key, token_id.encode(), "sha512")


def secret_of(value: object) -> TokenSecret | None:
    """Returns the configured secret, or None if it is empty: then there are no tokens."""
    return TokenSecret(value) if isinstance(value, str) and value else None


def password_of(token_hmac: bytes) -> str:
    """Returns the password that a client logs in with."""
    return base64.b64encode(token_hmac).decode()


def credentials_of(
    token_hmac: bytes, salts: Collection[tuple[ScramMechanism, bytes]]
) -> dict[ScramMechanism, ScramCredential]:
    """Returns the credentials that check the password, by mechanism. Takes milliseconds."""
    password = password_of(token_hmac)
    return {
        mechanism: credential_of(
            mechanism, salted_password(mechanism, password, salt, ITERATIONS_MIN), salt, ITERATIONS_MIN
        )
        for mechanism, salt in salts
    }


def may_change(token: TokenRecord, principal: KafkaPrincipal) -> bool:
    """Returns whether a principal may renew and expire a token: it is its owner or a renewer."""
    text = str(principal)
    return text == token.owner or text in token.renewers


def concerns(token: TokenRecord, principal: str) -> bool:
    """Returns whether a principal may see a token without other rights: it is its owner, its requester or a renewer."""
    return principal in (token.owner, token.requester) or principal in token.renewers


def is_shown(
    token: TokenRecord, asker: KafkaPrincipal, owners: Collection[str] | None, may_see: Callable[[TokenRecord], bool]
) -> bool:
    """Returns whether a token is described to `asker`.

    `owners`: only tokens that concern one of these; None is all. `may_see`: whether a right of the asker shows the
    token.
    """
    if owners is not None and not any(concerns(token, owner) for owner in owners):
        return False
    return concerns(token, str(asker)) or may_see(token)


def later(now_ms: int, period_ms: int) -> int:
    """Returns a time after a period, limited to the latest possible time."""
    return min(now_ms + period_ms, TIME_MAX_MS)
