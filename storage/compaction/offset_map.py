"""The last offset of each key of a part of a log, in bounded memory.

A table with open addressing stores 64 bits of each key's hash, and 24 bits of its CRC beside the offset. Two keys are
confused only if both agree: with a million keys that happens once in 10^14 compactions. The table begins small and
doubles. `ENTRY_BYTES` is the most that a key takes, while a table is copied into one of twice its size.

The hash is the interpreter's own (SipHash, with a secret of the process), or another one in the compiled form, with a
secret derived from it. So clients can't choose keys that collide.

It decides nothing. Its two walks over a batch's keys dominate the cost of compaction, so both have a compiled form
(`protocol/native/`). Source: Kafka's SkimpyOffsetMap.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import count as numbers
from typing import Final, NamedTuple
from zlib import crc32

from lowtide.protocol import native
from lowtide.protocol.compression import Buffer
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.record_keys import RecordKeys, find_keys
from lowtide.protocol.types import Offset

ENTRY_BYTES: Final = 72
"""The most a key takes; 24 to 48 while the table isn't growing."""

_SMALLEST: Final = 1 << 10
"""Places of a new table."""
_CHECK_BITS: Final = 24
_CHECK: Final = (1 << _CHECK_BITS) - 1
_SPAN_MAX: Final = 1 << 38
"""The span of offsets that one map can tell apart."""


class RetainedRecords(NamedTuple):
    """The records that remain of a batch."""

    record_count: int
    has_tombstones: bool
    max_timestamp_delta: int
    """Relative to the batch's base timestamp, as it was."""
    records: bytes | None
    """None if unchanged."""


class OffsetMap:
    """The last offset of each key. `len` is the number of keys."""

    __slots__ = (
        "_compiled",
        "_count",
        "_entries_max",
        "_grow_at",
        "_mask",
        "_origin",
        "_secret",
        "_table",
        "latest_offset",
    )

    def __init__(self, memory_bytes: int) -> None:
        """Errors: ValueError for memory that can't hold a single key."""
        self._entries_max = memory_bytes // ENTRY_BYTES
        if self._entries_max < 1:
            raise ValueError(f"{memory_bytes} bytes don't hold a key: at least {ENTRY_BYTES} are needed")
        self._compiled = native.compiled
        # The interpreter's hash has a secret of this process.
        self._secret = struct.pack("=qq", hash(b"the first half"), hash(b"the second half"))
        self._count = 0
        self._origin: Offset = 0
        """One below the first offset: values are relative to it, so that none is 0."""
        self._allocate(_SMALLEST)
        self.latest_offset: Offset = -1
        """The last offset looked at (inclusive): what lies above isn't compacted this time."""

    def __len__(self) -> int:
        return self._count

    def _allocate(self, places: int) -> None:
        # Value and hash of a place are side by side, in one cache line.
        self._table = array("q", bytes(16 * places))
        self._mask = 2 * places - 2
        self._grow_at = min(places * 2 // 3, self._entries_max)

    def _grow(self) -> bool:
        """Doubles the table. Returns False, with nothing changed, if that takes too much memory."""
        if self._count >= self._entries_max:
            return False
        before, old = self._table, iter(self._table)
        self._allocate(self._mask + 2)
        table, mask = self._table, self._mask
        if self._compiled is not None:
            self._compiled.copy_keys(before, table)
            return True
        for value, key_hash in zip(old, old, strict=True):
            if value:
                place = key_hash & mask
                while table[place]:
                    place = (place + 2) & mask
                table[place] = value
                table[place + 1] = key_hash
        return True

    def _hashes(self, keys: list[bytes]) -> tuple[Iterable[int], Iterable[int]]:
        if self._compiled is None:
            return map(hash, keys), map(crc32, keys)
        hash_key, secret = self._compiled.hash_key, self._secret
        pairs = [hash_key(secret, key) for key in keys]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def note_records(self, records: Buffer, count: int, base_offset: Offset, first_offset: Offset) -> bool:
        """Adds the `count` uncompressed records of a batch, as `note` does. Errors: ProtocolError."""
        if not self._count:
            self._origin = base_offset - 1
        shift, number, last = base_offset - self._origin, 0, -1
        while self._compiled is not None:
            noted = self._compiled.note_keys(
                self._table,
                self._secret,
                records,
                count,
                shift,
                first_offset - base_offset,
                self._grow_at - self._count,
                number,
            )
            if noted is None:
                break
            number, added, delta = noted
            self._count += added
            last = max(last, delta)
            if number == count or not self._grow():
                self.latest_offset = max(self.latest_offset, base_offset + last)
                return number == count
        return self.note(find_keys(bytes(records), 0, len(records), count), base_offset, first_offset)

    def note(self, found: RecordKeys, base_offset: Offset, first_offset: Offset) -> bool:
        """Adds the records of a batch at or above `first_offset`; the offsets of successive batches rise.

        Returns False when the map is full; `latest_offset` is then the offset of the last record added. Errors:
        ProtocolError if the offsets do not rise.
        """
        keys, deltas, _, keyless, _ = found
        if not keys:
            return True
        if not self._count:
            self._origin = base_offset - 1
        shift = base_offset - self._origin
        if shift < 1 or deltas[0] < 0 or sorted(deltas) != deltas:
            raise ProtocolError("its offsets do not rise, or are below those of the batches before it")
        if shift + deltas[-1] > _SPAN_MAX:
            return False
        columns: Iterator[tuple[int, int, int]] = zip(*self._hashes(keys), deltas, strict=True)
        skipped = bisect_left(deltas, first_offset - base_offset)
        if skipped or keyless:
            without = {*range(skipped), *keyless}
            columns = (row for number, row in enumerate(columns) if number not in without)
        table, mask, check_mask = self._table, self._mask, _CHECK
        count, grow_at = self._count, self._grow_at
        last = -1
        for key_hash, crc, delta in columns:
            check = crc & check_mask
            place = key_hash & mask
            while (value := table[place]) and not (value & check_mask == check and table[place + 1] == key_hash):
                place = (place + 2) & mask
            if not value:
                if count >= grow_at:
                    self._count = count
                    if not self._grow():
                        self.latest_offset = max(self.latest_offset, base_offset + last)
                        return False
                    table, mask, grow_at = self._table, self._mask, self._grow_at
                    place = key_hash & mask
                    while table[place]:
                        place = (place + 2) & mask
                table[place + 1] = key_hash
                count += 1
            table[place] = (shift + delta) << _CHECK_BITS | check
            last = delta
        self._count = count
        self.latest_offset = max(self.latest_offset, base_offset + deltas[-1])
        return True

    def superseded(self, found: RecordKeys, base_offset: Offset) -> list[int]:
        """Returns the numbers of a batch's records with a later record of the same key."""
        keys, deltas, _, _, _ = found
        if not self._count:
            return []
        table, mask, check_mask = self._table, self._mask, _CHECK
        shift = base_offset - self._origin
        gone: list[int] = []
        for number, key_hash, crc, delta in zip(numbers(), *self._hashes(keys), deltas, strict=False):
            check = crc & check_mask
            place = key_hash & mask
            while (value := table[place]) and not (value & check_mask == check and table[place + 1] == key_hash):
                place = (place + 2) & mask
            if value and value >> _CHECK_BITS > shift + delta:
                gone.append(number)
        return gone

    def retain(
        self, records: Buffer, count: int, base_offset: Offset, *, drops_tombstones: bool, timestamp_shift: int | None
    ) -> RetainedRecords | None:
        """Returns the remaining records of a batch with `count` uncompressed records; None to let Python code decide.

        Records with a later one of their key, and those without a key, are removed; with `drops_tombstones` tombstones
        too. If a tombstone stays, `timestamp_shift`, unless None, is added to the timestamp deltas, in milliseconds.
        """
        if self._compiled is None:
            return None
        shift, latest = base_offset - self._origin, self.latest_offset - base_offset
        left = self._compiled.retain(
            self._table, self._secret, records, count, shift, latest, drops_tombstones, timestamp_shift
        )
        return None if left is None else RetainedRecords(*left)
