"""The fetches of followers that are held for a moment, so that one answer has the records of several requests.

A record that nobody waits for (acks=1 or 0, and no consumer) reaches the followers within `HOLD_S`. Without that, a
producer with one request in flight would cause a fetch of each follower for each record. Then these fetches, which take
several times the CPU of the append, stand between the producer's requests.

Guards: a fetch is answered at once if somebody waits until the follower has some of its records, or a log start
(`LedPartitions.awaited_ends`, rule DR5). All measurements: docs/lab/performance-results.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from lowtide.broker.partitions.fetch.fetch_targets import FetchOutcome, FetchRules
    from lowtide.protocol.types import Offset, TopicPartition

HOLD_S: Final = 0.001
"""How long a fetch is held at most. The event loop's timers have a resolution of 1 ms, so it can't be shorter."""

HELD_BYTES_MAX: Final = 64 * 1024
"""A fetch that finds more is answered at once."""


class HeldFetch(Protocol):
    """A waiting fetch of a follower."""

    is_held: bool
    """Whether it is among the held fetches, and is answered with them."""

    def wake(self) -> None:
        """Answers it now. Does nothing if it was answered."""
        ...


class HeldFetches:
    """The held fetches of a broker's followers, which are answered together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held: list[HeldFetch] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request: HeldFetch) -> None:
        """Answers a waiting fetch within `HOLD_S`, unless something else answers it first."""
        if not request.is_held:
            request.is_held = True
            self._held.append(request)
            if self._timer is None:
                self._timer = self._loop.call_later(HOLD_S, self._release)

    def _release(self) -> None:
        self._timer = None
        held, self._held = self._held, []
        for request in held:
            request.wake()

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()


def may_be_held(outcome: FetchOutcome, rules: FetchRules, awaited_ends: Mapping[TopicPartition, Offset]) -> bool:
    """Returns whether a follower's fetch found only a few records, and nobody waits until the follower has them."""
    return (
        0 < outcome.read_bytes < HELD_BYTES_MAX
        and not outcome.ends_wait
        and rules.maximum_wait_ms > 0
        and not any(
            target.watched is not None and target.fetch_offset < awaited_ends.get(target.watched.topic_partition, 0)
            for target, _ in outcome.answers
        )
    )
