"""Delegation tokens (KIP-48): their HMACs, and who may do what with them.

A token's HMAC is that of its id, with a secret that all brokers have (`delegation.token.secret.key`); as base64 it is
the password of a login by SCRAM. It is kept nowhere: brokers compute it, and the metadata have what checks it.

Pure. Sources: Kafka's `DelegationTokenManager`, `DelegationTokenControlManager`, `TokenInformation`.
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
"""As many as mock exchanges have, so that a challenge doesn't show whether there is a token."""

TIME_MAX_MS: Final = 2**63 - 1
"""No time is later. Source: Kafka's `DelegationTokenControlManager.sum`."""


class TokenSecret:
    """What HMACs are computed with. Shows nothing of it."""

    __slots__ = ("_key", "salts")

    def __init__(self, text: str) -> None:
        """`text` is not empty."""
        assert text
        self._key = text.encode()
        self.salts = hmac.digest(self._key, b"salts of unknown tokens", "sha256")
        """What the salts of tokens are made with that aren't there."""

    def hmac_of(self, token_id: str) -> bytes:
        """The HMAC of a token, by its id."""
        return hmac.digest(self._key, token_id.encode(), "sha512")


def secret_of(value: object) -> TokenSecret | None:
    """The secret in a configuration's value; None where it is empty: then there are no tokens."""
    return TokenSecret(value) if isinstance(value, str) and value else None


def password_of(token_hmac: bytes) -> str:
    """What a client gives as its password."""
    return base64.b64encode(token_hmac).decode()


def credentials_of(
    token_hmac: bytes, salts: Collection[tuple[ScramMechanism, bytes]]
) -> dict[ScramMechanism, ScramCredential]:
    """What checks that password, by mechanism. Takes milliseconds."""
    password = password_of(token_hmac)
    return {
        mechanism: credential_of(
            mechanism, salted_password(mechanism, password, salt, ITERATIONS_MIN), salt, ITERATIONS_MIN
        )
        for mechanism, salt in salts
    }


def may_change(token: TokenRecord, principal: KafkaPrincipal) -> bool:
    """Whether a principal may renew a token, and end it: its owner and its renewers may."""
    text = str(principal)
    return text == token.owner or text in token.renewers


def concerns(token: TokenRecord, principal: str) -> bool:
    """Whether a token is shown to a principal without any right: to its owner, to whom it was given, and to its renewers."""
    return principal in (token.owner, token.requester) or principal in token.renewers


def is_shown(
    token: TokenRecord, asker: KafkaPrincipal, owners: Collection[str] | None, may_see: Callable[[TokenRecord], bool]
) -> bool:
    """Whether a token is described.

    `owners`: only tokens that concern one of these; None is all. `may_see`: by a right of the asker.
    """
    if owners is not None and not any(concerns(token, owner) for owner in owners):
        return False
    return concerns(token, str(asker)) or may_see(token)


def later(now_ms: int, period_ms: int) -> int:
    """A time after another one, as far as there are times."""
    return min(now_ms + period_ms, TIME_MAX_MS)
