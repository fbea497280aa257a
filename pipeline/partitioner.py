"""Chooses the partition of each row: by its key, as Kafka's clients do, or the same for a batch of rows without a key.

Keys are hashed by murmur2, so that a key goes where the Java client and Spark's own connector would send it. Rows
without a key stay with one partition until about a batch is full, then go to the next (KIP-480, KIP-794): as many small
batches would cost more. Whole columns at once: no object is created for a row.

Source: Kafka's `Utils.murmur2`, `BuiltInPartitioner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = np.uint32(0x5BD1E995)
_POSITIVE: Final = np.uint32(0x7FFF_FFFF)


def murmur2(offsets: NDArray[np.int32], content: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The hash of each byte string: string i is `content[offsets[i]:offsets[i + 1]]`."""
    starts = offsets[:-1].astype(np.int64)
    lengths = np.diff(offsets).astype(np.int64)
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    with np.errstate(over="ignore"):
        words = lengths // 4
        rows = np.flatnonzero(words)
        number = 0
        while len(rows):
            at = starts[rows] + 4 * number
            word = _little_endian(content, at, 4) * _MULTIPLIER
            word = (word ^ (word >> np.uint32(24))) * _MULTIPLIER
            hashes[rows] = (hashes[rows] * _MULTIPLIER) ^ word
            number += 1
            rows = rows[words[rows] > number]
        for left in (1, 2, 3):
            rows = np.flatnonzero(lengths % 4 == left)
            rest = _little_endian(content, starts[rows] + 4 * words[rows], left)
            hashes[rows] = (hashes[rows] ^ rest) * _MULTIPLIER
        hashes = (hashes ^ (hashes >> np.uint32(13))) * _MULTIPLIER
        return hashes ^ (hashes >> np.uint32(15))


def _little_endian(content: NDArray[np.uint8], at: NDArray[np.int64], size: int) -> NDArray[np.uint32]:
    found = np.zeros(len(at), np.uint32)
    for place in range(size):
        found |= content[at + place].astype(np.uint32) << np.uint32(8 * place)
    return found


def partitions_of_keys(
    offsets: NDArray[np.int32], content: NDArray[np.uint8], partition_count: int
) -> NDArray[np.int32]:
    """The partition of each key."""
    return ((murmur2(offsets, content) & _POSITIVE) % np.uint32(partition_count)).astype(np.int32)


@dataclass(slots=True, kw_only=True)
class StickyPartition:
    """Where rows of one topic that have no key go; remembers it from one column of rows to the next."""

    batch_bytes: int
    turn: int
    """Begins anywhere, so that many tasks do not all begin with partition 0."""

    _filled_bytes: int = 0

    def partitions(self, sizes: NDArray[np.int64], available: Sequence[int]) -> NDArray[np.int32]:
        """The partition of each row, by the bytes that rows take; `available` are the partitions that have a leader."""
        begins = self._filled_bytes + np.cumsum(sizes) - sizes
        turns = self.turn + begins // self.batch_bytes
        if len(sizes):
            end = int(begins[-1] + sizes[-1])
            self.turn += end // self.batch_bytes
            self._filled_bytes = end % self.batch_bytes
        chosen: NDArray[np.int32] = np.asarray(available, np.int32)[turns % len(available)]
        return chosen
