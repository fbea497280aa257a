"""The history of log start, log end and size of every partition over the last hour, sampled in memory.

An unchanged partition uses two samples. The interval grows with the number of partitions, so that all samples stay
below `SAMPLES_MAX`: 10 seconds for up to 833 partitions, two minutes for 10,000. A sample takes 32 bytes and a
partition about 300 more: 12.5 megabytes for 10,000 changing partitions, 2.4 for idle ones.

Samples are taken in slices; a round over 10,000 partitions takes about 20 milliseconds of CPU, and no slice more than
two.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from lowtide.broker.turns import run_in_slices
from lowtide.protocol.messages.describe_history import LogSample

if TYPE_CHECKING:
    import asyncio

    from lowtide.protocol.types import TopicId
    from lowtide.replication.partition import Partition
    from lowtide.runtime.clock import Clock
    from lowtide.storage.log.log import Log

HOUR_MS: Final = 3_600_000
INTERVAL_MS: Final = 10_000
"""The minimum time between two samples, and the unit of longer ones."""

SAMPLES_MAX: Final = 300_000
"""The maximum number of samples of all partitions, unless their number grows."""

PARTITIONS_A_STEP: Final = 16

_WIDTH: Final = 4
"""The numbers per sample: wall-clock time, log start, log end, bytes."""


class LogHistory:
    """The history of a broker's partitions. Call `on_tick` once a second."""

    def __init__(
        self, partitions: Mapping[tuple[str, int], Partition], loop: asyncio.AbstractEventLoop, clock: Clock
    ) -> None:
        self._partitions = partitions
        self._loop = loop
        self._clock = clock
        self._samples: dict[tuple[TopicId, int], array[int]] = {}
        self._due_ms = clock.monotonic_ms()
        self._is_busy = False

    @property
    def interval_ms(self) -> int:
        steps = -(-HOUR_MS * len(self._partitions) // (SAMPLES_MAX * INTERVAL_MS))
        return max(steps, 1) * INTERVAL_MS

    def on_tick(self) -> None:
        """Takes a round of samples, if one is due and none is in progress."""
        now_ms = self._clock.monotonic_ms()
        if self._is_busy or now_ms < self._due_ms:
            return
        self._is_busy, self._due_ms = True, now_ms + self.interval_ms
        run_in_slices(self._loop, self._clock, self._round(self._clock.wall_ms()), self._on_done)

    def samples(self, topic_id: TopicId, number: int, after_ms: int) -> list[LogSample]:
        """Returns the samples of a partition after a wall-clock time, oldest first."""
        rows = self._samples.get((topic_id, number))
        if rows is None:
            return []
        return [
            LogSample(
                at_ms=rows[at], log_start_offset=rows[at + 1], log_end_offset=rows[at + 2], size_bytes=rows[at + 3]
            )
            for at in range(0, len(rows), _WIDTH)
            if rows[at] > after_ms
        ]

    def __len__(self) -> int:
        return sum(map(len, self._samples.values())) // _WIDTH

    def _round(self, wall_ms: int) -> Iterator[None]:
        rows_max = HOUR_MS // self.interval_ms + 2
        seen = set()
        for number, partition in enumerate(list(self._partitions.values())):
            key = (partition.topic_id, partition.topic_partition.partition)
            seen.add(key)
            rows = self._samples.get(key)
            if rows is None:
                rows = self._samples[key] = array("q")
            self._note(rows, partition.log, wall_ms, rows_max)
            if number % PARTITIONS_A_STEP == 0:
                yield
        if len(self._samples) > len(seen):
            self._samples = {key: rows for key, rows in self._samples.items() if key in seen}

    @staticmethod
    def _note(rows: array[int], log: Log, wall_ms: int, rows_max: int) -> None:
        """Adds a sample, or extends the last one if nothing changed since the one before."""
        new = (log.log_start_offset, log.log_end_offset, log.size_bytes)
        if len(rows) >= 2 * _WIDTH and tuple(rows[-3:]) == new and tuple(rows[-7:-4]) == new:
            rows[-_WIDTH] = wall_ms
        else:
            rows.extend((wall_ms, *new))
        gone = 0
        while gone + _WIDTH < len(rows) and rows[gone + _WIDTH] <= wall_ms - HOUR_MS:
            gone += _WIDTH
        if gone:
            del rows[:gone]
        if len(rows) > rows_max * _WIDTH:  # More partitions than before: keep every second sample.
            thinned = [number for at in range(0, len(rows) - _WIDTH, 2 * _WIDTH) for number in rows[at : at + _WIDTH]]
            rows[:] = array("q", [*thinned, *rows[-_WIDTH:]])

    def _on_done(self) -> None:
        self._is_busy = False
