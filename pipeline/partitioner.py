"""Chooses the partition of each row, for whole columns at once.

Keys are hashed by murmur2, like in the Java client and in Spark's own connector. Rows without a key go to one partition
until about a batch is full, then to the next (KIP-480, KIP-794), because many small batches cost more.

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
    """Returns the hash of each byte string: string i is `content[offsets[i]:offsets[i + 1]]`."""
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
    """Returns the partition of each key."""
    return ((murmur2(offsets, content) & _POSITIVE) % np.uint32(partition_count)).astype(np.int32)


@dataclass(slots=True, kw_only=True)
class StickyPartition:
    """Chooses partitions for the rows of one topic that have no key. The next column continues where one ended."""

    batch_bytes: int
    turn: int
    """Counts filled batches. Its start differs between tasks, so that they do not all begin with partition 0."""

    _filled_bytes: int = 0

    def partitions(self, sizes: NDArray[np.int64], available: Sequence[int]) -> NDArray[np.int32]:
        """Returns the partition of each row from their sizes in bytes. `available` are the partitions with a leader."""
        begins = self._filled_bytes + np.cumsum(sizes) - sizes
        turns = self.turn + begins // self.batch_bytes
        if len(sizes):
            end = int(begins[-1] + sizes[-1])
            self.turn += end // self.batch_bytes
            self._filled_bytes = end % self.batch_bytes
        chosen: NDArray[np.int32] = np.asarray(available, np.int32)[turns % len(available)]
        return chosen
