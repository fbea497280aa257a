"""Requests that wait until an offset is reached, an event fails them, or their time runs out.

A wait is a threshold: an operation watches a key until the key's value (a high watermark, a low watermark, a log end)
reaches an offset. `advance` sets the new value and completes the waits that it satisfies; `release` completes all waits
of a key, for failures; `expire` completes those past their deadline. `take_ready` collects the completed operations
once per pass of the loop, so that many appends complete an operation once.

Invariant: a removed operation is never returned; a returned one is not watched until `watch` is called again. Pure:
time is passed in, and no operation is called from here.

Sources: Kafka's purgatory (`DelayedOperation`), with thresholds in place of a re-evaluation of every watcher, and
deadlines in buckets.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Iterable
from typing import Any, Generic, TypeVar

from lowtide.protocol.types import TopicPartition

KeyT = TypeVar("KeyT", bound=Hashable)

DEADLINE_BUCKET_MS = 10
"""Width of a deadline bucket: an operation expires at most this late."""

_SWEEP_AT_LEAST = 64
"""A key's heap drops dead watches when they are more than half of it and it has at least this many entries."""


class DelayedOperation:
    """A waiting request. Subclasses test and complete it.

    `deadline_ms` is monotonic. `expired` is set when the deadline completed it. The `watch_*` fields belong to the
    purgatory.
    """

    __slots__ = ("deadline_ms", "expired", "watch_bucket", "watch_generation", "watch_keys")

    def __init__(self, deadline_ms: int = 0) -> None:
        self.deadline_ms = deadline_ms
        self.expired = False
        self.watch_generation = 0
        self.watch_bucket = -1
        self.watch_keys: tuple[Any, ...] = ()

    def try_complete(self) -> bool:
        """Completes the request if its condition holds, or no longer can. Returns whether it was completed."""
        raise NotImplementedError

    def on_complete(self) -> None:
        """Completes the request with the current state."""
        raise NotImplementedError

    def on_expiration(self) -> None:
        """Completes the request at its deadline, or when the broker stops."""
        self.on_complete()

    def fail(self) -> None:
        """Closes the connection after an unexpected error."""
        raise NotImplementedError

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """Returns the next values to wait for; the deadline stays."""
        raise NotImplementedError


class _Watchers:
    """The watches of one key: a heap by threshold, whose dead entries are dropped now and then."""

    __slots__ = ("heap", "live")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, DelayedOperation, int]] = []
        self.live = 0


class DelayedOperationPurgatory(Generic[KeyT]):
    """Operations that wait for thresholds of keys.

    Each kind of wait has its own purgatory, so that the thresholds of a key have one meaning.
    """

    def __init__(self, *, maximum_per_key: int) -> None:
        """`maximum_per_key` bounds the operations that watch one key."""
        self._maximum_per_key = maximum_per_key
        self._watchers: dict[KeyT, _Watchers] = {}
        self._buckets: dict[int, dict[int, DelayedOperation]] = {}
        self._bucket_heap: list[int] = []
        self._ready: dict[int, DelayedOperation] = {}
        self._sequence = 0
        self._waiting = 0

    def __len__(self) -> int:
        """Returns the number of operations that wait or are ready."""
        return self._waiting + len(self._ready)

    def has_room(self, key: KeyT) -> bool:
        """Returns whether one more operation may watch this key."""
        watchers = self._watchers.get(key)
        return watchers is None or watchers.live < self._maximum_per_key

    @property
    def watched_keys(self) -> Collection[KeyT]:
        """A live view of the watched keys, for callers that would otherwise call `advance` in vain."""
        return self._watchers

    def operations(self) -> list[DelayedOperation]:
        """Returns all waiting operations, in no order."""
        return [operation for members in self._buckets.values() for operation in members.values()]

    def watch(self, operation: DelayedOperation, thresholds: Iterable[tuple[KeyT, int]], deadline_ms: int) -> None:
        """Waits until one of the keys reaches its threshold (inclusive), or the deadline passes.

        The caller has just tested the condition and checked `has_room`. An operation may be watched again after
        `take_ready` returned it.
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
        """Sets the value of `key` and completes the waits that it satisfies. Returns whether any operation is ready."""
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
        """Completes all waits of `key`: its leadership, replica or topic changed.

        Returns whether any operation is ready.
        """
        watchers = self._watchers.pop(key, None)
        if watchers is not None:
            for _, _, operation, generation in sorted(watchers.heap, key=lambda entry: entry[1]):
                if operation.watch_generation == generation and operation.watch_bucket >= 0:
                    self._make_ready(operation)
        return bool(self._ready)

    def wake(self, operation: DelayedOperation) -> bool:
        """Completes the wait of one operation, if it waits. Returns whether any operation is ready."""
        if operation.watch_bucket >= 0:
            self._make_ready(operation)
        return bool(self._ready)

    def release_all(self) -> bool:
        """Completes all waits at shutdown. Returns whether any operation is ready."""
        # By deadline, because an operation without keys has one too.
        for members in list(self._buckets.values()):
            for operation in list(members.values()):
                self._make_ready(operation)
        return bool(self._ready)

    def expire(self, now_ms: int) -> bool:
        """Completes the waits past their deadline, marked `expired`. Returns whether any operation is ready."""
        current = now_ms // DEADLINE_BUCKET_MS
        while self._bucket_heap and self._bucket_heap[0] <= current:
            members = self._buckets.get(heapq.heappop(self._bucket_heap), {})
            for operation in list(members.values()):
                operation.expired = True
                self._make_ready(operation)
        return bool(self._ready)

    def next_deadline_ms(self) -> int | None:
        """Returns when `expire` next has work; None while nothing waits."""
        while self._bucket_heap and self._bucket_heap[0] not in self._buckets:
            heapq.heappop(self._bucket_heap)
        return self._bucket_heap[0] * DEADLINE_BUCKET_MS if self._bucket_heap else None

    def take_ready(self) -> list[DelayedOperation]:
        """Returns the operations that became ready since the last call, in that order.

        Each must be answered or watched again.
        """
        ready = list(self._ready.values())
        self._ready.clear()
        return ready

    def remove(self, operation: DelayedOperation) -> None:
        """Removes an operation that was answered or whose client has left. May do nothing."""
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
