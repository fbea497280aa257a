"""Checks how often the ISR of a partition changes (L2)."""

from __future__ import annotations

from collections import deque
from typing import Final

from lowtide.protocol.types import TopicId
from lowtide.simulation.chronicle import Chronicle

CHANGES_MAX: Final = 10
"""The maximum number of changes of a partition within `SPAN_S`."""

SPAN_S: Final = 1.0


class IsrChanges:
    """The times of each partition's ISR changes."""

    def __init__(self, chronicle: Chronicle) -> None:
        self._chronicle = chronicle
        self._changed_s: dict[tuple[TopicId, int], deque[float]] = {}

    def note(self, topic_id: TopicId, name: str, number: int) -> None:
        now_s = self._chronicle.now_s
        times = self._changed_s.setdefault((topic_id, number), deque(maxlen=CHANGES_MAX + 1))
        times.append(now_s)
        if len(times) > CHANGES_MAX and now_s - times[0] < SPAN_S:
            self._chronicle.violate(
                f"L2: the ISR of {name}-{number} has changed {len(times)} times in {now_s - times[0]:.3f} s"
            )
