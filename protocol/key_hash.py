"""The partition of a key in Kafka's Java client (murmur2). `pipeline/partitioner.py` does whole columns.

>>> partition_of_key(b"21", 1000), partition_of_key(b"foobar", 1000)
(340, 166)

Source: Kafka's `Utils.murmur2`, `BuiltInPartitioner.partitionForKey`.
"""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_WORD: Final = 0xFFFF_FFFF
_POSITIVE: Final = 0x7FFF_FFFF


def partition_of_key(key: bytes, count: int) -> int:
    """Returns the partition of a key in a topic with `count` partitions."""
    return (murmur2(key) & _POSITIVE) % count


def murmur2(key: bytes) -> int:
    """Returns the murmur2 hash of a key, as Kafka computes it: an unsigned 32-bit number."""
    hashed = _SEED ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _MULTIPLIER & _WORD
        word = (word ^ word >> 24) * _MULTIPLIER & _WORD
        hashed = (hashed * _MULTIPLIER & _WORD) ^ word
    if whole < len(key):
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _WORD
    hashed = (hashed ^ hashed >> 13) * _MULTIPLIER & _WORD
    return hashed ^ hashed >> 15
