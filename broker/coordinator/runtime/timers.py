"""Timers as values, without a clock. Postponing a deadline, which every heartbeat does, costs one lookup."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """Deadlines by key, in monotonic milliseconds. A key has one deadline at a time.

    The heap has one place for each key, at or before its deadline. A place that comes too early is put back.
    """

    __slots__ = ("_count", "_deadlines", "_heap", "_places", "has_sooner")

    def __init__(self) -> None:
        self.has_sooner = False
        """Whether a deadline was set before all others. The reader of `next_ms` resets it."""
        self._deadlines: dict[K, int] = {}
        self._places: dict[K, tuple[int, int, K]] = {}
        """The entry of each key in the heap."""
        self._heap: list[tuple[int, int, K]] = []
        self._count = 0

    def __len__(self) -> int:
        """Returns the number of keys with a deadline."""
        return len(self._deadlines)

    def schedule(self, key: K, deadline_ms: int) -> None:
        """Sets or moves the deadline of a key."""
        self._deadlines[key] = deadline_ms
        place = self._places.get(key)
        if place is None or deadline_ms < place[0]:
            self._put(key, deadline_ms)

    def cancel(self, key: K) -> None:
        """Removes the deadline of a key, if it has one."""
        if self._deadlines.pop(key, None) is not None:
            self._places.pop(key, None)
            self._sweep()

    def deadline_of(self, key: K) -> int | None:
        """Returns the deadline of a key."""
        return self._deadlines.get(key)

    @property
    def next_ms(self) -> int | None:
        """A time at or before the earliest deadline; None without deadlines."""
        while self._heap and self._places.get(self._heap[0][2]) is not self._heap[0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> K | None:
        """Removes and returns the key with the earliest deadline, if that has come."""
        while self._heap and self._heap[0][0] <= now_ms:
            place = heappop(self._heap)
            key = place[2]
            if self._places.get(key) is not place:
                continue
            deadline_ms = self._deadlines[key]
            if deadline_ms > now_ms:
                self._put(key, deadline_ms)
                continue
            del self._deadlines[key], self._places[key]
            return key
        return None

    def _put(self, key: K, deadline_ms: int) -> None:
        self._count += 1
        place = self._places[key] = (deadline_ms, self._count, key)
        heappush(self._heap, place)
        if self._heap[0] is place:
            self.has_sooner = True

    def _sweep(self) -> None:
        """Drops cancelled keys when they are most of the heap: a client may come and go as often as it likes."""
        if len(self._heap) > 2 * len(self._places) + 64:
            self._heap = sorted(entry for entry in self._heap if self._places.get(entry[2]) is entry)
