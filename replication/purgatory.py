"""Where requests wait for an offset to be reached, an event to fail them, or their time to run out.

A wait is a threshold: an operation watches a key until the value of that key (a high watermark, a low watermark, a log
end) is at least some offset. `advance` brings the new value and makes ready what it satisfies; `release` makes ready
all that watch a key, for failures; `expire` makes ready what is past its deadline. What is ready is collected by
`take_ready`, once per pass of the loop, so that many appends complete an operation once.

Invariant: an operation that was removed is never handed out again; one that is handed out is no longer watched until it
is watched again. Pure: time is passed in, nothing here calls an operation.

Sources: Kafka's purgatory (`DelayedOperation`), with thresholds instead of re-evaluation of every watcher; deadlines
lie in buckets.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Iterable
from typing import Any, Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)

DEADLINE_BUCKET_MS = 10
"""Width of a deadline bucket: an operation ends at most this late."""

_SWEEP_AT_LEAST = 64
"""A key's heap is swept of dead watches when they are more than half of it and it holds at least this many."""


class DelayedOperation:
    """One waiting request. Subclasses carry what the shell needs to test it again and to answer it.

    `expired` is set when the deadline made it ready. The `watch_*` fields belong to the purgatory.
    """

    __slots__ = ("expired", "watch_bucket", "watch_generation", "watch_keys")

    def __init__(self) -> None:
        self.expired = False
        self.watch_generation = 0
        self.watch_bucket = -1
        self.watch_keys: tuple[Any, ...] = ()


class _Watchers:
    """The watches of one key: a heap by threshold, with dead entries that are swept now and then."""

    __slots__ = ("heap", "live")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, DelayedOperation, int]] = []
        self.live = 0


class DelayedOperationPurgatory(Generic[KeyT]):
    """Operations that wait for thresholds of keys.

    One instance for each kind of wait, so that thresholds of one key mean one thing.
    """

    def __init__(self, *, maximum_per_key: int) -> None:
        """`maximum_per_key` bounds the operations that may watch one key."""
        self._maximum_per_key = maximum_per_key
        self._watchers: dict[KeyT, _Watchers] = {}
        self._buckets: dict[int, dict[int, DelayedOperation]] = {}
        self._bucket_heap: list[int] = []
        self._ready: dict[int, DelayedOperation] = {}
        self._sequence = 0
        self._waiting = 0

    def __len__(self) -> int:
        """Operations that wait or are ready and were not taken yet."""
        return self._waiting + len(self._ready)

    @property
    def has_ready(self) -> bool:
        """Whether `take_ready` would answer something."""
        return bool(self._ready)

    def has_room(self, key: KeyT) -> bool:
        """Whether one more operation may watch this key."""
        watchers = self._watchers.get(key)
        return watchers is None or watchers.live < self._maximum_per_key

    @property
    def watched_keys(self) -> Collection[KeyT]:
        """The keys that anything waits for; a view that changes with them, for those who would rather look than ask in vain."""
        return self._watchers

    def operations(self) -> list[DelayedOperation]:
        """All that wait, in no order."""
        return [operation for members in self._buckets.values() for operation in members.values()]

    def watch(self, operation: DelayedOperation, thresholds: Iterable[tuple[KeyT, int]], deadline_ms: int) -> None:
        """Wait until one of the keys reaches its threshold (inclusive), or the deadline passes.

        The caller has tested the condition just before and checked `has_room`. An operation may be watched again after
        `take_ready` handed it out.
        """
        assert operation.watch_bucket < 0, "an operation waits once at a time"
        operation.watch_generation += 1
        operation.expired = False
        keys = []
        for key, threshold in thresholds:
            watchers = self._watchers.get(key)
            if watchers is None:
                watchers = self._watchers[key] = _Watchers()
            self._sequence += 1
            heapq.heappush(watchers.heap, (threshold, self._sequence, operation, operation.watch_generation))
            watchers.live += 1
            keys.append(key)
        operation.watch_keys = tuple(keys)
        bucket = -(-max(deadline_ms, 0) // DEADLINE_BUCKET_MS)
        operation.watch_bucket = bucket
        members = self._buckets.get(bucket)
        if members is None:
            members = self._buckets[bucket] = {}
            heapq.heappush(self._bucket_heap, bucket)
        members[id(operation)] = operation
        self._waiting += 1

    def advance(self, key: KeyT, value: int) -> bool:
        """The value of `key` is now `value`: make ready what waited for no more than that.

        Returns whether anything is ready to be taken.
        """
        watchers = self._watchers.get(key)
        if watchers is None:
            return bool(self._ready)
        heap = watchers.heap
        while heap and heap[0][0] <= value:
            _, _, operation, generation = heapq.heappop(heap)
            if operation.watch_generation == generation and operation.watch_bucket >= 0:
                self._make_ready(operation)
        return bool(self._ready)

    def release(self, key: KeyT) -> bool:
        """Make ready all that watch `key`, whatever they wait for: its leadership, replica or topic changed.

        Returns whether anything is ready to be taken.
        """
        watchers = self._watchers.pop(key, None)
        if watchers is not None:
            for _, _, operation, generation in sorted(watchers.heap, key=lambda entry: entry[1]):
                if operation.watch_generation == generation and operation.watch_bucket >= 0:
                    self._make_ready(operation)
        return bool(self._ready)

    def wake(self, operation: DelayedOperation) -> bool:
        """Make one operation ready, if it waits. Returns whether anything is ready to be taken."""
        if operation.watch_bucket >= 0:
            self._make_ready(operation)
        return bool(self._ready)

    def release_all(self) -> bool:
        """Make ready everything: the broker stops. Returns whether anything is ready to be taken."""
        # By their deadlines, for what has no key left to watch has one too.
        for members in list(self._buckets.values()):
            for operation in list(members.values()):
                self._make_ready(operation)
        return bool(self._ready)

    def expire(self, now_ms: int) -> bool:
        """Make ready, marked `expired`, what is past its deadline. Returns whether anything is ready to be taken."""
        current = now_ms // DEADLINE_BUCKET_MS
        while self._bucket_heap and self._bucket_heap[0] <= current:
            members = self._buckets.get(heapq.heappop(self._bucket_heap), {})
            for operation in list(members.values()):
                operation.expired = True
                self._make_ready(operation)
        return bool(self._ready)

    def next_deadline_ms(self) -> int | None:
        """When `expire` has work at the earliest; None while nothing waits."""
        while self._bucket_heap and self._bucket_heap[0] not in self._buckets:
            heapq.heappop(self._bucket_heap)
        return self._bucket_heap[0] * DEADLINE_BUCKET_MS if self._bucket_heap else None

    def take_ready(self) -> list[DelayedOperation]:
        """What became ready since the last call, in the order in which it did; each must be answered or watched again."""
        ready = list(self._ready.values())
        self._ready.clear()
        return ready

    def remove(self, operation: DelayedOperation) -> None:
        """Forget an operation: its client went away, or it was answered otherwise. May do nothing."""
        if operation.watch_bucket >= 0:
            self._unwatch(operation)
        self._ready.pop(id(operation), None)

    def _make_ready(self, operation: DelayedOperation) -> None:
        self._unwatch(operation)
        self._ready[id(operation)] = operation

    def _unwatch(self, operation: DelayedOperation) -> None:
        bucket = operation.watch_bucket
        members = self._buckets[bucket]
        del members[id(operation)]
        if not members:
            del self._buckets[bucket]
        operation.watch_bucket = -1
        self._waiting -= 1
        for key in operation.watch_keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                self._forget_watch(key, watchers)
        operation.watch_keys = ()

    def _forget_watch(self, key: KeyT, watchers: _Watchers) -> None:
        watchers.live -= 1
        if watchers.live == 0:
            del self._watchers[key]
        elif len(watchers.heap) >= _SWEEP_AT_LEAST and watchers.live * 2 < len(watchers.heap):
            watchers.heap = [
                entry for entry in watchers.heap if entry[2].watch_generation == entry[3] and entry[2].watch_bucket >= 0
            ]
            heapq.heapify(watchers.heap)
