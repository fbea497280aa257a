"""The commitment to a selector: it proves what was searched for, but only to those who have the nonce.

    SHA-256(nonce || kind || selector)

The nonce has 32 bytes and the kind one (`SelectorKind`). The selector has a single form for each meaning: keys and
offsets are sorted, and each text has its length before it, so two selectors never have the same bytes.

    >>> keys_selector([b"b", b"a"]) == keys_selector([b"a", b"b"])
    True
    >>> keys_selector([b"ab"]) == keys_selector([b"a", b"b"])
    False
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final

from lowtide.protocol.erasure_ledger_records import SelectorKind
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.types import TopicPartition

NONCE_BYTES: Final = 32

_COUNT: Final = struct.Struct(">I")
_PARTITION: Final = struct.Struct(">iI")
_RANGE: Final = struct.Struct(">qq")
_NULL: Final = b"\x00"
_PRESENT: Final = b"\x01"


def keys_selector(keys: Iterable[bytes]) -> bytes:
    """Returns the form of a set of keys: each with its length (uint32), in ascending order."""
    return b"".join(map(_sized, sorted(set(keys))))


def header_selector(name: str, value: bytes | None) -> bytes:
    """Returns the form of a header: its name, and then 0 for null, or 1 and the value."""
    return _sized(name.encode()) + (_NULL if value is None else _PRESENT + _sized(value))


def offsets_selector(offsets: Mapping[TopicPartition, OffsetRanges]) -> bytes:
    """Returns the form of offsets: for each partition the topic, the number (int32), and the inclusive ranges."""
    parts: list[bytes] = []
    for (topic, partition), found in sorted(offsets.items(), key=lambda item: item[0]):
        ranges = found.ranges()
        parts += [_sized(topic.encode()), _PARTITION.pack(partition, len(ranges))]
        parts += [_RANGE.pack(first, last) for first, last in ranges]
    return b"".join(parts)


def commitment(nonce: bytes, kind: SelectorKind, selector: bytes) -> bytes:
    """Returns the commitment to a selector in its form. Errors: ValueError for a nonce of another length."""
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"the nonce has {len(nonce)} bytes instead of {NONCE_BYTES}")
    return sha256(nonce + bytes((kind,)) + selector).digest()


def is_committed(committed: bytes, nonce: bytes, kind: SelectorKind, selector: bytes) -> bool:
    """Returns whether a commitment is to this selector, in a time that does not depend on the bytes."""
    return hmac.compare_digest(committed, commitment(nonce, kind, selector))


def _sized(content: bytes) -> bytes:
    return _COUNT.pack(len(content)) + content
