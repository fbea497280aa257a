"""The partitions with several replicas that this broker leads: reacts to fetches, images and time.

Every event that may raise a high watermark or a low watermark, or change an ISR, is handled here, and wakes the
operations that wait for it (rule DR4). `isr_looks` looks for slow followers from time to time, because no message
announces them; the timer for parked deletes is exact. Decisions are in `replication/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lowtide.broker.partitions.held_fetches import HeldFetches
from lowtide.broker.partitions.isr_looks import IsrLooks
from lowtide.protocol.types import BrokerEpoch, BrokerId, Offset, TopicPartition
from lowtide.replication.partition import Partition, PartitionChange

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from lowtide.broker.partitions.alter_partition_manager import IsrChanges
    from lowtide.broker.partitions.waiting import Waiting
    from lowtide.metadata.image import MetadataImage
    from lowtide.metadata.store import Revision
    from lowtide.replication.leadership import FollowerFetch, FollowerState, Leadership
    from lowtide.runtime.clock import Clock


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
        self.parked, self.held = ParkedFetches(), HeldFetches(loop)
        self.awaited_ends: dict[TopicPartition, Offset] = {}
        """The end of the last record for which somebody waits until followers have it. Later ones may be held."""
        self.by_follower: dict[BrokerId, dict[TopicPartition, Partition]] = {}
        self.newest_leadership_ms = -lag_time_max_ms
        """The monotonic time when this broker last became the leader of a partition with several replicas."""
        self.partitions: dict[TopicPartition, Partition] = {}
        self._unseen: dict[BrokerId, BrokerEpoch] = {}
        """The newest registration of each follower that fetched under one that the image does not show yet."""
        self._image: MetadataImage | None = None
        self._waiting = waiting
        self.looks = IsrLooks(self, isr_writer, clock, loop, lag_time_max_ms=lag_time_max_ms, is_fenced=is_fenced)
        self._clock = clock
        self._loop = loop
        self._slow_timer: asyncio.TimerHandle | None = None
        self._slow_at_ms = 0

    def __len__(self) -> int:
        return len(self.partitions)

    def follow(self, image: MetadataImage) -> None:
        """Uses these metadata from now on."""
        self._image = image

    # ------------------------------------------------------------------ leaderships
    def on_become(self, partition: Partition, *, changed: bool) -> None:
        """Follows a change of a partition in the metadata; `changed`: of its leader or leader epoch."""
        leadership = partition.leadership
        key = partition.topic_partition
        if leadership is None:
            if key in self.partitions:
                self.forget(key)
            return
        self._index(partition, leadership)
        if changed:
            self.newest_leadership_ms = self._clock.monotonic_ms()
            for follower in leadership.followers:
                self.parked.wake(follower)
        self.look_at(partition)
        self.looks.begin()

    def _index(self, partition: Partition, leadership: Leadership) -> None:
        key = partition.topic_partition
        self.partitions[key] = partition
        for broker_id, followed in self.by_follower.items():
            if broker_id not in leadership.followers:
                followed.pop(key, None)
        for broker_id in leadership.followers:
            self.by_follower.setdefault(broker_id, {})[key] = partition

    def forget(self, key: TopicPartition) -> None:
        """Forgets a partition that this broker no longer leads, or that has no followers."""
        self.partitions.pop(key, None)
        self.awaited_ends.pop(key, None)
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
            self.looks.propose(partition, leadership, image, now_ms)
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
    def on_appended(self, partition: Partition, *, is_awaited: bool) -> None:
        """Reacts to an append. If no producer (`is_awaited`) or consumer waits for it, followers get it a bit later."""
        leadership, key = partition.leadership, partition.topic_partition
        assert leadership is not None
        if is_awaited or len(partition.watchers) > len(leadership.followers) or key in self._waiting.fetches.watched:
            self.awaited_ends[key] = partition.log.log_end_offset
            partition.tell(PartitionChange.LOG_END)
        else:
            partition.tell(PartitionChange.LOG_END_UNAWAITED)
        if key in self._waiting.follower_fetches.watched:
            self._waiting.follower_fetches.advance(key, partition.log.log_end_offset)
        image, alone = self._image, len(leadership.maximal_isr) == 1
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
        self.looks.propose(partition, leadership, image, now_ms)
        if partition.topic_partition in self._waiting.deletes.watched:
            self._waiting.deletes.advance(partition.topic_partition, leadership.low_watermark(image, now_ms))

    def await_slow_ones(self, keys: Iterable[TopicPartition]) -> None:
        """Sets the timer for deletes of these partitions: to when the first replica has been silent for too long."""
        image = self._image
        if image is None:
            return
        now_ms = self._clock.monotonic_ms()
        times = []
        for key in keys:
            partition = self.partitions.get(key)
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
            partition = self.partitions.get(key)
            if partition is not None:
                self.look_at(partition)
        self.await_slow_ones(waiting)

    def close(self) -> None:
        """Stops the timers."""
        self.looks.close()
        self.held.close()
        if self._slow_timer is not None:
            self._slow_timer.cancel()
        self.partitions.clear()
