"""Former replicas of a partition whose brokers may not know yet that they were removed.

A reassignment removes a replica in the metadata, which each broker sees at a different time. Until the removed broker
sees it, it may still answer consumers: as a follower (rule DR7), or as a leader that was replaced. So a delete is not
acknowledged before that broker is known to act on the change (rule DR3). Nothing that it has reported is valid any
more, because it learns of no further deletes.

A former replica is no longer awaited when its registration has ended (it then reads the metadata before it serves
again), when its log directory has failed, or after `replica.lag.time.max.ms`, within which a broker that can't reach
its leader stops answering.

Every replica keeps this list, because any of them may lead next. A new leadership restarts the time limit.

Pure: time is passed in. This rule is ours; in Kafka a removed replica may answer with what it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide.metadata.image import MetadataImage, PartitionImage
    from lowtide.metadata.store import Revision
    from lowtide.protocol.types import BrokerEpoch, BrokerId, TopicId, TopicPartition


class FormerReplica(msgspec.Struct, frozen=True, gc=False):
    """A removed replica: its registration, and the first metadata revision that shows its broker the removal.

    `since_ms`: the start of the time limit, on the monotonic clock.
    """

    broker_epoch: BrokerEpoch
    revision: Revision
    since_ms: int


class FormerReplicas:
    """The former replicas of one partition, by broker."""

    __slots__ = ("_by_broker", "_limit_ms", "_number", "_topic_id")

    def __init__(self, topic_id: TopicId, number: int, limit_ms: int) -> None:
        self._topic_id = topic_id
        self._number = number
        self._limit_ms = limit_ms
        self._by_broker: dict[BrokerId, FormerReplica] = {}

    def __len__(self) -> int:
        return len(self._by_broker)

    def note_removed(
        self, removed: Iterable[BrokerId], state: PartitionImage, image: MetadataImage, now_ms: int
    ) -> None:
        """Adds the removed replicas; `state` is the first one without them.

        A former replica that is added again is still awaited: its broker may know of neither change.
        """
        for broker_id in removed:
            broker_epoch = image.broker_epoch(broker_id)
            if broker_epoch is not None:
                self._by_broker[broker_id] = FormerReplica(broker_epoch, state.modify_revision, now_ms)

    def restart_limit(self, now_ms: int) -> None:
        """Restarts the time limit when a leadership begins: an earlier leader may have answered them until now."""
        for broker_id, former in self._by_broker.items():
            self._by_broker[broker_id] = msgspec.structs.replace(former, since_ms=now_ms)

    def note_confirmed(self, broker_id: BrokerId, revision: Revision) -> None:
        """Removes a former replica whose broker acts on metadata of this revision."""
        former = self._by_broker.get(broker_id)
        if former is not None and former.revision <= revision:
            del self._by_broker[broker_id]

    def awaited(self, image: MetadataImage, now_ms: int) -> dict[BrokerId, FormerReplica]:
        """Returns the former replicas that deletes of this partition wait for."""
        return {
            broker_id: former
            for broker_id, former in self._by_broker.items()
            if image.broker_epoch(broker_id) == former.broker_epoch
            and now_ms - former.since_ms <= self._limit_ms
            and image.replica_is_online(broker_id, self._topic_id, self._number)
        }


class HostedReplica(Protocol):
    """The attributes of `Partition` that are needed here."""

    topic_id: TopicId
    topic_partition: TopicPartition
    local_broker_id: BrokerId
    lag_time_max_ms: int
    replicas: tuple[BrokerId, ...]
    former_replicas: FormerReplicas | None


def awaited_former(partition: HostedReplica, image: MetadataImage, now_ms: int) -> dict[BrokerId, FormerReplica]:
    """Returns the former replicas that deletes of a partition wait for, by broker."""
    return {} if partition.former_replicas is None else partition.former_replicas.awaited(image, now_ms)


def note_removals(
    partition: HostedReplica, state: PartitionImage, image: MetadataImage, now_ms: int, *, is_new: bool
) -> None:
    """Adds the replicas that the new `state` removes. `is_new`: the leadership is new."""
    if partition.former_replicas is not None and is_new:
        partition.former_replicas.restart_limit(now_ms)
    if partition.replicas == state.replicas:
        return
    removed = set(partition.replicas) - {*state.replicas, partition.local_broker_id}
    if removed and partition.former_replicas is None:
        partition.former_replicas = FormerReplicas(
            partition.topic_id, partition.topic_partition.partition, partition.lag_time_max_ms
        )
    if removed and partition.former_replicas is not None:
        partition.former_replicas.note_removed(removed, state, image, now_ms)
