"""Changes of ISRs that this broker proposes as a leader, and the timer that looks for slow followers.

Fetches cause looks too (`leader_partitions`); no message announces that a follower is slow. After a pause of this
broker no ISR changes before its followers' fetches were read. `in_sync_replicas` decides, `alter_partition_manager`
writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from lowtide.broker.turns import run_in_slices
from lowtide.replication import in_sync_replicas

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Mapping

    from lowtide.broker.partitions.alter_partition_manager import IsrChanges
    from lowtide.metadata.image import MetadataImage
    from lowtide.protocol.types import TopicPartition
    from lowtide.replication.leadership import Leadership
    from lowtide.replication.partition import Partition
    from lowtide.runtime.clock import Clock

LOOK_PART: Final = 8
"""The looks at followers within `replica.lag.time.max.ms`; Kafka looks twice."""

LOOK_MS_MIN: Final = 20
LOOK_MS_MAX: Final = 2000


class PartitionsWithFollowers(Protocol):
    """The partitions with followers that this broker leads."""

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]: ...

    def look_at(self, partition: Partition) -> None:
        """Updates the high watermark and the ISR of a partition."""


class IsrLooks:
    """Looks at the followers of all partitions that this broker leads, and proposes changes of their ISRs."""

    def __init__(
        self,
        led: PartitionsWithFollowers,
        isr_writer: IsrChanges,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        lag_time_max_ms: int,
        is_fenced: Callable[[], bool] | None,
    ) -> None:
        """The options are those of `LedPartitions`."""
        self._led = led
        self._isr_writer = isr_writer
        self._clock = clock
        self._loop = loop
        self._lag_time_max_ms = lag_time_max_ms
        self._is_fenced = is_fenced
        self._timer: asyncio.TimerHandle | None = None
        self._is_looking = False
        self._due_ms = 0
        self._patient_until_ms = 0

    def propose(self, partition: Partition, leadership: Leadership, image: MetadataImage, now_ms: int) -> None:
        """Writes the next change of a partition's ISR, if one is needed and this broker may act."""
        if now_ms < self._patient_until_ms or self._was_paused(now_ms):
            return
        if self._is_fenced is not None and self._is_fenced():
            return
        proposal = in_sync_replicas.next_proposal(leadership, image, now_ms)
        if proposal is not None:
            in_sync_replicas.propose(leadership, proposal)
            self._isr_writer.submit(partition, leadership, proposal, self._led.look_at)

    def begin(self) -> None:
        """Sets the timer, if it isn't set and there is something to look at."""
        if self._timer is None and self._led.partitions:
            delay_ms = min(max(self._lag_time_max_ms // LOOK_PART, LOOK_MS_MIN), LOOK_MS_MAX)
            self._due_ms = self._clock.monotonic_ms() + delay_ms
            self._timer = self._loop.call_later(delay_ms / 1000, self.look)

    def _was_paused(self, now_ms: int) -> bool:
        """Returns whether the look is so overdue that this broker was paused, rather than its followers."""
        return self._timer is not None and now_ms - self._due_ms > self._lag_time_max_ms // 2

    def look(self) -> None:
        """Looks at all partitions, in slices. Called by the timer."""
        now_ms = self._clock.monotonic_ms()
        was_paused, was_patient = self._was_paused(now_ms), self._patient_until_ms == self._due_ms
        self.close()
        if was_paused and not was_patient:  # Not twice in a row: a slow machine must not keep slow followers in sync.
            self.begin()
            self._patient_until_ms = self._due_ms
            return
        if not self._is_looking:
            self._is_looking = True
            run_in_slices(self._loop, self._clock, self._look_steps(), self._on_looked)

    def _look_steps(self) -> Iterator[None]:
        for key in list(self._led.partitions):
            partition = self._led.partitions.get(key)
            if partition is not None and partition.leadership is not None:
                self._led.look_at(partition)
                yield

    def _on_looked(self) -> None:
        self._is_looking = False
        self.begin()

    def close(self) -> None:
        """Clears the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
