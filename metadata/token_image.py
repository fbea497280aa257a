"""What an image shows of delegation tokens: by their keys, which only those compute that have the HMAC, or the brokers' secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata.records import TokenRecord, decode

if TYPE_CHECKING:
    from lowtide.metadata.store import Event, KeyValue, Revision


class TokenImage(msgspec.Struct, frozen=True):
    """One token. `revision` is what a change of it must compare with."""

    token: TokenRecord
    revision: Revision


def take_over_token(tokens: dict[bytes, TokenImage], key: bytes, change: KeyValue | Event) -> None:
    """Add, change or remove the token under a key. Errors: MetadataCorruptError."""
    if change.value is None:
        tokens.pop(key, None)
    else:
        tokens[key] = TokenImage(decode(key, change.value, TokenRecord), change.modify_revision)
