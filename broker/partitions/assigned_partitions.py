"""Applies the metadata to the partitions of this broker: opens them, makes them lead or follow, and removes them.

The work that an image requires, such as a thousand new logs, runs in slices so that no client waits for it; `settled`
returns when all of it is done. New logs create their files later (`storage/directory/log_loading.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lowtide.broker.partitions.hosted_logs import HostedLogs
from lowtide.broker.partitions.hosted_partitions import HostedPartitions
from lowtide.broker.partitions.strays import has_to_go
from lowtide.broker.turns import OWN_SLICE_MS, Turns, raise_error
from lowtide.metadata.records import NO_LEADER
from lowtide.protocol.types import BrokerEpoch, BrokerId, LeaderEpoch, TopicId, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.storage.log.log import LogConfig

if TYPE_CHECKING:
    from lowtide.broker.partitions.followed_partitions import FollowedPartitions
    from lowtide.broker.partitions.removal_confirmations import RemovalConfirmations
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
    from lowtide.runtime.clock import Clock


NOTHING_KNOWN: Final[Mapping[str, Sequence[int]]] = {}


class AssignmentRules(msgspec.Struct, frozen=True, kw_only=True):
    """What determines partitions besides the metadata."""

    log_config: Callable[[TopicImage], LogConfig]
    """Returns the effective configuration of a topic's logs."""
    own_epoch: Callable[[], BrokerEpoch]
    """Returns our registration, or 0. Leaderships of another one are not taken (rule DR8)."""


class AssignedPartitions:
    """The partitions that the metadata assign to this broker."""

    def __init__(  # noqa: PLR0913  parts of a broker
        self,
        replicas: ReplicaManager,
        hosted: HostedPartitions,
        followed: FollowedPartitions,
        removals: RemovalConfirmations,
        rules: AssignmentRules,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        log: Any,
    ) -> None:
        self.broker_id = replicas.broker_id
        self.hosted_logs = HostedLogs(
            replicas.log_manager, replicas.offline, log, on_free=self._on_names_free, has_to_go=self._has_to_go
        )
        self._replicas = replicas
        self._hosted = hosted
        self._partitions = replicas.partitions
        self._led = replicas.led
        self._offline = replicas.offline
        self._followed = followed
        self._removals = removals
        self._rules = rules
        self._clock = clock
        self._loop = loop
        self._image: MetadataImage | None = None
        self._configured: tuple[TopicImage | None, LogConfig] = (None, LogConfig())
        self._turns = Turns(loop, clock, rest_ms=self._rest_ms)
        self._work: deque[Callable[[], None]] = deque()
        self._is_working = False
        self._has_created = False
        self._settled: dict[asyncio.Future[None], None] = {}

    def on_image(
        self,
        image: MetadataImage,
        changed: Iterable[TopicImage],
        deleted: Iterable[TopicImage],
        brokers: Iterable[BrokerId] = (),
        *,
        new_defaults: bool = False,
        different: Mapping[str, Sequence[int]] = NOTHING_KNOWN,
    ) -> None:
        """Applies an image: `changed` topics are new or different, `brokers` appeared, disappeared or changed.

        Must be called for every image, because follower reports are compared with the latest one. Only changed
        partitions of a topic are visited; all of them with `new_defaults`, or if the topic object is the same as in the
        previous image. `different` has the changed partitions by topic, if known, since the previous image.
        """
        self.hosted_logs.tell_failed()
        before, self._image = self._replicas.follow(image), image
        self._configured = (None, LogConfig())  # Defaults may have changed.
        gone = {
            TopicPartition(topic.name, index): topic.topic_id
            for topic in deleted
            for index in range(len(topic.partitions))
            if (topic.name, index) in self._partitions or (topic.name, index) in self._offline.keys
        }
        for topic in changed:
            known = () if new_defaults or before is None else before.earlier_partitions(topic)
            numbers = different.get(topic.name) if known else None
            for index in range(len(topic.partitions)) if numbers is None else numbers:
                state = topic.partitions[index]
                if index < len(known) and known[index] is state:
                    continue
                if self.broker_id in state.replicas:
                    self._work.append(partial(self._host, topic, index, state))
                elif (topic.name, index) in self._partitions or (topic.name, index) in self._offline.keys:
                    gone[TopicPartition(topic.name, index)] = topic.topic_id  # Its reassignment is complete.
        if gone:
            self.remove(gone)
        for broker_id in (*brokers, *self._led.take_settled(image.revision)):
            self._work.append(partial(self._follow_broker, broker_id))
        if not self._is_working:
            self._is_working = True
            self._turns.run(self._work_steps(), self._on_worked, raise_error)

    def _work_steps(self) -> Iterator[None]:
        while self._work:
            self._work.popleft()()
            yield

    def on_registration(self) -> None:
        """Applies the image again after a change of our registration, which decides what we lead."""
        if self._image is not None:
            self.on_image(self._image, self._image.topics.values(), [])

    @property
    def _is_settled(self) -> bool:
        return not self._work and not self.hosted_logs.leaving

    async def settled(self) -> None:
        """Waits until all work on disk is done."""
        if not self._is_settled:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._settled[waiter] = None
            try:
                await waiter
            finally:
                self._settled.pop(waiter, None)

    def tick(self) -> None:
        """Retries to load logs for which there was no disk space. Called about once a second."""
        self._host_again(*self.hosted_logs.take_without_room())

    def _host(self, topic: TopicImage, index: int, state: PartitionImage) -> None:
        """Makes a partition what the metadata say."""
        assert self._image is not None
        current = self._image.topics.get(topic.name)
        if (
            current is None
            or current.topic_id != topic.topic_id
            or self.broker_id not in current.partitions[index].replicas
        ):
            return
        config = self._config_of(topic)
        key = TopicPartition(topic.name, index)
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._open(key, topic, config)
            if partition is None:
                return
        else:
            partition.configure(config)
        if state.leader == self.broker_id and not self._leads_by_this_registration(state):
            state = msgspec.structs.replace(state, leader=NO_LEADER)
        changed = partition.become(state, self._image, self._clock.monotonic_ms())
        if changed:
            self._followed.on_become(partition, self._image)
            self._hosted.release(key)
        self._led.on_become(partition, changed=changed)
        self._removals.follow(partition)

    def _leads_by_this_registration(self, state: PartitionImage) -> bool:
        return (self.broker_id, self._rules.own_epoch()) in zip(state.isr, state.isr_epochs, strict=True)

    def _follow_broker(self, broker_id: BrokerId) -> None:
        """Reacts to a change of a broker, for the partitions that it follows here and those that it leads."""
        self._removals.on_broker_changed(broker_id)
        self._work.extend(
            partial(self._led.on_broker_changed, partition, broker_id) for partition in self._led.of_follower(broker_id)
        )
        self._work.extend(partial(self._reassign, partition) for partition in self._followed.of_leader(broker_id))

    def _reassign(self, partition: Partition) -> None:
        if self._partitions.get(partition.topic_partition) is partition and self._image is not None:
            self._followed.on_leader_changed(partition, self._image)

    def _config_of(self, topic: TopicImage) -> LogConfig:
        """Returns the configuration of a topic's logs, built once for consecutive partitions."""
        if self._configured[0] is not topic:
            self._configured = (topic, self._rules.log_config(topic))
        return self._configured[1]

    def _open(self, key: TopicPartition, topic: TopicImage, config: LogConfig) -> Partition | None:
        """Returns the partition with its log, which may be new; None if the log can't be created."""
        is_new = not self.hosted_logs.has(key)
        is_alone = len(topic.partitions[key.partition].replicas) == 1
        log = self.hosted_logs.open(key, topic.topic_id, config, is_alone=is_alone)
        if log is None:
            return None
        self._has_created |= is_new
        partition = Partition(
            topic_partition=key,
            topic_id=topic.topic_id,
            local_broker_id=self.broker_id,
            log=log,
            lag_time_max_ms=self._led.lag_time_max_ms,
            traffic=self._replicas.traffic.of(key),
        )
        self._hosted.add(partition)
        return partition

    def _rest_ms(self) -> int:
        """Returns the pause after a slice that created logs: as long as the slice. Clients may create any number."""
        has_created, self._has_created = self._has_created, False
        return OWN_SLICE_MS if has_created else 0

    def remove(self, gone: Mapping[TopicPartition, TopicId]) -> None:
        """Stops partitions that are no longer on this broker, and removes their logs."""
        self._offline.discard(gone)
        for key in gone:
            self._followed.forget(key)
            self._hosted.take_out(key)
        self.hosted_logs.remove(gone)

    def _has_to_go(self, key: TopicPartition, topic_id: TopicId, latest_epoch: LeaderEpoch) -> bool:
        assert self._image is not None
        return has_to_go(self._image, self.broker_id, key, topic_id, latest_epoch)

    def _on_names_free(self, names: Iterable[str]) -> None:
        self._host_again(*names)
        self._notify_settled()

    def _host_again(self, *names: str) -> None:
        """Hosts topics again whose names were taken by logs that are gone now."""
        if self._image is not None:
            self.on_image(self._image, [self._image.topics[name] for name in names if name in self._image.topics], [])

    def _on_worked(self, _: None) -> None:
        self._is_working = False
        self.hosted_logs.tell_failed()
        self._notify_settled()

    def _notify_settled(self) -> None:
        if self._is_settled:
            waiters, self._settled = self._settled, {}
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
