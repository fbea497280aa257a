"""The requests that wait for partitions of a broker: one queue for each kind of wait.

Guards: an event of a whole partition (a new leader or leader epoch, a failed directory, its removal) reaches every
queue (rule DR4). Each queue names the value of a partition that advances it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowtide.broker.pending import AnswerRounds, DelayedQueue

if TYPE_CHECKING:
    import asyncio

    from lowtide.protocol.types import TopicPartition
    from lowtide.replication.purgatory import DelayedOperation
    from lowtide.runtime.clock import Clock


class Waiting:
    """The queues of a broker."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, log: Any, *, maximum_per_partition: int) -> None:
        """At most `maximum_per_partition` requests for a partition wait in each queue; others are answered at once."""
        self.rounds = AnswerRounds(loop)
        self._all: list[DelayedQueue] = []

        def on_bug(request: DelayedOperation, error: Exception) -> None:
            log.error("request failed", request=type(request).__name__, exc_info=error)

        def queue(maximum: int = maximum_per_partition) -> DelayedQueue:
            made = DelayedQueue(clock, loop, maximum_per_key=maximum, on_bug=on_bug, rounds=self.rounds)
            self._all.append(made)
            return made

        self.fetches = queue()
        """Fetches of consumers, by high watermark."""
        self.follower_fetches = queue()
        """Fetches of followers, by log end."""
        self.session_fetches = queue()
        """Fetches of sessions, which are woken through the session."""
        self.flushes = queue()
        """Produce requests that wait for our disk, by recovery point."""
        self.commits = queue()
        """Produce requests that wait for followers, by high watermark."""
        self.share_fetches = queue(1)
        """Fetches of share groups, which are woken by their share partitions."""
        self.log_starts = queue()
        """Deletes that wait for our disk, by log start."""
        self.deletes = queue()
        """Deletes that wait for followers, by low watermark."""

    def release(self, key: TopicPartition) -> None:
        """Tests all requests that wait for a partition, after an event that concerns all of it."""
        for queue in self._all:
            queue.release(key)

    def close(self) -> None:
        """Completes all waits at shutdown, and refuses new ones."""
        for queue in self._all:
            queue.close()
