"""Digests of record keys, by which brokers recognise a key that a standing erasure names without having the key.

A digest is a hint and an HMAC: the CRC-32 of the key, four bytes big-endian, then HMAC-SHA256 of the key with a secret.
The hint spares a search the HMAC of nearly all other keys. Whoever has secret and digest can test guesses of the key,
with the hint or without.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Final
from zlib import crc32

import msgspec

SECRET_BYTES: Final = 32
HINT_BYTES: Final = 4
DIGEST_BYTES: Final = HINT_BYTES + 32


class KeyDigests(msgspec.Struct, frozen=True):
    """The digests of some keys, all made with the same secret."""

    secret: bytes
    digests: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"KeyDigests({len(self.digests)} keys)"


def key_digest(secret: bytes, key: bytes) -> bytes:
    """Returns the digest of a key."""
    return crc32(key).to_bytes(HINT_BYTES, "big") + hmac.digest(secret, key, "sha256")


class DigestIndex:
    """Finds the groups of digests that have a key."""

    def __init__(self, groups: Iterable[KeyDigests]) -> None:
        self._by_hint: dict[int, list[tuple[int, bytes, bytes]]] = {}
        for number, group in enumerate(groups):
            for digest in group.digests:
                hint = int.from_bytes(digest[:HINT_BYTES], "big")
                self._by_hint.setdefault(hint, []).append((number, group.secret, digest))

    def groups_of(self, key: bytes) -> tuple[int, ...]:
        """Returns the numbers of the groups that have the key, in ascending order."""
        hinted = self._by_hint.get(crc32(key), ())
        return tuple(number for number, secret, digest in hinted if key_digest(secret, key) == digest)
