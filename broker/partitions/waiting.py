"""All that waits for the partitions of a broker: one queue for each kind of wait, made before anything that waits in it.

Guards: an event that concerns a whole partition (its leader or leader epoch is another, its directory failed, it has left) reaches every
queue (rule DR4). Which value of a partition each queue is advanced with is said beside it.
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
        """Of the requests for one partition, `maximum_per_partition` may wait in each queue; others are answered with what there is."""
        self.rounds = AnswerRounds(loop)
        """In which the answers to all of these are sent."""

        def on_bug(request: DelayedOperation, error: Exception) -> None:
            log.error("request failed", request=type(request).__name__, exc_info=error)

        def queue() -> DelayedQueue:
            return DelayedQueue(clock, loop, maximum_per_key=maximum_per_partition, on_bug=on_bug, rounds=self.rounds)

        self.fetches = queue()
        """Consumers' fetches, by high watermark."""
        self.follower_fetches = queue()
        """Followers' fetches, by log end."""
        self.session_fetches = queue()
        """Fetches of sessions, which see changes through the session."""
        self.flushes = queue()
        """Produce requests that wait for our disk, by recovery point."""
        self.commits = queue()
        """Those that wait for followers, by high watermark."""
        self.log_starts = queue()
        """Deletes that wait for our disk, by log start."""
        self.deletes = queue()
        """Deletes that wait for followers, by low watermark."""
        self._all = (
            self.fetches,
            self.follower_fetches,
            self.session_fetches,
            self.flushes,
            self.commits,
            self.log_starts,
            self.deletes,
        )

    def release(self, key: TopicPartition) -> None:
        """Something happened to a partition that all who wait for it must see."""
        for queue in self._all:
            queue.release(key)

    def close(self) -> None:
        """Answer all that waits, and let nothing wait any more."""
        for queue in self._all:
            queue.close()
