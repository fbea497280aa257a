"""Identifies a client in Kafka's form, a type and a name, as in `User:alice`.

Source: Kafka's `KafkaPrincipal` and `SecurityUtils.parseKafkaPrincipal`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

USER_TYPE: Final = "User"
"""The type of every principal from Kafka's own logins."""


class KafkaPrincipal(msgspec.Struct, frozen=True, gc=False):
    """A client, or the subject of an access rule. Both parts are case-sensitive."""

    type: str
    name: str

    def __str__(self) -> str:
        """Returns `Type:name`, as in rules and logs."""
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = KafkaPrincipal(USER_TYPE, "ANONYMOUS")
"""A client without a login."""


class ShownBy(Enum):
    """How a connection proved who its client is."""

    NOTHING = "nothing: the client is anonymous"
    CERTIFICATE = "the certificate of its TLS connection"
    LOGIN = "a login with its own password"
    TOKEN = "a login with a delegation token"  # noqa: S105 - words

    @property
    def may_ask_for_tokens(self) -> bool:
        """Whether delegation tokens may be created, changed and shown. A login with a token doesn't allow it.

        Source: Kafka's `allowTokenRequests`.
        """
        return self in (ShownBy.CERTIFICATE, ShownBy.LOGIN)


def parse_principal(text: str) -> KafkaPrincipal:
    """Reads `Type:name`. The name may contain colons.

    Errors: ValueError without a colon, or if either part is empty.
    """
    kind, _, name = text.partition(":")
    if not kind or not name:
        raise ValueError(f"a principal is Type:name, such as User:alice, and not {text!r}")
    return KafkaPrincipal(kind, name)
