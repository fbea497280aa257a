"""A disk with a cache that isn't durable: what was written since the last flush may be lost, in part and in any order.

Plain code. What a device promises, and Linux relies on: when it has answered a flush, everything is durable whose write
it had answered before. Of what was written since, a power cut leaves any part: a unit (a physical sector, of 512 bytes
or 4 KiB) has one of the contents that it was given since the flush, or the one before. A unit is never torn.
"""

from __future__ import annotations

import os
import random

SECTOR = 512
CHANCES = (0.0, 0.2, 0.5, 0.8, 1.0)
"""The part of unflushed writes that survives, drawn for each cut: none, all, or some."""


class VolatileDisk:
    """The contents of one image file, and what was written to it since the last flush.

    Offsets and lengths are multiples of 512.
    """

    def __init__(self, image: str, chance: random.Random, *, unit: int = SECTOR) -> None:
        """`unit` bytes are never torn; a multiple of 512."""
        self._unit = unit
        self._file = os.open(image, os.O_RDWR)
        self._random = chance
        self._written: dict[int, list[bytes]] = {}
        """Unit → each content since the last flush, oldest first."""
        self.size_bytes = os.fstat(self._file).st_size
        self.is_cut = self.lies = False
        self.flushes = 0

    def read(self, offset: int, length: int) -> bytes:
        """Returns the latest contents."""
        content = bytearray(os.pread(self._file, length, offset))
        end = offset + len(content)
        for number in range(offset // self._unit, -(-end // self._unit)):
            versions = self._written.get(number)
            if versions is not None:
                start = number * self._unit
                first, last = max(start, offset), min(start + self._unit, end)
                content[first - offset : last - offset] = versions[-1][first - start : last - start]
        return bytes(content)

    def write(self, offset: int, content: bytes) -> None:
        """Volatile until the next flush."""
        assert offset % SECTOR == 0, offset
        assert len(content) % SECTOR == 0, len(content)
        end = offset + len(content)
        for number in range(offset // self._unit, -(-end // self._unit)):
            start = number * self._unit
            first, last = max(start, offset), min(start + self._unit, end)
            version = bytearray(self.read(start, self._unit))
            version[first - start : last - start] = content[first - offset : last - offset]
            self._written.setdefault(number, []).append(bytes(version))

    def flush(self) -> None:
        """All that was written is durable, unless the disk lies: then nothing is that was written since it began to."""
        if self.lies:
            return
        for number, versions in self._written.items():
            os.pwrite(self._file, versions[-1], number * self._unit)
        self._written.clear()
        self.flushes += 1

    def cut(self) -> tuple[int, int]:
        """Cuts the power.

        Returns how many units weren't flushed, and how many of them have a new content all the same.
        """
        self.is_cut = True
        share = 0.0 if self.lies else self._random.choice(CHANCES)
        kept = 0
        for number, versions in self._written.items():
            if self._random.random() < share:
                os.pwrite(self._file, self._random.choice(versions), number * self._unit)
                kept += 1
        lost = len(self._written)
        self._written.clear()
        os.close(self._file)
        return lost, kept
