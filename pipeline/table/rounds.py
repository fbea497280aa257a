"""Plans a round: where it reads on, how far, and in which tasks. Only decides.

A task reads ranges of several partitions, if each is small, into one file; and a large range is cut into several tasks,
each of which writes about one file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from lowtide.pipeline.ranges import Positions, ReadRange, rate_limited
from lowtide.pipeline.table.progress import ProgressError, TableProgress
from lowtide.protocol.types import ZERO_TOPIC_ID, Offset, TopicId, TopicPartition, topic_id_text

BYTES_PER_RECORD: Final = 256
"""The guess for a table without rows."""

SMALL_BYTES: Final = 16 << 20
"""What one task writes before a second one is worth its start."""


class LogBounds(NamedTuple):
    """The offsets that a partition has."""

    start: Offset
    end: Offset
    """Exclusive; the last stable offset."""


class RoundPlan(NamedTuple):
    """What a round reads."""

    start: Positions
    until: Positions
    """Exclusive; of all partitions of the topic."""
    losses: tuple[str, ...]
    """A sentence for each partition that has lost records before they were read."""
    is_behind: bool
    """Whether it leaves records to the next round."""

    @property
    def ranges(self) -> list[ReadRange]:
        """The ranges with at least one offset."""
        return sorted(
            ReadRange(place, self.start[place], end) for place, end in self.until.items() if end > self.start[place]
        )

    @property
    def size(self) -> int:
        """How many offsets it has."""
        return sum(one.size for one in self.ranges)


def check_topic_id(before: TableProgress | None, topic: str, now: TopicId) -> None:
    """Checks that the topic is the one that the table has. Errors: ProgressError."""
    if before is None or ZERO_TOPIC_ID in (before.topic_id, now) or before.topic_id == now:
        return
    raise ProgressError(
        f"topic {topic} was deleted and created again since the table was written: its id is {topic_id_text(now)}, "
        f"but the table has records of {topic_id_text(before.topic_id)}. Write it into another table"
    )


def plan_round(positions: Positions, bounds: Mapping[TopicPartition, LogBounds], rows_max: int) -> RoundPlan:
    """Returns the next offsets to read. `positions` are those of the table.

    A partition without a position begins at its start: nobody knows what a table without progress lacks. A position
    below the start of the log is a loss; the plan then begins at that start. Errors: ProgressError (`check_ends`).
    """
    start: Positions = {}
    losses = []
    for place, (first, _) in sorted(bounds.items()):
        position = positions.get(place, first)
        if position < first:
            losses.append(
                f"{place} begins at offset {first} now, but the table has it up to offset {position}: the records "
                "between were deleted before they were read"
            )
        start[place] = max(position, first)
    check_ends(positions, bounds)
    until = rate_limited(start, {place: one.end for place, one in bounds.items()}, rows_max)
    is_behind = any(until[place] < end for place, (_, end) in bounds.items())
    return RoundPlan(start, until, tuple(losses), is_behind)


def check_ends(positions: Positions, bounds: Mapping[TopicPartition, LogBounds]) -> None:
    """Checks that the topic has all that the table has of it. Otherwise new records may have offsets of old ones.

    Errors: ProgressError.
    """
    for place, position in sorted(positions.items()):
        if place not in bounds:
            raise ProgressError(f"{place} does not exist any more, but the table has records of it")
        if position > bounds[place].end:
            raise ProgressError(
                f"{place} ends at offset {bounds[place].end}, but the table has it up to offset {position}: the "
                "partition was truncated, or an older copy of it was restored. Write it into another table"
            )


def bytes_per_record(summary: Mapping[str, str]) -> int:
    """Returns the mean size of a row in the files of a snapshot, by its summary."""
    try:
        rows, size = int(summary["total-records"]), int(summary["total-files-size"])
    except (KeyError, ValueError):
        return BYTES_PER_RECORD
    return max(size // rows, 1) if rows > 0 and size > 0 else BYTES_PER_RECORD


def task_count(size: int, record_bytes: int, file_bytes: int, parallelism: int) -> int:
    """Returns how many tasks a round of `size` records has: one for each file, and more if the work is worth it."""
    total = size * record_bytes
    files = math.ceil(total / file_bytes)
    return max(files, min(parallelism, math.ceil(total / min(SMALL_BYTES, file_bytes))), 1)


def packed(ranges: Iterable[ReadRange], count: int) -> list[Sequence[ReadRange]]:
    """Distributes ranges, in order, to at most `count` tasks of about the same number of offsets; cuts where needed."""
    ordered = sorted(ranges)
    share = math.ceil(sum(one.size for one in ordered) / count) if ordered else 1
    tasks: list[list[ReadRange]] = [[]]
    room = share
    for one in ordered:
        start = one.start
        while start < one.until:
            if room == 0:
                tasks.append([])
                room = share
            end = min(one.until, start + room)
            tasks[-1].append(ReadRange(one.partition, start, end))
            room -= end - start
            start = end
    return [task for task in tasks if task]
