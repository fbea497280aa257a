"""Who a client is, in Kafka's form: a type and a name, as in `User:alice`.

Source: Kafka's `KafkaPrincipal` and `SecurityUtils.parseKafkaPrincipal`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

USER_TYPE: Final = "User"
"""The type of every principal that Kafka's own logins make."""


class KafkaPrincipal(msgspec.Struct, frozen=True, gc=False):
    """A client, or the one that a rule is about. Both parts are case-sensitive."""

    type: str
    name: str

    def __str__(self) -> str:
        """`Type:name`, as in rules and logs."""
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = KafkaPrincipal(USER_TYPE, "ANONYMOUS")
"""A client that has not logged in."""


class ShownBy(Enum):
    """How a connection has shown who its client is."""

    NOTHING = "nothing: the client is anonymous"
    CERTIFICATE = "the certificate of its TLS connection"
    LOGIN = "a login with its own password"
    TOKEN = "a login with a delegation token"  # noqa: S105 - words

    @property
    def may_ask_for_tokens(self) -> bool:
        """Whether tokens are created, changed and shown: a token leads to no other one.

        Source: Kafka's `allowTokenRequests`.
        """
        return self in (ShownBy.CERTIFICATE, ShownBy.LOGIN)


def parse_principal(text: str) -> KafkaPrincipal:
    """From `Type:name`; the name may have colons.

    Errors: ValueError if there is no colon, or nothing before or after it.
    """
    kind, _, name = text.partition(":")
    if not kind or not name:
        raise ValueError(f"a principal is Type:name, such as User:alice, and not {text!r}")
    return KafkaPrincipal(kind, name)
