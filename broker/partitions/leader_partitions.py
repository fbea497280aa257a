"""The partitions with several replicas that this broker leads: reacts to fetches, images and time.

Every event that may raise a high watermark or a low watermark, or change an ISR, is handled here, and wakes the
operations that wait for it (rule DR4). One timer looks for slow followers, which no message announces; another one, for
parked deletes, is exact. After a pause of this broker no ISR changes before its followers' fetches were read.

Decisions are in `replication/`; `alter_partition_manager` writes the ISR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from lowtide.broker.turns import run_in_slices
from lowtide.protocol.types import BrokerEpoch, BrokerId, TopicPartition
from lowtide.replication import in_sync_replicas
from lowtide.replication.partition import Partition, PartitionChange

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator

    from lowtide.broker.partitions.alter_partition_manager import IsrChanges
    from lowtide.broker.partitions.waiting import Waiting
    from lowtide.metadata.image import MetadataImage
    from lowtide.metadata.store import Revision
    from lowtide.replication.follower_state import FollowerFetch, FollowerState
    from lowtide.replication.leadership import Leadership
    from lowtide.runtime.clock import Clock

LOOK_PART: Final = 8
"""The looks at followers within `replica.lag.time.max.ms`; Kafka looks twice."""

LOOK_MS_MIN: Final = 20
LOOK_MS_MAX: Final = 2000


class FollowerRequest(Protocol):
    """A waiting fetch of a follower."""

    def wake(self) -> None:
        """Answers it now."""
        ...


class ParkedFetches:
    """The waiting fetches of followers, by broker."""

    def __init__(self) -> None:
        self._requests: dict[BrokerId, dict[FollowerRequest, None]] = {}

    def add(self, broker_id: BrokerId, request: FollowerRequest) -> None:
        self._requests.setdefault(broker_id, {})[request] = None

    def remove(self, broker_id: BrokerId, request: FollowerRequest) -> None:
        self._requests.get(broker_id, {}).pop(request, None)

    def wake(self, broker_id: BrokerId) -> None:
        """Answers the waiting fetches of a follower: it must add a partition (rule DR5)."""
        for request in list(self._requests.get(broker_id, ())):
            request.wake()


class LedPartitions:
    """The partitions that this broker leads."""

    def __init__(
        self,
        waiting: Waiting,
        isr_writer: IsrChanges,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        lag_time_max_ms: int,
        is_fenced: Callable[[], bool] | None,
    ) -> None:
        """`lag_time_max_ms` is `replica.lag.time.max.ms`; `is_fenced` is None for a broker that may always act."""
        self.lag_time_max_ms = lag_time_max_ms
        self.parked = ParkedFetches()
        self.by_follower: dict[BrokerId, dict[TopicPartition, Partition]] = {}
        self.newest_leadership_ms = -lag_time_max_ms
        """The monotonic time when this broker last became the leader of a partition with several replicas."""
        self._partitions: dict[TopicPartition, Partition] = {}
        self._unseen: dict[BrokerId, BrokerEpoch] = {}
        """The newest registration of each follower that fetched under one that the image does not show yet."""
        self._image: MetadataImage | None = None
        self._waiting = waiting
        self._isr_writer = isr_writer
        self._is_fenced = is_fenced
        self._clock = clock
        self._loop = loop
        self._look_timer: asyncio.TimerHandle | None = None
        self._slow_timer: asyncio.TimerHandle | None = None
        self._slow_at_ms = 0
        self._looking = False
        self._look_due_ms = 0
        self._patient_until_ms = 0

    def __len__(self) -> int:
        return len(self._partitions)

    def follow(self, image: MetadataImage) -> None:
        """Uses these metadata from now on."""
        self._image = image

    # ------------------------------------------------------------------ leaderships
    def on_become(self, partition: Partition, *, changed: bool) -> None:
        """Follows a change of a partition in the metadata; `changed`: of its leader or leader epoch."""
        leadership = partition.leadership
        key = partition.topic_partition
        if leadership is None:
            if key in self._partitions:
                self.forget(key)
            return
        self._index(partition, leadership)
        if changed:
            self.newest_leadership_ms = self._clock.monotonic_ms()
            for follower in leadership.followers:
                self.parked.wake(follower)
        self.look_at(partition)
        self._set_look_timer()

    def _index(self, partition: Partition, leadership: Leadership) -> None:
        key = partition.topic_partition
        self._partitions[key] = partition
        for broker_id, followed in self.by_follower.items():
            if broker_id not in leadership.followers:
                followed.pop(key, None)
        for broker_id in leadership.followers:
            self.by_follower.setdefault(broker_id, {})[key] = partition

    def forget(self, key: TopicPartition) -> None:
        """This broker leads the partition no more, or it has no followers."""
        self._partitions.pop(key, None)
        for followed in self.by_follower.values():
            followed.pop(key, None)

    def of_follower(self, broker_id: BrokerId) -> list[Partition]:
        """Returns the partitions that this broker leads and that broker follows."""
        return list(self.by_follower.get(broker_id, {}).values())

    def on_broker_changed(self, partition: Partition, broker_id: BrokerId) -> None:
        """Reacts to a change of a follower's broker: its registration, shutdown or directories."""
        image, leadership = self._image, partition.leadership
        if leadership is not None and image is not None:
            if leadership.follow_broker(broker_id, image):
                self.parked.wake(broker_id)
            self.look_at(partition)

    def take_settled(self, revision: Revision) -> list[BrokerId]:
        """Returns and clears the followers whose registration is now known, or known not to exist."""
        settled = [broker_id for broker_id, epoch in self._unseen.items() if epoch <= revision]
        for broker_id in settled:
            del self._unseen[broker_id]
        return settled

    # ------------------------------------------------------------------ fetches of followers
    def on_fetch(self, partition: Partition, fetch: FollowerFetch) -> FollowerState | None:
        """Notes an accepted fetch, and its consequences. Returns None if it can't be noted yet: see `note_fetch`."""
        leadership, image = partition.leadership, self._image
        assert leadership is not None
        assert image is not None
        now_ms = self._clock.monotonic_ms()
        before = leadership.followers[fetch.broker_id].log_end_offset
        follower = leadership.note_fetch(fetch, image, now_ms)
        if follower is None:
            self._unseen[fetch.broker_id] = max(fetch.broker_epoch, self._unseen.get(fetch.broker_id, -1))
            return None
        if follower.log_end_offset != before and partition.advance_high_watermark(image, now_ms):
            self.on_high_watermark(partition)
        if fetch.broker_id not in leadership.maximal_isr:
            self._propose(partition, leadership, now_ms)
        if partition.topic_partition in self._waiting.deletes.watched:
            self._waiting.deletes.advance(partition.topic_partition, leadership.low_watermark(image, now_ms))
        return follower

    def lacks_some(self, broker_id: BrokerId, count_fetched: Callable[[], int], now_ms: int) -> bool:
        """Returns whether a follower fetches fewer partitions than it should, after a recent change of leadership."""
        if now_ms - self.newest_leadership_ms > self.lag_time_max_ms:
            return False
        image, followed = self._image, self.by_follower.get(broker_id, {})
        if image is None or (fetched := count_fetched()) >= len(followed):
            return False
        return fetched < sum(
            image.replica_is_online(broker_id, partition.topic_id, key.partition) for key, partition in followed.items()
        )

    # ------------------------------------------------------------------ what rises
    def on_appended(self, partition: Partition) -> None:
        """Reacts to records that were appended to a partition with followers."""
        partition.tell(PartitionChange.LOG_END)
        if partition.topic_partition in self._waiting.follower_fetches.watched:
            self._waiting.follower_fetches.advance(partition.topic_partition, partition.log.log_end_offset)
        leadership, image = partition.leadership, self._image
        alone = leadership is not None and len(leadership.maximal_isr) == 1
        if alone and image is not None and partition.advance_high_watermark(image, self._clock.monotonic_ms()):
            self.on_high_watermark(partition)

    def on_high_watermark(self, partition: Partition) -> None:
        """Wakes consumers and producers that wait for the high watermark."""
        key, high_watermark = partition.topic_partition, partition.log.high_watermark
        partition.tell(PartitionChange.HIGH_WATERMARK)
        for queue in (self._waiting.fetches, self._waiting.commits):
            if key in queue.watched:
                queue.advance(key, high_watermark)

    def look_at(self, partition: Partition) -> None:
        """Updates the high watermark and the ISR of a partition, and wakes its deletes."""
        leadership, image = partition.leadership, self._image
        if leadership is None or image is None:
            return
        now_ms = self._clock.monotonic_ms()
        # The high watermark first: otherwise a removed member that held it back would be in sync again at once.
        if partition.advance_high_watermark(image, now_ms):
            self.on_high_watermark(partition)
        self._propose(partition, leadership, now_ms)
        if partition.topic_partition in self._waiting.deletes.watched:
            self._waiting.deletes.advance(partition.topic_partition, leadership.low_watermark(image, now_ms))

    def _propose(self, partition: Partition, leadership: Leadership, now_ms: int) -> None:
        image = self._image
        if now_ms < self._patient_until_ms or self._was_paused(now_ms):
            return
        if image is None or (self._is_fenced is not None and self._is_fenced()):
            return
        proposal = in_sync_replicas.next_proposal(leadership, image, now_ms)
        if proposal is not None:
            leadership.propose(proposal)
            self._isr_writer.submit(partition, leadership, proposal, self.look_at)

    # ------------------------------------------------------------------ time
    def _set_look_timer(self) -> None:
        if self._look_timer is None and self._partitions:
            delay_ms = self._look_interval_ms
            self._look_due_ms = self._clock.monotonic_ms() + delay_ms
            self._look_timer = self._loop.call_later(delay_ms / 1000, self._look)

    @property
    def _look_interval_ms(self) -> int:
        return min(max(self.lag_time_max_ms // LOOK_PART, LOOK_MS_MIN), LOOK_MS_MAX)

    def _was_paused(self, now_ms: int) -> bool:
        """Returns whether the look is so overdue that this broker was paused, rather than its followers."""
        return self._look_timer is not None and now_ms - self._look_due_ms > self.lag_time_max_ms // 2

    def _look(self) -> None:
        now_ms = self._clock.monotonic_ms()
        was_paused, was_patient = self._was_paused(now_ms), self._patient_until_ms == self._look_due_ms
        self._look_timer = None
        if was_paused and not was_patient:  # Not twice in a row: a slow machine must not keep slow followers in sync.
            self._set_look_timer()
            self._patient_until_ms = self._look_due_ms
            return
        if not self._looking:
            self._looking = True
            run_in_slices(self._loop, self._clock, self._look_steps(), self._on_looked)

    def _look_steps(self) -> Iterator[None]:
        for key in list(self._partitions):
            partition, image = self._partitions.get(key), self._image
            if partition is not None and partition.leadership is not None and image is not None:
                self.look_at(partition)
                yield

    def _on_looked(self) -> None:
        self._looking = False
        self._set_look_timer()

    def await_slow_ones(self, keys: Iterable[TopicPartition]) -> None:
        """Sets the timer for deletes of these partitions: to when the first replica has been silent for too long."""
        image = self._image
        if image is None:
            return
        now_ms = self._clock.monotonic_ms()
        times = []
        for key in keys:
            partition = self._partitions.get(key)
            if partition is not None and partition.leadership is not None:
                slow_at_ms = partition.leadership.slow_at_ms(image, now_ms)
                if slow_at_ms is not None:
                    times.append(slow_at_ms)
        earliest = min(times, default=None)
        if earliest is None or (self._slow_timer is not None and self._slow_at_ms <= earliest):
            return
        if self._slow_timer is not None:
            self._slow_timer.cancel()
        self._slow_at_ms = earliest
        self._slow_timer = self._loop.call_later(max(earliest - now_ms, 1) / 1000, self._on_slow)

    def _on_slow(self) -> None:
        self._slow_timer = None
        waiting = list(self._waiting.deletes.watched)
        for key in waiting:
            partition = self._partitions.get(key)
            if partition is not None:
                self.look_at(partition)
        self.await_slow_ones(waiting)

    def close(self) -> None:
        """Stops the timers."""
        for timer in (self._look_timer, self._slow_timer):
            if timer is not None:
                timer.cancel()
        self._partitions.clear()
