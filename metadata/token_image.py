"""What an image shows of delegation tokens, by key. A key can be computed only from the HMAC."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata.records import TokenRecord, decode

if TYPE_CHECKING:
    from lowtide.metadata.store import KeyEvent, KeyValue, Revision


class TokenImage(msgspec.Struct, frozen=True):
    """One token. A change compares `revision`."""

    token: TokenRecord
    revision: Revision


def apply_token(tokens: dict[bytes, TokenImage], key: bytes, change: KeyValue | KeyEvent) -> None:
    """Adds, changes or removes the token under a key. Errors: MetadataCorruptError."""
    if change.value is None:
        tokens.pop(key, None)
    else:
        tokens[key] = TokenImage(decode(key, change.value, TokenRecord), change.modify_revision)
